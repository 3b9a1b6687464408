"""Calls that an engine unit passes on to a server, and how they end.

Invariants: a call ends once; an aborted call returns what it has; a call that arrives while the engine is closed is
refused as busy, and the caller tries another engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from agentrl.engines.interface import CallRefusedError, EngineBusyError, Finish, Generated


class Piece(Protocol):
    """A part of an answer."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def log_probs(self) -> Sequence[float]: ...

    @property
    def finish(self) -> str | None: ...


class ForwardedCalls:
    def __init__(self) -> None:
        self.open = False
        """Whether new calls are accepted."""
        self._under_way: dict[str, asyncio.Event] = {}
        """The calls, each with the event that ends it."""
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._under_way)

    async def run(
        self,
        rid: str,
        pieces: AsyncIterator[Piece],
        version: int,
        *,
        deadline_s: float,
        on_progress: Callable[[Generated], None] | None = None,
    ) -> Generated:
        """Runs a call and collects its answer."""
        if not self.open:
            raise EngineBusyError("The engine loads weights and takes no calls.")
        if rid in self._under_way:
            raise CallRefusedError(f"The request {rid} is under way already.")
        began = time.monotonic()
        made = Generated(ids=[], log_probs=[], versions=[], finish="abort")
        ended = self._under_way[rid] = asyncio.Event()
        self._idle.clear()
        reading = asyncio.create_task(_read(pieces, made, version, began, on_progress), name=f"read {rid}")
        ending = asyncio.create_task(ended.wait(), name=f"end of {rid}")
        try:
            await asyncio.wait({reading, ending}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                made.finish = reading.result()
            made.seconds = time.monotonic() - began
            return made
        finally:
            for task in (reading, ending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            del self._under_way[rid]
            if not self._under_way:
                self._idle.set()

    async def abort(self, rid: str) -> None:
        """Aborts one call, or all for an empty `rid`; returns when they have ended."""
        for name, ended in list(self._under_way.items()):
            if rid in ("", name):
                ended.set()
        if not rid:
            await self._idle.wait()


async def _read(
    pieces: AsyncIterator[Piece],
    made: Generated,
    version: int,
    began: float,
    on_progress: Callable[[Generated], None] | None,
) -> Finish:
    finish: str | None = None
    async for piece in pieces:
        made.ids += piece.ids
        made.log_probs += piece.log_probs
        made.versions = [(version, len(made.ids))] if made.ids else []
        finish = piece.finish or finish
        if on_progress is not None and piece.ids:
            on_progress(_copy(made, began))
    return "stop" if finish == "stop" else "length" if finish == "length" else "abort"


def _copy(made: Generated, began: float) -> Generated:
    return Generated(
        ids=list(made.ids),
        log_probs=list(made.log_probs),
        versions=list(made.versions),
        finish=made.finish,
        seconds=time.monotonic() - began,
    )
