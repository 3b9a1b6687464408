"""Several seats by one claim, beside other samplers; and what claims that follow each other share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agentrl.store import claims
from agentrl.store.call_writer import OwnershipError, Writer
from agentrl.store.claims import BEGINNING_EVERY_S, Claim, LastClaims
from agentrl.store.database import Database, Filter, Update
from agentrl.store.document_ids import call_id
from agentrl.store.documents import DispatchedSamplingTask
from tests.store.flow import admit, claim_one, queue, sampler

MINE, OTHER = "sampler-0.1", "sampler-1.1"


class Interrupted(Database):
    """A database on which another act happens after a claim has found Records and before it takes them."""

    def __init__(self, db: Database, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(db._client, db.name)
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    async def update_many(self, collection: str, filter: Filter, update: Update) -> int:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().update_many(collection, filter, update)


class LosesAnswers(Database):
    """A database that loses the first answer to each write, so that the write is repeated."""

    def __init__(self, db: Database) -> None:
        super().__init__(db._client, db.name)

    async def update_many(self, collection: str, filter: Filter, update: Update) -> int:
        await super().update_many(collection, filter, update)
        return await super().update_many(collection, filter, update)


def places(claimed: Sequence[Claim | None]) -> list[tuple[int, int]]:
    """Row and seat."""
    return [(one.task.row, one.record.seat) for one in claimed if one is not None]


async def test_several_seats_are_claimed_at_once_in_the_order_of_admission(db: Database) -> None:
    for task in await queue(db, 3):
        await admit(db, task, n=2)
    await sampler(db, MINE)
    assert places(first := await claims.claim_several(db, MINE, 3)) == [(0, 0), (0, 1), (1, 0)]
    assert all(one.fresh and one.record.owner == MINE for one in first)
    assert places(await claims.claim_several(db, MINE, 100)) == [(1, 1), (2, 0), (2, 1)]
    assert await claims.claim_several(db, MINE, 100) == []
    stored = await db.find("Record", {"status": "running", "owner": MINE, "started_at": {"$type": "date"}})
    assert len(stored) == 6


async def test_many_samplers_share_what_is_open(db: Database) -> None:
    for task in await queue(db, 6):
        await admit(db, task, n=8)

    async def take(owner: str) -> list[str]:
        mine, last = [], LastClaims(db)
        while claimed := await claims.claim_several(db, owner, 5, last=last):
            mine += [one.record.id for one in claimed]
        return mine

    taken = await asyncio.gather(*(take(f"sampler-{number}.1") for number in range(8)))
    everything = [record for mine in taken for record in mine]
    assert len(everything) == len(set(everything)) == 48
    for number, mine in enumerate(taken):
        assert await db.count("Record", {"owner": f"sampler-{number}.1"}) == len(mine)


async def test_what_another_sampler_takes_first_is_left_out(db: Database) -> None:
    for task in await queue(db, 2):
        await admit(db, task, n=2)
    between = Interrupted(db, lambda: claims.claim_several(db, OTHER, 2))
    assert places(await claims.claim_several(between, MINE, 3)) == [(1, 0)]
    assert places(await claims.claim_several(db, MINE, 3)) == [(1, 1)]


async def test_a_claim_that_loses_all_found_records_takes_the_next_ones(db: Database) -> None:
    for task in await queue(db, 2):
        await admit(db, task, n=2)
    between = Interrupted(db, lambda: claims.claim_several(db, OTHER, 2))
    assert places(await claims.claim_several(between, MINE, 2)) == [(1, 0), (1, 1)]


async def test_a_record_that_was_begun_and_given_back_meanwhile_is_not_claimed_as_new(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)

    async def begin_and_give_back() -> None:
        begun = await claim_one(db, OTHER)
        assert begun is not None
        assert await claims.hand_back(db, begun.record.id, OTHER)

    between = Interrupted(db, begin_and_give_back)
    claimed = await claims.claim_several(between, MINE, 2)
    claimed += await claims.claim_several(between, MINE, 2)
    assert sorted((one.record.seat, one.fresh) for one in claimed) == [(0, False), (1, True)]


async def test_a_record_that_was_continued_meanwhile_is_claimed_in_its_new_state(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=1)
    begun = await claim_one(db, OTHER)
    assert begun is not None
    await claims.hand_back(db, begun.record.id, OTHER)

    async def go_on() -> None:
        assert await claim_one(db, OTHER)
        await db.update_many("Record", {"_id": begun.record.id}, {"$set": {"turns": 3}})
        await claims.hand_back(db, begun.record.id, OTHER)

    [claimed] = await claims.claim_several(Interrupted(db, go_on), MINE, 2)
    assert (claimed.fresh, claimed.record.turns, claimed.record.owner) == (False, 3, MINE)


async def test_those_begun_and_those_that_are_new_are_taken_in_one_order(db: Database) -> None:
    for task in await queue(db, 4):
        await admit(db, task, n=1)
    begun = await claim_one(db, OTHER)
    assert begun is not None
    await claims.hand_back(db, begun.record.id, OTHER)
    last = LastClaims(db, clock=lambda: 0.0)
    rounds = [places(await claims.claim_several(db, MINE, 2, last=last)) for _ in range(3)]
    assert rounds == [[(0, 0)], [(1, 0), (2, 0)], [(3, 0)]]


async def test_a_claim_whose_answer_was_lost_is_still_a_claim(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=3)
    assert places(await claims.claim_several(LosesAnswers(db), MINE, 3)) == [(0, 0), (0, 1), (0, 2)]


async def test_a_record_that_is_open_again_is_seen_by_claims_that_went_beyond_it(db: Database) -> None:
    for task in await queue(db, 2):
        await admit(db, task, n=1)
    last = LastClaims(db, clock=lambda: 0.0)
    first = await claim_one(db, MINE, last=last)
    assert places([first, await claim_one(db, MINE, last=last)]) == [(0, 0), (1, 0)]
    assert first is not None
    assert await claims.hand_back(db, first.record.id, MINE)
    again = await claim_one(db, MINE, last=last)
    assert again is not None
    assert (again.record.id, again.fresh) == (first.record.id, False)


async def test_what_opens_behind_the_front_waits_for_the_next_look_at_the_beginning(db: Database) -> None:
    for task in await queue(db, 4):
        await admit(db, task, n=1)
    now = 0.0
    last = LastClaims(db, clock=lambda: now)
    first = await claim_one(db, MINE, last=last)
    assert first is not None
    await claim_one(db, MINE, last=last)
    assert await claims.hand_back(db, first.record.id, MINE)
    assert places([await claim_one(db, MINE, last=last)]) == [(2, 0)], "it goes on where it was"
    now = BEGINNING_EVERY_S
    assert places([await claim_one(db, MINE, last=last)]) == [(0, 0)]


async def test_a_repeat_of_what_another_owner_wrote_is_refused_as_often_as_it_is_asked_for(db: Database) -> None:
    def call(owner: str, seat: int) -> DispatchedSamplingTask:
        record = f"shop/train/0/0#r1.s{seat}.a1"
        id = call_id(record, 0)
        return DispatchedSamplingTask(id=id, record=record, task="t", owner=owner, text=owner)

    await Writer(db).insert(call(OTHER, 0))
    writer = Writer(db)
    wanted = [call(MINE, 0), call(MINE, 0), call(MINE, 1), call(MINE, 1)]
    seen = await asyncio.gather(*(writer.insert(one) for one in wanted), return_exceptions=True)
    assert [type(one) for one in seen] == [OwnershipError, OwnershipError, type(None), type(None)]
    stored = await db.find("DispatchedSamplingTask", {}, sort=[("_id", 1)])
    assert [one["text"] for one in stored] == [OTHER, MINE]
