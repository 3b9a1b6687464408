"""Coalesces calls: items that arrive while a batch is under way go into the next batch.

A batch waits a moment for more items, because a round trip costs more than its items.

Invariants: each caller gets the result of its own item only; if a batch fails and one item may be the cause, each item
is tried alone, so no item fails because of another; an item whose caller is cancelled is still processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from agentrl.store.database import StoreUnavailableError

A = TypeVar("A")
MOST_AT_ONCE = 100
GATHER_S = 0.05


class Coalescer(Generic[A]):
    """`act(item)` returns True or False, the result of its item in the batch."""

    def __init__(self, batch: Callable[[Sequence[A]], Awaitable[Sequence[bool]]]) -> None:
        """`batch` may be called again for the same items, and returns results in the order of its items."""
        self._batch = batch
        self._waiting: list[tuple[A, asyncio.Future[bool]]] = []
        self._working: asyncio.Task[None] | None = None

    async def act(self, item: A) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="end episodes together")
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            several, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            await self._do(several)

    async def _do(self, several: Sequence[tuple[A, asyncio.Future[bool]]]) -> None:
        try:
            results = await self._batch([item for item, _ in several])
        except Exception as failed:  # noqa: BLE001 - it is raised in the callers
            if len(several) > 1 and not isinstance(failed, StoreUnavailableError):
                for one in several:
                    await self._do([one])
                return
            for _, answer in several:
                if not answer.done():
                    answer.set_exception(failed)
        else:
            for (_, answer), held in zip(several, results, strict=True):
                if not answer.done():
                    answer.set_result(held)
