"""The resolved configuration as rows, for `agentrl config show [--sources]`.

Invariant: a secret is shown as its reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.config import shape
from agentrl.config.load import DEFAULT, Loaded


@dataclass(frozen=True, slots=True)
class ShownValue:
    key: str
    value: Any
    """Plain: text, a number, a boolean, a list or None."""
    source: str


def rows(loaded: Loaded, *, only_given: bool = False) -> list[ShownValue]:
    """One row per value, in the order of the fields; `only_given` leaves out the defaults."""
    plain = loaded.config.model_dump(mode="json")
    shown = [ShownValue(".".join(path), value, loaded.sources[".".join(path)]) for path, value in shape.leaves(plain)]
    return [row for row in shown if not only_given or row.source != DEFAULT]
