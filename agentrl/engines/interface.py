"""The interface of an inference engine, and its errors.

Invariants:
- log-probs are those of log softmax(logits / temperature) over the whole vocabulary, even if `top_p`, `top_k` or
  `min_p` cuts it; penalties change the logits first;
- every generated token has exactly one version;
- an aborted call returns what it has generated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A request to continue a prompt."""

    rid: str
    ids: Sequence[int]
    sampling: Sampling
    deadline_s: float = field(kw_only=True)
    """After this time the call is aborted and returns what it has, with `abort`."""
    version: int | None = field(default=None, kw_only=True)
    """The version that must answer; None is the current one."""
    images: Mapping[int, bytes] = field(default_factory=lambda: NO_BYTES, kw_only=True)
    """The images that `ids` show, by number, in the size that the model sees."""


OnProgress = Callable[[Generated], None]
"""Gets the output so far."""


class Generates(Protocol):
    """What continues prompts: an engine, or something that takes the place of one where an episode is tried."""

    async def generate(self, call: EngineCall) -> Generated: ...


class DeviceOrders(Protocol):
    """How an engine leaves its device to another process, and comes back. All failures are EngineErrors."""

    async def pause(self, mode: PauseMode) -> None:
        """Generates nothing until `resume`: calls keep their slots, return to the queue, or are aborted."""
        ...

    async def resume(self) -> None: ...

    async def release_memory(self) -> None:
        """Releases the memory of the cache, so that another process can use it; the weights stay. Refused while calls
        are under way; later calls wait for `restore_memory`."""
        ...

    async def restore_memory(self) -> None: ...


class WeightOrders(DeviceOrders, Protocol):
    async def update(self, path: str, version: int) -> None:
        """Loads weights from a directory. Calls in flight continue with them. Raises WeightsRefusedError."""
        ...

    async def load(self) -> Load: ...


class TwoVersionEngine(Protocol):
    """An engine that serves while it loads and can hold a second version for an evaluation."""

    async def pin(self, version: int, path: str = "") -> None:
        """Holds a version beside the current one, for calls that name it. Without `path` it must be held already."""
        ...

    async def unpin(self) -> None: ...


class _Calls(Protocol):
    """The calls of an engine besides `generate`."""

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

    async def health(self) -> bool: ...


class Engine(Generates, _Calls, WeightOrders, Protocol):
    """An engine as its callers use it, in this process or behind HTTP."""

    def stream(self, call: EngineCall) -> AsyncIterator[Generated]:
        """Repeatedly yields the output so far; the last one is complete. If the consumer stops reading, the call
        ends."""
        ...


class ServableEngine(_Calls, WeightOrders, TwoVersionEngine, Protocol):
    """An engine as the HTTP server of its unit uses it."""

    async def generate(self, call: EngineCall, on_progress: OnProgress | None = None) -> Generated: ...
