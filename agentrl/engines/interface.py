"""What an inference engine does, and how it fails.

Invariants: log-probs are those of log softmax(logits / temperature) over the whole vocabulary, whatever `top_p` cut;
every generated token has exactly one version; what an aborted call had generated is returned and not lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

import msgspec

from agentrl.errors import AgentrlError

Finish = Literal["stop", "length", "abort"]
PauseMode = Literal["in_place", "retract", "abort"]


class EngineError(AgentrlError):
    """The engine did not answer as an engine: an infrastructure failure, never the policy's."""


class EngineGoneError(EngineError):
    """Nobody answers at the engine's address: it is dead and should not be routed to."""


class EngineRubbishError(EngineError):
    """It answered what no engine answers, or what cannot be true. None of it is kept."""


class EngineBusyError(EngineError):
    """The engine lives but takes no call now: no weights yet, or its queue is full."""


class CallRefusedError(EngineError):
    """The engine refuses this call and would refuse it again: the prompt is too long, a parameter makes no sense."""


class VersionNotServedError(CallRefusedError):
    """The call wants a version of the weights that the engine does not hold."""


class WeightsRefusedError(EngineError):
    """New weights were not taken; the version before serves on."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a call samples."""

    temperature: float = 1.0
    """0 takes the likeliest token; its log-prob is then that of temperature 1."""
    top_p: float = 1.0
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    """The token that stopped the call is part of its output."""
    seed: int | None = None
    """The same seed, prompt and weights give the same tokens, whatever else the engine does meanwhile."""

    def problem(self) -> str:
        """Empty, or what makes no sense."""
        if not 0.0 <= self.temperature <= 100.0:
            return f"temperature must be from 0 to 100, not {self.temperature}"
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p must be above 0 and at most 1, not {self.top_p}"
        if self.max_new_tokens < 0:
            return f"max_new_tokens must be at least 0, not {self.max_new_tokens}"
        return ""


class Generated(msgspec.Struct, kw_only=True):
    """What one call produced."""

    ids: list[int]
    log_probs: list[float]
    versions: list[tuple[int, int]]
    """Spans over `ids`: version of the weights, number of tokens."""
    finish: Finish
    cached_tokens: int = 0
    """Prompt tokens that were not computed anew."""
    seconds: float = 0.0


class Load(msgspec.Struct, kw_only=True):
    """What routing and people want to know of an engine."""

    version: int | None
    """What it serves; None before the first verified weights."""
    versions_loaded: tuple[int, ...] = ()
    slots: int = 0
    running: int = 0
    waiting: int = 0
    context: int = 0
    paused: bool = False
    generated_tokens: int = 0
    """Since it started, where the engine counts them."""
    tokens_per_s: float = 0.0
    """Where the engine measures that instead."""


class Engine(Protocol):
    """An engine in this process or behind HTTP. All failures are EngineErrors."""

    async def generate(
        self, rid: str, ids: Sequence[int], sampling: Sampling, *, deadline_s: float, version: int | None = None
    ) -> Generated:
        """Continue `ids`. At the deadline the call is aborted and what there is is returned as `abort`."""
        ...

    def stream(
        self, rid: str, ids: Sequence[int], sampling: Sampling, *, deadline_s: float, version: int | None = None
    ) -> AsyncIterator[Generated]:
        """What there is so far, again and again; the last one is complete, and an `abort` at the deadline. Who breaks
        it off ends the call."""
        ...

    async def score(self, ids: Sequence[int], *, deadline_s: float, version: int | None = None) -> list[float]:
        """The log-probs, at temperature 1, of all ids but the first."""
        ...

    async def abort(self, rid: str) -> None:
        """End this call; an empty `rid` ends all. Their `generate` returns what they have."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Generate nothing until `resume`: calls keep their slots, go back to the queue, or are aborted."""
        ...

    async def resume(self) -> None: ...

    async def release_memory(self) -> None:
        """Give up what the cache takes; the weights stay. Refused while calls are under way; later ones wait for
        `restore_memory`."""
        ...

    async def restore_memory(self) -> None: ...

    async def update(self, path: str, version: int) -> None:
        """Load weights from a directory. Calls in flight go on with them. Raises WeightsRefusedError."""
        ...

    async def health(self) -> bool: ...

    async def load(self) -> Load: ...
