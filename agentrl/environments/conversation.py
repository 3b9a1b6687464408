"""What an agent loop written as a function gets: `@agentrl.agent async def loop(episode: agentrl.Conversation)`.

Samplers implement it. An environment file imports it without them, because its tools run where samplers are not
installed.
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
    """One sentence for each malformed call."""


class Conversation(abc.ABC):
    """An episode as messages. Earlier turns of the model keep the tokens that it sampled."""

    @property
    @abc.abstractmethod
    def query(self) -> str: ...

    @property
    @abc.abstractmethod
    def row(self) -> Mapping[str, Any]:
        """The columns of the dataset's row that agentrl does not use itself."""

    @property
    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Values that the loop stores in this episode. Scorers find them in `episode.state`, so they must be plain
        values."""

    @property
    @abc.abstractmethod
    def tools(self) -> tuple[str, ...]:
        """The names of the tools."""

    @abc.abstractmethod
    async def chat(self, message: str | None = None, *, results: Sequence[str] = ()) -> Reply:
        """The model's next turn: its answer to a message of the user (by default, in the first turn, to the query) or
        to results of tools."""

    @abc.abstractmethod
    def branch(self, name: str, *, system: str | None = None) -> Conversation:
        """A conversation of its own beside this one, with the same model: another agent, or the other side of a debate.

        Its first turn answers the message that `chat` is given. Conversations may be asked side by side.
        """

    @abc.abstractmethod
    async def results_of(self, reply: Reply) -> list[str]:
        """Runs the calls of a turn concurrently and returns their results; for a malformed call, the sentence that says
        what is wrong."""

    @abc.abstractmethod
    async def images(self, text: str | None = None) -> list[Image]:
        """The images of the task, or those of a text that a tool gave, in order, as the model sees them: PNG in its
        size."""

    @abc.abstractmethod
    async def text_of(self, image: Image) -> str:
        """A text that shows the model this image, for `chat`. Raises ValueError if the model cannot be shown it."""

    @abc.abstractmethod
    def other(self, name: str, *, purpose: str = "agent") -> OtherModel:
        """Another model, from the section `models` of the run file. Its answers are not trained on, and waiting for
        them does not count toward the time of the episode. An episode that another sampler continues gets the same
        answers."""

    @abc.abstractmethod
    async def call(self, tool: str, **arguments: Any) -> str:
        """The result of a tool that the loop calls itself, after a turn of the model."""
