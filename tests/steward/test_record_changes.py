"""How the steward finds the records of a change, previews it, refuses it, and makes it once."""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from agentrl.errors import RefusedError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor
from agentrl.protocol.data_changes import (
    CancelRecords,
    Done,
    ExcludeRecords,
    RequeueRecords,
    RescoreRecords,
)
from agentrl.protocol.effects import Effect
from agentrl.steward import group_upkeep
from agentrl.steward.settings import StewardSettings
from agentrl.store import accounting, claims, groups, lineages, rescoring, steps, tasks
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id
from agentrl.store.documents import DispatchedSamplingTask, Record, Task, load, to_bson
from agentrl.store.weight_documents import CanaryReading, Publication
from tests.steward.test_queries import asked
from tests.store import flow
from tests.store.deaths import repeated_after_deaths

SCORES = (0.0, 1.0, 1.0)
KINDS = {
    "exclude": ExcludeRecords,
    "requeue": RequeueRecords,
    "cancel": CancelRecords,
    "rescore": RescoreRecords,
}


async def change(db: Database, verb: str, *, dry_run: bool = False, id: str = "op-1", **args: Any) -> Any:
    return await asked(db, f"{verb}_records", KINDS[verb](**args), dry_run=dry_run, id=id)


async def exclude(db: Database, **args: Any) -> Any:
    return await change(db, "exclude", **args)


async def record_of(db: Database, id: str) -> Record:
    found = await db.find_one("Record", {"_id": id})
    assert found is not None
    return load(Record, found)


async def claimed(db: Database) -> str:
    """A record that a sampler runs."""
    claim = await flow.claim_one(db, "sampler-0.1")
    assert claim is not None
    return claim.record.id


async def failed(db: Database) -> str:
    record = await claimed(db)
    assert await claims.fail(db, record, "sampler-0.1", Outcome.TOOL_SERVER_FAILED, "the server died")
    return record


async def admitted(db: Database, n: int = 3) -> Task:
    await flow.sampler(db)
    (task,) = await flow.queue(db, 1)
    await flow.admit(db, task, n=n)
    return await tasks.get(db, task.id)


async def score_all(db: Database, score: float, owner: str = "sampler-0.1") -> list[str]:
    """What a sampler does with the records that operators want scored again. Returns why some keep their scores."""
    kept = []
    while (claim := await rescoring.claim(db, owner)) is not None:
        if why := await rescoring.finish(db, claim.record, owner, score, flow.RULE, parts={"right": score}):
            kept.append(why)
    return kept


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


async def test_only_what_an_engine_generated_since_its_last_canary_is_chosen(db: Database) -> None:
    trained, task = await flow.ready_tasks(db, 2, scores=(0.0, 1.0, 1.0, 0.0))
    before, across, after, other = (share.record for share in task.shares)
    passed = datetime.now(UTC).replace(microsecond=0)
    early, late = passed - timedelta(seconds=5), passed + timedelta(seconds=5)
    readings = [
        CanaryReading("engine-2.1", 0.0, 0.0, 1e-3, early),
        CanaryReading("engine-2.7", 0.0, 0.0, 1e-3, passed),
        CanaryReading("engine-1.1", 0.0, 0.0, 1e-3, late),
    ]
    await db.insert_many("Publication", to_bson([Publication(id=4, canary=readings), Publication(id=5)]))
    # A record that ended later, without text of this engine since then, stays.
    calls = [(before, early, "engine-2.7"), (across, early, "engine-2.7"), (across, late, "engine-2.7")]
    calls += [(after, None, "engine-2.7"), (other, late, "engine-1.1"), (trained.shares[0].record, late, "engine-2.7")]
    made = [
        DispatchedSamplingTask(id=call_id(record, place), record=record, engine=engine, done_at=at)
        for place, (record, at, engine) in enumerate(calls)
    ]
    await db.insert_many(CALLS, to_bson(made))
    await db.update_many("Record", {}, {"$set": {"finished_at": late}})
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await flow.commit(db, lineage.id, 1, [trained])
    effect: Effect = await exclude(db, made_by="engine-2", since_canary=True, dry_run=True)
    assert effect.changes[0] == "2 records of 1 group will not train"
    assert "engine-2.7 generated since it passed its last canary, of version 4 at" in effect.notes[0]
    assert effect.notes[-1] == "1 other record match, but trained already or are over: they stay"
    first_life: Effect = await exclude(db, made_by="engine-2.7", since_canary=True, dry_run=True)
    assert first_life.changes == effect.changes
    with pytest.raises(RefusedError, match=r"No scored record .* that engine-1\.1 generated .* of version 4") as none:
        await exclude(db, made_by="engine-1.1", since_canary=True, filter="score > 5", dry_run=True)
    assert "--made-by UNIT.N" in none.value.hint
    for nothing in ("engine-3", "sampler-0"):
        with pytest.raises(RefusedError, match=f"{nothing} passed no canary"):
            await exclude(db, made_by=nothing, since_canary=True, dry_run=True)
    await exclude(db, made_by="engine-2", since_canary=True)
    excluded = await db.find("Record", {"status": "excluded"}, projection=["_id"])
    assert {one["_id"] for one in excluded} == {across, after}


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
    assert "--made-by" in ExcludeRecords(filter="score = 1", since_canary=True).problem()


