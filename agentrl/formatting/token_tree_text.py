"""Draws the token tree of a record: one line per span, indented only at branches, and the text of spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from agentrl.formatting.amounts import counted
from agentrl.protocol.data_commands import TokenStretch

ROOT = -1


def heads(parents: Sequence[int]) -> list[str]:
    """The prefix of each node's line. Nodes are in depth-first order; a parent is an index, or ROOT."""
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    carried, made = {ROOT: ""}, list[str]()
    for node, parent in enumerate(parents):
        before, siblings = carried[parent], children[parent]
        if len(siblings) == 1:
            made.append(before)
            carried[node] = before
        else:
            last = node == siblings[-1]
            made.append(before + ("└─ " if last else "├─ "))
            carried[node] = before + ("   " if last else "│  ")
    return made


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
