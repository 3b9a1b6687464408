"""Other models by name, in the code of an environment: `await rl.other_model("helper").chat("...")`.

Invariants: the process that runs an episode provides the way to ask them, and without one the call raises an error with
a sentence. A model that is away costs only time: its error leaves a record unscored and never becomes a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

Messages = Sequence[Mapping[str, str]]


class OtherModelError(Exception):
    """Another model did not answer. It may answer later."""

    away: str = ""
    """The model, if none of its services answered; empty if it refused the question."""


@dataclass(frozen=True)
class Asked:
    """A question to another model."""

    messages: Messages
    temperature: float | None = None
    max_tokens: int | None = None
    salt: str = ""
    """Questions that differ only in their salt are separate questions."""


class Asker(Protocol):
    async def ask(self, name: str, asked: Asked, *, purpose: str) -> str:
        """The answer of a model. Raises OtherModelError."""


class _Nowhere:
    async def ask(self, name: str, asked: Asked, *, purpose: str) -> str:
        raise OtherModelError(f"the model {name} cannot be asked here: only loops and scorers of a run can")


_asker: ContextVar[Asker] = ContextVar("other_models")


def provide(asker: Asker) -> None:
    """Sets how models are asked in this asyncio task and in the tasks that it creates."""
    _asker.set(asker)


class OtherModel:
    """A model of the section `models` of the run file."""

    def __init__(self, name: str, *, purpose: str = "", asker: Asker | None = None) -> None:
        self.name = name
        self._purpose = purpose
        self._asker = asker

    async def chat(
        self,
        message: str | Messages,
        *,
        system: str = "",
        temperature: float | None = None,
        max_tokens: int | None = None,
        salt: str = "",
    ) -> str:
        """Its answer to a message of the user, or to messages with `role` and `content`. The same question has the same
        answer; `salt` makes it another question."""
        messages = [{"role": "user", "content": message}] if isinstance(message, str) else [*message]
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        asker = self._asker or _asker.get(_Nowhere())
        purpose = self._purpose or "scorer"
        return await asker.ask(self.name, Asked(messages, temperature, max_tokens, salt), purpose=purpose)


def other_model(name: str, *, purpose: str = "") -> OtherModel:
    """A model of the section `models` of the run file. `purpose` is shown beside its cost."""
    return OtherModel(name, purpose=purpose)
