"""An OpenAI-compatible API that other people run, as an engine for evaluation.

It gets the text of a conversation as the chat template of the run's model writes it, and the tokenizer of that model
turns its answer into ids.

Invariants:
- its answers may never train: they have no log-probs, and their ids are not the sampled ones; the configuration refuses
  it for a run that trains;
- it reports the version that it is given, but its weights are always its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.chat.tokenizer import Tokenizer
from agentrl.config.engines import Engines
from agentrl.config.secrets import resolve_secret
from agentrl.engines.canary import Agreement
from agentrl.engines.forwarded_calls import ForwardedCalls
from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    EngineBusyError,
    Generated,
    Load,
    PauseMode,
    Sampling,
)
from agentrl.engines.manifest import Manifest
from agentrl.engines.openai_calls import OpenAiCalls

MOST_STOPS = 4
"""The most stop texts of one call in this API."""


class _Whole(msgspec.Struct):
    """An answer in one piece."""

    ids: list[int]
    log_probs: list[float]
    finish: str | None


class OpenAiEngine:
    """Implements `UnitEngine`, and what the HTTP server of the unit needs."""

    def __init__(self, engines: Engines, *, context: int) -> None:
        self._api = OpenAiCalls(engines.url, "" if engines.token is None else resolve_secret(engines.token))
        self._engines = engines
        self._context = context
        self._calls = ForwardedCalls()
        self._tokenizer: Tokenizer | None = None
        self._version: int | None = None
        self._running = asyncio.Event()
        self._running.set()
        self.steps = 0
        self.generated_tokens = 0
        self.agreement: Agreement | None = None

    @property
    def busy(self) -> bool:
        return len(self._calls) > 0

    def check(self) -> None: ...

    async def close(self) -> None:
        await self._api.close()

    async def generate(
        self,
        rid: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
        on_progress: Callable[[Generated], None] | None = None,
    ) -> Generated:
        if images:
            raise CallRefusedError("This engine gets no images.")
        if self._version is None or self._tokenizer is None:
            raise EngineBusyError("The engine has no tokenizer yet: no version was published.")
        if not ids or len(ids) >= self._context:
            raise CallRefusedError(f"The prompt has {len(ids)} tokens; it must have 1 to {self._context - 1}.")
        pieces = self._asked(self._tokenizer, list(ids), sampling)
        made = await self._calls.run(rid, pieces, self._version, deadline_s=deadline_s, on_progress=on_progress)
        self.generated_tokens += len(made.ids)
        self.steps += 1
        return made

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> list[float]:
        raise CallRefusedError("An engine of the kind openai has no log-probs.")

    async def abort(self, rid: str) -> None:
        await self._calls.abort(rid)

    async def pause(self, mode: PauseMode) -> None:
        """Calls under way cannot be paused in this API; they end, or are aborted."""
        self._running.clear()
        if mode == "abort":
            await self._calls.abort("")

    async def resume(self) -> None:
        self._running.set()

    async def release_memory(self) -> None:
        raise CallRefusedError("An engine of the kind openai has no memory here.")

    async def restore_memory(self) -> None: ...

    async def pin(self, version: int, path: str = "") -> None:
        raise CallRefusedError("An engine of the kind openai serves one version.")

    async def unpin(self) -> None: ...

    async def health(self) -> bool:
        return True

    async def load(self) -> Load:
        held = () if self._version is None else (self._version,)
        return Load(
            version=self._version,
            versions_loaded=held,
            slots=self._engines.slots,
            running=len(self._calls),
            context=self._context,
            paused=not self._running.is_set(),
            generated_tokens=self.generated_tokens,
        )

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Takes the tokenizer of a publication."""
        self._tokenizer = await asyncio.to_thread(Tokenizer, Path(path))
        self._version, self._calls.open = version, True

    async def _asked(self, tokenizer: Tokenizer, ids: list[int], sampling: Sampling) -> AsyncIterator[_Whole]:
        await self._running.wait()
        body: dict[str, Any] = {
            "model": self._engines.model,
            "prompt": tokenizer.decode(ids),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "stop": [tokenizer.decode([one]) for one in sampling.stop_token_ids[:MOST_STOPS]],
            "seed": sampling.seed,
        }
        one = await self._api.answer(body)
        found = tokenizer.encode(one.text)[: sampling.max_new_tokens]
        if one.finish == "stop" and sampling.stop_token_ids:
            # The API leaves out the end token of a turn.
            found.append(sampling.stop_token_ids[0])
        yield _Whole(found, [0.0] * len(found), one.finish)
