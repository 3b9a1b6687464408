"""Coalesces calls: items that arrive while a batch is under way go into the next batch.

What follows within a moment is waited for: a round trip costs more than what it carries.

Invariants: each asker hears of its own item only; a failure that may be the fault of one item is tried for each alone,
so no item fails for another; an item whose caller is cancelled is done all the same.
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
    """`act(item)` is True or False, as the batch says."""

    def __init__(self, batch: Callable[[Sequence[A]], Awaitable[Sequence[bool]]]) -> None:
        """`batch` may be repeated, and answers in the order of its items."""
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
