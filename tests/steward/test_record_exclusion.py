"""`records exclude` as the steward serves it."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import RefusedError
from agentrl.protocol.data_commands import Done, ExcludeRecords
from agentrl.protocol.effects import Effect
from agentrl.store import lineages, tasks
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database
from agentrl.store.documents import DispatchedSamplingTask, call_id, to_bson
from tests.steward.test_queries import asked
from tests.store import flow

SCORES = (0.0, 1.0, 1.0)


async def exclude(db: Database, *, dry_run: bool = False, id: str = "op-1", **args: Any) -> Any:
    return await asked(db, "exclude_records", ExcludeRecords(**args), dry_run=dry_run, id=id)


async def statuses(db: Database) -> dict[str, int]:
    found = await db.find("Record", {}, projection=["status"])
    return {status: sum(one["status"] == status for one in found) for status in {one["status"] for one in found}}


async def test_preview_says_what_follows_and_changes_nothing(db: Database) -> None:
    first, second = await flow.ready_tasks(db, 2, scores=SCORES)
    ids = (first.shares[0].record, first.shares[1].record, second.shares[0].record)
    effect: Effect = await exclude(db, ids=ids, dry_run=True)
    assert effect.changes[0] == "3 records of 2 groups will not train"
    assert effect.loses == ("1 group would have too few records: sampled again in the next round",)
    assert await statuses(db) == {"scored": 6}


async def test_records_are_found_by_filter_and_those_that_trained_stay(db: Database) -> None:
    trained, free = await flow.ready_tasks(db, 2, scores=SCORES)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await flow.commit(db, lineage.id, 1, [trained])
    effect: Effect = await exclude(db, filter="score < 0.5", dry_run=True)
    assert effect.changes[0] == "1 record of 1 group will not train"
    assert effect.notes == ("1 other record match, but trained already or are over: they stay",)
    for _ in range(2):
        done: Done = await exclude(db, filter="score < 0.5", note="leaked answers")
        assert done.result == {"excluded": 1, "sampled_again": 0, "refused": 0}, "once per operation"
    assert (await statuses(db))["excluded"] == 1
    assert (await tasks.get(db, free.id)).members == 2


async def test_everything_that_a_sampler_or_an_engine_made_is_found(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1, scores=(0.0, 1.0, 1.0, 0.0))
    first, second, *_ = (share.record for share in task.shares)
    await db.update_many("Record", {"_id": first}, {"$set": {"owner": "sampler-1.4"}})
    call = DispatchedSamplingTask(id=call_id(second, 0), record=second, task=task.id, engine="engine-2")
    await db.insert_many(CALLS, to_bson([call]))
    for unit in ("sampler-1", "engine-2"):
        effect: Effect = await exclude(db, made_by=unit, dry_run=True)
        assert effect.changes[0] == "1 record of 1 group will not train"
    for nothing in ("sampler", "sampler-11", "engine-20", "engine"):
        with pytest.raises(RefusedError, match="No scored record"):
            await exclude(db, made_by=nothing, dry_run=True)
    await exclude(db, made_by="engine-2")
    record = await db.find_one("Record", {"status": "excluded"})
    assert record is not None
    assert record["_id"] == second


async def test_refusals_name_the_step(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await flow.commit(db, lineage.id, 1, [task])
    with pytest.raises(RefusedError, match=f"trained in step 1 of {lineage.id}"):
        await exclude(db, ids=(task.shares[0].record,), dry_run=True)


def test_records_are_named_or_found_but_not_both() -> None:
    assert ExcludeRecords().problem()
    assert ExcludeRecords(ids=("a",), filter="score = 1").problem()
    assert not ExcludeRecords(made_by="engine-2", filter="score = 1").problem()
