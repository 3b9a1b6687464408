"""The interface of an inference engine, and its errors.

Invariants:
- log-probs are those of log softmax(logits / temperature) over the whole vocabulary, even if `top_p`, `top_k` or
  `min_p` cuts it; penalties change the logits first;
- every generated token has exactly one version;
- an aborted call returns what it has generated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol

import msgspec

from agentrl.errors import AgentrlError
from agentrl.policies.sampling_rule import SamplingRule

Finish = Literal["stop", "length", "abort"]
PauseMode = Literal["in_place", "retract", "abort"]
NO_BYTES: Mapping[int, bytes] = MappingProxyType({})
"""No images."""


class EngineError(AgentrlError):
    """The engine failed: an infrastructure failure, never a policy result."""


class EngineGoneError(EngineError):
    """No process answers at the engine's address: it is dead and must not be routed to."""


class EngineRubbishError(EngineError):
    """The engine gave an answer that is malformed or cannot be true. Nothing of it is kept."""


class EngineBusyError(EngineError):
    """The engine is alive but accepts no calls now: it has no weights yet, or its queue is full."""


class CallRefusedError(EngineError):
    """The engine refuses this call and would refuse it again: the prompt is too long, or a parameter is invalid."""


class VersionNotServedError(CallRefusedError):
    """The call wants a version of the weights that the engine does not hold."""


class WeightsRefusedError(EngineError):
    """New weights were refused; the previous version still serves."""


class Sampling(SamplingRule, frozen=True, kw_only=True):
    """How a call samples. Penalties count only the output of the call; output of earlier calls is part of the
    prompt."""

    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    """The token that stops a call is part of its output."""
    seed: int | None = None
    """The same seed, prompt and weights give the same tokens, whatever other calls the engine computes."""

    def problem(self) -> str:
        """What is invalid; empty if nothing is."""
        if self.max_new_tokens < 0:
            return f"max_new_tokens must be at least 0, not {self.max_new_tokens}"
        return SamplingRule.problem(self)


class Generated(msgspec.Struct, kw_only=True):
    """The output of one call."""

    ids: list[int]
    log_probs: list[float]
    versions: list[tuple[int, int]]
    """Runs over `ids`: version of the weights, number of tokens."""
    finish: Finish
    cached_tokens: int = 0
    """Prompt tokens that came from the cache."""
    seconds: float = 0.0


class Load(msgspec.Struct, kw_only=True):
    """The load of an engine, for routing and for people."""

    version: int | None
    """The version that it serves; None before the first verified weights."""
    versions_loaded: tuple[int, ...] = ()
    slots: int = 0
    running: int = 0
    waiting: int = 0
    context: int = 0
    paused: bool = False
    generated_tokens: int = 0
    """Generated tokens since the start, if the engine counts them."""
    tokens_per_s: float = 0.0
    """Generated tokens per second, if the engine measures them instead of counting."""


class Generates(Protocol):
    """What continues prompts: an engine, or something that takes the place of one where an episode is tried."""

    async def generate(
        self,
        rid: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> Generated:
        """Continues `ids`. At the deadline the call is aborted and returns what it has, with `abort`. `images`: the
        images that `ids` show, by number, in the size that the model sees."""
        ...


class Engine(Generates, Protocol):
    """An engine in this process or behind HTTP. All failures are EngineErrors."""

    def stream(
        self,
        rid: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> AsyncIterator[Generated]:
        """Repeatedly yields the output so far; the last one is complete. If the consumer stops reading, the call
        ends."""
        ...

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> list[float]:
        """The log-probs at temperature 1 of all ids except the first."""
        ...

    async def abort(self, rid: str) -> None:
        """Ends this call; an empty `rid` ends all calls. Their `generate` returns what they have."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Generates nothing until `resume`: calls keep their slots, return to the queue, or are aborted."""
        ...

    async def resume(self) -> None: ...

    async def release_memory(self) -> None:
        """Releases the memory of the cache; the weights stay. Refused while calls are under way; later calls wait for
        `restore_memory`."""
        ...

    async def restore_memory(self) -> None: ...

    async def update(self, path: str, version: int) -> None:
        """Loads weights from a directory. Calls in flight continue with them. Raises WeightsRefusedError."""
        ...

    async def health(self) -> bool: ...

    async def load(self) -> Load: ...
