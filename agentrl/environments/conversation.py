"""What an agent loop that is a function works with: `@agentrl.agent async def loop(episode: agentrl.Conversation)`.

Samplers implement it. A file of an environment imports it without them, for its tools run where they are not installed.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.environments.other_models import OtherModel
from agentrl.toolservers.user_names import Image


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
    def state(self) -> dict[str, Any]:
        """What the loop keeps in this episode. Scorers find it in `episode.state`, so it must be plain values."""

    @property
    @abc.abstractmethod
    def tools(self) -> tuple[str, ...]:
        """The names of the tools."""

    @abc.abstractmethod
    async def chat(self, message: str | None = None, *, results: Sequence[str] = ()) -> Reply:
        """The model's next turn: its answer to a message of the user, at first to the query, or to results of tools."""

    @abc.abstractmethod
    def branch(self, name: str, *, system: str | None = None) -> Conversation:
        """A conversation of its own beside this one, with the same model: another agent, or the other side of a debate.

        Its first turn answers the message that `chat` is given. Conversations may be asked side by side.
        """

    @abc.abstractmethod
    async def results_of(self, reply: Reply) -> list[str]:
        """What the calls of a turn gave, side by side; for a call that cannot be read, what is wrong about it."""

    @abc.abstractmethod
    async def images(self, text: str | None = None) -> list[Image]:
        """The images of the task, or those of a text that a tool gave, in order, as the model sees them: PNG in its
        size."""

    @abc.abstractmethod
    async def text_of(self, image: Image) -> str:
        """A text that shows the model this image, for `chat`. Raises ValueError if the model cannot be shown it."""

    @abc.abstractmethod
    def other(self, name: str, *, purpose: str = "agent") -> OtherModel:
        """Another model, from the section `models` of the run file. What it says trains nothing; while it is waited
        for, the time of the episode stands still. An episode that goes on elsewhere gets the same answers."""

    @abc.abstractmethod
    async def call(self, tool: str, **arguments: Any) -> str:
        """The result of a tool that the loop calls itself, after a turn of the model."""
