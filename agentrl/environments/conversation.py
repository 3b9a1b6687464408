"""What an agent loop that is a function works with: `@agentrl.agent async def loop(episode: agentrl.Conversation)`.

Samplers implement it. A file of an environment imports it without them, for its tools run where they are not installed.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One turn of the model."""

    text: str
    calls: Sequence[Any] = ()
    """The calls of tools that it asks for, each with `name` and `arguments`."""
    errors: Sequence[str] = ()
    """For each call that cannot be read, what is wrong about it."""


class Conversation(abc.ABC):
    """An episode as messages. What the model said before stays the tokens that it sampled."""

    @property
    @abc.abstractmethod
    def query(self) -> str: ...

    @property
    @abc.abstractmethod
    def row(self) -> Mapping[str, Any]:
        """The columns of the dataset's row that agentrl does not know itself."""

    @property
    @abc.abstractmethod
    def tools(self) -> tuple[str, ...]:
        """The names of the tools."""

    @abc.abstractmethod
    async def chat(self, message: str | None = None, *, results: Sequence[str] = ()) -> Reply:
        """The model's next turn: its answer to the query, then to a message of the user, or to results of tools."""

    @abc.abstractmethod
    async def results_of(self, reply: Reply) -> list[str]:
        """What the calls of a turn gave, side by side; for a call that cannot be read, what is wrong about it."""

    @abc.abstractmethod
    async def call(self, tool: str, **arguments: Any) -> str:
        """The result of a tool that the loop calls itself, after a turn of the model."""
