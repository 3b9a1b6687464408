"""What a scorer sees of an episode.

Invariant: it is made from what is stored, so a score can be computed again, in another process, after the episode and
its sessions are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool."""

    turn: int
    tool: str
    arguments: Mapping[str, Any]
    result: str
    ok: bool
    """False if the call failed; the result is then what the model read of the error."""


@dataclass(frozen=True)
class Episode:
    """An episode that has ended."""

    query: str
    truth: str
    """The `answer` of the dataset's row."""
    answer: str | None
    """What the model answered; None if it did not."""
    texts: Sequence[str]
    """What the model wrote, turn by turn."""
    calls: Sequence[ToolCall]
    """The calls of its tools, in the order in which they were requested."""
    state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the tools kept in this episode, by the name of the class; empty if it ended at a limit."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the dataset's row that agentrl does not know itself."""
    outcome: str = ""
    """How it ended, such as `answered` or `turn_limit`."""
    record: str = ""
    """The id of its record."""

    def calls_of(self, tool: str) -> list[ToolCall]:
        return [call for call in self.calls if call.tool == tool]
