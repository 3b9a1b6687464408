"""A span of tokens as text: count, versions, log-probs, and whether the tokens train."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.formatting.amounts import counted
from agentrl.protocol.data_commands import TokenStretch


def summary(stretch: TokenStretch) -> str:
    if stretch.kind != "model":
        return f"{counted(len(stretch.ids), 'tokens')} of context"
    made_by = " ".join(f"v{version}×{count}" for version, count in stretch.versions)
    likely = f", log-prob {sum(stretch.log_probs) / len(stretch.log_probs):.3g} each" if stretch.log_probs else ""
    return f"{counted(len(stretch.ids), 'tokens')}, {made_by}{likely}, {'trained' if stretch.trains else 'not trained'}"


def texts(stretch: TokenStretch) -> tuple[str, ...]:
    """The text of each token, or its id if the tokenizer is unknown."""
    return stretch.texts or tuple(f"{id} " for id in stretch.ids)


def versions(stretch: TokenStretch) -> Iterator[int | None]:
    """The version of each token; None for context."""
    if not stretch.versions:
        yield from (None for _ in stretch.ids)
    for version, count in stretch.versions:
        yield from (version for _ in range(count))
