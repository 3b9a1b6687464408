"""An engine whose unit answers calls by passing them on to a server.

A kind of server declares how it answers one call in pieces, and which version answers. How a call ends, what is
refused, and what is counted is decided here.

Invariants: a call ends once; an aborted call returns what it has; a call that arrives while the engine is closed is
refused as busy, and the caller tries another engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from agentrl.config.engines import Engines
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    Finish,
    Generated,
    Load,
    OnProgress,
)


class Piece(NamedTuple):
    """The tokens of a part of an answer."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    finish: str | None


class ForwardingEngine(ABC):
    """Implements the part of `ServableEngine` that is about calls."""

    def __init__(self, engines: Engines, *, context: int) -> None:
        self._engines = engines
        self._context = context
        self._accepts = False
        """Whether new calls are accepted."""
        self._under_way: dict[str, asyncio.Event] = {}
        """The calls, each with the event that ends it."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.generated_tokens = 0

    @abstractmethod
    def _answer(self, call: EngineCall) -> tuple[int, AsyncIterator[Piece]]:
        """The version that answers this call, and the pieces of its answer. Raises EngineError if it is refused."""

    @property
    @abstractmethod
    def _version(self) -> int | None:
        """The version that is served."""

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    async def generate(self, call: EngineCall, on_progress: OnProgress | None = None) -> Generated:
        if call.images:
            raise CallRefusedError("This engine gets no images.")
        if problem := call.sampling.problem():
            raise CallRefusedError(f"{problem[0].upper()}{problem[1:]}.")
        version, pieces = self._answer(call)
        if call.sampling.max_new_tokens == 0:
            return Generated(ids=[], log_probs=[], versions=[], finish="length")
        output = await self._run(call, version, pieces, on_progress)
        self.generated_tokens += len(output.ids)
        return output

    async def abort(self, rid: str) -> None:
        """Aborts one call, or all for an empty `rid`; returns when they have ended."""
        for name, ended in list(self._under_way.items()):
            if rid in ("", name):
                ended.set()
        if not rid:
            await self._idle.wait()

    async def pin(self, version: int, path: str = "") -> None:
        raise CallRefusedError(f"An engine of the kind {self._engines.kind} serves one version.")

    async def unpin(self) -> None:
        return  # No second version is ever held.

    async def load(self) -> Load:
        version = self._version
        return Load(
            version=version,
            versions_loaded=() if version is None else (version,),
            slots=self._engines.slots,
            running=len(self._under_way),
            context=self._context,
            generated_tokens=self.generated_tokens,
        )

    async def _run(
        self, call: EngineCall, version: int, pieces: AsyncIterator[Piece], on_progress: OnProgress | None
    ) -> Generated:
        """Collects the answer of a call."""
        if not self._accepts:
            raise EngineBusyError("The engine loads weights and takes no calls.")
        if call.rid in self._under_way:
            raise CallRefusedError(f"The request {call.rid} is under way already.")
        began = time.monotonic()
        output = Generated(ids=[], log_probs=[], versions=[], finish="abort")
        ended = self._under_way[call.rid] = asyncio.Event()
        self._idle.clear()
        reading = asyncio.create_task(_read(pieces, output, version, began, on_progress), name=f"read {call.rid}")
        ending = asyncio.create_task(ended.wait(), name=f"end of {call.rid}")
        try:
            await asyncio.wait({reading, ending}, timeout=call.deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                output.finish = reading.result()
            output.seconds = time.monotonic() - began
            return output
        finally:
            for task in (reading, ending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            del self._under_way[call.rid]
            if not self._under_way:
                self._idle.set()


async def _read(
    pieces: AsyncIterator[Piece],
    output: Generated,
    version: int,
    began: float,
    on_progress: OnProgress | None,
) -> Finish:
    finish: str | None = None
    async for piece in pieces:
        output.ids += piece.ids
        output.log_probs += piece.log_probs
        output.versions = [(version, len(output.ids))] if output.ids else []
        finish = piece.finish or finish
        if on_progress is not None and piece.ids:
            on_progress(_copy(output, began))
    return "stop" if finish == "stop" else "length" if finish == "length" else "abort"


def _copy(output: Generated, began: float) -> Generated:
    return Generated(
        ids=list(output.ids),
        log_probs=list(output.log_probs),
        versions=list(output.versions),
        finish=output.finish,
        seconds=time.monotonic() - began,
    )
