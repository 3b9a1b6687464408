"""What a scorer sees of an episode.

Invariant: it is built from stored data, so a score can be computed again, in another process, after the episode and its
sessions are gone.
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
    """False if the call failed; the result is then the error text that the model read."""


@dataclass(frozen=True)
class Episode:
    """An episode that has ended."""

    query: str
    truth: str
    """The `answer` of the dataset's row."""
    answer: str | None
    """The final answer of the model; None if it gave none."""
    texts: Sequence[str]
    """The texts of the model, turn by turn."""
    calls: Sequence[ToolCall]
    """The calls of its tools, in the order in which they were requested."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """State that the tools kept in this episode, by the name of the class, and state that the loop kept; empty if the
    episode ended at its deadline."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the dataset's row that agentrl does not use itself."""
    outcome: str = ""
    """How it ended, such as `answered` or `turn_limit`."""
    record: str = ""
    """The id of its record."""
    branches: Sequence[str] = ()
    """For each of the texts, the name of the conversation that it belongs to; empty for the agent's own."""

    def texts_of(self, branch: str) -> list[str]:
        """The texts of the model in a branch of the conversation."""
        return [text for text, name in zip(self.texts, self.branches, strict=False) if name == branch]

    def calls_of(self, tool: str) -> list[ToolCall]:
        return [call for call in self.calls if call.tool == tool]
