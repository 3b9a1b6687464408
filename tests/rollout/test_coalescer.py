"""Requests of the same moment are sent together, and the failure of one does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.rollout.batched_requests import Coalescer
from agentrl.store.database import StoreError, StoreUnavailableError
from tests.waiting import aeventually


async def test_requests_during_a_running_call_are_sent_together() -> None:
    batches: list[list[int]] = []

    async def even(numbers: Sequence[int]) -> list[bool]:
        batches.append(list(numbers))
        await asyncio.sleep(0)
        return [number % 2 == 0 for number in numbers]

    together = Coalescer(even)
    first = asyncio.create_task(together.act(0))
    await aeventually(lambda: batches, every_s=0)
    rest = await asyncio.gather(*(together.act(number) for number in range(1, 6)))
    assert await first
    assert rest == [False, True, False, True, False]
    assert batches == [[0], [1, 2, 3, 4, 5]]


async def test_a_faulty_request_fails_alone() -> None:
    async def refuses_three(numbers: Sequence[int]) -> list[bool]:
        if 3 in numbers:
            raise StoreError("three is refused")
        return [True for _ in numbers]

    together = Coalescer(refuses_three)
    seen = await asyncio.gather(*(together.act(number) for number in range(5)), return_exceptions=True)
    assert [answer is True for answer in seen] == [True, True, True, False, True]
    assert isinstance(seen[3], StoreError)


async def test_a_store_that_is_away_is_asked_once_for_all() -> None:
    asked = 0

    async def away(numbers: Sequence[int]) -> list[bool]:
        nonlocal asked
        asked += 1
        raise StoreUnavailableError("it is away")

    together = Coalescer(away)
    seen = await asyncio.gather(*(together.act(number) for number in range(5)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailableError) for answer in seen)
    assert asked == 1


async def test_a_cancelled_request_cancels_no_other() -> None:
    go_on = asyncio.Event()

    async def slowly(numbers: Sequence[int]) -> list[bool]:
        await go_on.wait()
        return [True for _ in numbers]

    together = Coalescer(slowly)
    asking = [asyncio.create_task(together.act(number)) for number in range(2)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.wait([asking[0]])
    go_on.set()
    assert await asking[1]