async def test_records_that_another_operation_excluded_are_not_counted(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1, scores=(0.0, 1.0, 1.0, 0.0))
    first, second, *_ = (share.record for share in task.shares)
    await exclude(db, ids=(first,), id="op-1")
    done: Done = await exclude(db, ids=(first, second), id="op-2")
    assert done.result["excluded"] == 1
    effect: Effect = await exclude(db, ids=(first, second), dry_run=True)
    assert effect.notes == ("2 records of them were excluded before",)


async def test_refusals_are_counted_by_their_reasons(db: Database) -> None:
    trained, free = await flow.ready_tasks(db, 2, scores=SCORES)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await flow.commit(db, lineage.id, 1, [trained])
    ids = tuple(share.record for task in (trained, free) for share in task.shares)
    for verb in ("exclude", "rescore"):
        effect: Effect = await change(db, verb, ids=ids, dry_run=True)
        (refused,) = [note for note in effect.notes if "refused" in note]
        assert refused.startswith("3 records are refused because a step leased or trained them: ")
        assert refused.endswith(f"trained in step 1 of {lineage.id}.")
    with pytest.raises(RefusedError, match="is scored; only records that failed"):
        await change(db, "requeue", ids=ids[:1], dry_run=True)
    with pytest.raises(RefusedError, match="only records that have not ended"):
        await change(db, "cancel", ids=ids[:1], dry_run=True)
    with pytest.raises(RefusedError, match="There is no record no/such"):
        await change(db, "cancel", ids=("no/such",), dry_run=True)


# ---- all of them ----


async def test_steward_that_dies_at_any_write_leaves_each_record_changed_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flow.ready_tasks(db, 3, scores=(0.0, 1.0, 1.0, 0.5))
    await db.update_many("Record", {"seat": 3}, {"$set": {"status": "failed"}})
    for verb, filter, count in (
        ("rescore", "score=1", 6),
        ("exclude", "status=scored and score=0", 3),
        ("requeue", "status=failed", 3),
    ):
        done: Done
        done, deaths = await repeated_after_deaths(
            monkeypatch, partial(change, db, verb, filter=filter, id=f"op-{verb}")
        )
        assert deaths > 1
        if verb == "rescore":
            await score_all(db, 0.75)
            done = await change(db, verb, filter=filter, id=f"op-{verb}")
            assert done.result["rescored"] == count
        elif verb == "exclude":
            assert done.result["excluded"] == count
            assert (await statuses(db))["excluded"] == count
        else:
            assert done.result["requeued"] == count
            assert {(task["status"], task["round"]) for task in await db.find("Task", {})} == {("queued", 2)}
        account = await accounting.account(db)
        assert account.balanced, (verb, account.problems)


@pytest.mark.parametrize("seed", range(8))
async def test_account_balances_after_any_order_of_decisions_steps_and_rollbacks(db: Database, seed: int) -> None:
    chance = random.Random(seed)
    await flow.sampler(db)
    rows = await flow.queue(db, 4)
    for row in rows:
        await flow.admit(db, row, n=4)
    lives, number = 1, 1
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    for act in range(40):
        names = [str(one["_id"]) for one in await db.find("Record", {}, projection=["_id"])]
        acts = ("end", "end", "end", "fail", "decide", "decide", "rescored", "upkeep", "train", "rollback")
        match chance.choice(acts):
            case "end" | "fail" as how:
                claim = await flow.claim_one(db, "sampler-0.1")
                if claim is not None and how == "end":
                    await flow.end(db, claim, chance.choice((0.0, 0.5, 1.0)))
                    await groups.close(db, claim.task.id, flow.RULE, Actor.SAMPLER)
                elif claim is not None:
                    await claims.fail(db, claim.record.id, "sampler-0.1", Outcome.TOOL_SERVER_FAILED)
            case "decide":
                verb = chance.choice(sorted(KINDS))
                with contextlib.suppress(RefusedError):
                    await change(db, verb, ids=tuple(chance.sample(names, min(3, len(names)))), id=f"op-{act}")
            case "rescored":
                await score_all(db, chance.choice((0.0, 0.5, 1.0)))
            case "upkeep":
                await group_upkeep.open_next_attempts(db)
                await group_upkeep.close(db, StewardSettings(environments={}))
                for task in await db.find("Task", {"status": "queued"}):
                    await flow.admit(db, load(Task, task), n=4)
            case "train":
                chosen = [one.task for one in await steps.ready(db, limit=1) if one.records]
                if chosen:
                    await flow.commit(db, lineage.id, number, chosen)
                    number += 1
            case "rollback":
                lives, number = lives + 1, 1
                lineage = await lineages.begin(db, f"trainer-0.{lives}", parent_checkpoint="", after_step=0)
    account = await accounting.account(db)
    assert account.balanced, account.problems
    committed = await db.find("Step", {"status": "committed"})
    trained = {record for step in committed for record in step["records"]}
    found = await db.find("Record", {"_id": {"$in": sorted(trained)}})
    assert {record["status"] for record in found} <= {"scored"}
