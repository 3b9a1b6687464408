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
    state: Mapping[str, Any] = field(default_factory=dict)
    """What the tools kept in this episode, by the name of the class, and what the loop kept; empty if the episode ended
    at its deadline."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the dataset's row that agentrl does not know itself."""
    outcome: str = ""
    """How it ended, such as `answered` or `turn_limit`."""
    record: str = ""
    """The id of its record."""
    branches: Sequence[str] = ()
    """For each of the texts, the name of the conversation that it belongs to; empty for the agent's own."""

    def texts_of(self, branch: str) -> list[str]:
        """What the model wrote in a conversation beside the agent's own."""
        return [text for text, name in zip(self.texts, self.branches, strict=False) if name == branch]

    def calls_of(self, tool: str) -> list[ToolCall]:
        return [call for call in self.calls if call.tool == tool]
