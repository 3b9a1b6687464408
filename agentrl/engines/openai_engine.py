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
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.chat.tokenizer import Tokenizer
from agentrl.config.engines import Engines
from agentrl.config.secrets import resolve_secret
from agentrl.engines.canary import Agreement
from agentrl.engines.forwarding_engine import ForwardingEngine, Piece
from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    Generated,
    Load,
    OnProgress,
    PauseMode,
    Sampling,
)
from agentrl.engines.manifest import Manifest
from agentrl.engines.openai_calls import OpenAiCalls

MOST_STOPS = 4
"""The most stop texts of one call in this API."""


class OpenAiEngine(ForwardingEngine):
    """Implements `UnitEngine` and `ServableEngine`."""

    def __init__(self, engines: Engines, *, context: int) -> None:
        super().__init__(engines, context=context)
        self._api = OpenAiCalls(engines.url, "" if engines.token is None else resolve_secret(engines.token))
        self._tokenizer: Tokenizer | None = None
        self._served: int | None = None
        self._running = asyncio.Event()
        self._running.set()
        self.steps = 0
        self.agreement: Agreement | None = None

    @property
    def _version(self) -> int | None:
        return self._served

    def check(self) -> None: ...

    async def close(self) -> None:
        await self._api.close()

    async def generate(self, call: EngineCall, on_progress: OnProgress | None = None) -> Generated:
        output = await super().generate(call, on_progress)
        self.steps += 1
        return output

    def _answer(self, call: EngineCall) -> tuple[int, AsyncIterator[Piece]]:
        if self._served is None or self._tokenizer is None:
            raise EngineBusyError("The engine has no tokenizer yet: no version was published.")
        if not call.ids or len(call.ids) >= self._context:
            raise CallRefusedError(f"The prompt has {len(call.ids)} tokens; it must have 1 to {self._context - 1}.")
        return self._served, self._pieces(self._tokenizer, list(call.ids), call.sampling)

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> list[float]:
        raise CallRefusedError("An engine of the kind openai has no log-probs.")

    async def pause(self, mode: PauseMode) -> None:
        """Calls under way cannot be paused in this API; they end, or are aborted."""
        self._running.clear()
        if mode == "abort":
            await self.abort("")

    async def resume(self) -> None:
        self._running.set()

    async def release_memory(self) -> None:
        raise CallRefusedError("An engine of the kind openai has no memory here.")

    async def restore_memory(self) -> None: ...

    async def health(self) -> bool:
        return True

    async def load(self) -> Load:
        return msgspec.structs.replace(await super().load(), paused=not self._running.is_set())

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Takes the tokenizer of a publication."""
        self._tokenizer = await asyncio.to_thread(Tokenizer, Path(path))
        self._served, self._accepts = version, True

    async def _pieces(self, tokenizer: Tokenizer, ids: list[int], sampling: Sampling) -> AsyncIterator[Piece]:
        """The whole answer as one piece."""
        await self._running.wait()
        body: dict[str, Any] = {
            "model": self._engines.model,
            "prompt": tokenizer.decode(ids),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "stop": [tokenizer.decode([stop]) for stop in sampling.stop_token_ids[:MOST_STOPS]],
            "seed": sampling.seed,
        }
        answer = await self._api.answer(body)
        output = tokenizer.encode(answer.text)[: sampling.max_new_tokens]
        if answer.finish == "stop" and sampling.stop_token_ids:
            # The API leaves out the end token of a turn.
            output.append(sampling.stop_token_ids[0])
        yield Piece(output, [0.0] * len(output), answer.finish)
