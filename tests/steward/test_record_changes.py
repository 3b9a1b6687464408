"""`records exclude`, `requeue`, `cancel` and `rescore` as the steward serves them."""

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
from agentrl.steward import dead_owners, group_upkeep
from agentrl.steward.settings import StewardSettings
from agentrl.store import accounting, claims, groups, lineages, owners, rescoring, steps, tasks
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, StoreUnavailableError
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


# ---- requeue ----


async def test_requeued_seat_of_an_open_group_gets_an_attempt_that_costs_no_redraw(db: Database) -> None:
    task = await admitted(db, n=2)
    record = await failed(db)
    for attempt in (2, 3):
        assert await group_upkeep.open_next_attempts(db) == 1
        again = await failed(db)
        assert again.endswith(f"a{attempt}")
    assert await group_upkeep.open_next_attempts(db) == 0, "the seat is exhausted"
    effect: Effect = await change(db, "requeue", filter="status=failed", dry_run=True)
    assert effect.changes == ("1 seat of an open group is attempted again, which costs no re-draw",)
    assert effect.notes[0].startswith("2 records are refused because their seats are attempted again already")
    for _ in range(2):
        done: Done = await change(db, "requeue", ids=(again,))
        assert done.result["requeued"] == 1, "once per operation"
        await group_upkeep.open_next_attempts(db)
    newest = await failed(db)
    assert newest.endswith("a4")
    assert await group_upkeep.open_next_attempts(db) == 0, "it cost no re-draw, and gives none"
    await change(db, "requeue", ids=(newest,), id="op-2")
    assert await groups.close(db, task.id, flow.RULE, Actor.STEWARD) == "open", "the seat waits for its attempt"
    await group_upkeep.open_next_attempts(db)
    assert record != newest
    assert await flow.run_group(db, (0.0, 1.0)) == "ready"
    account = await accounting.account(db)
    assert account.balanced, account.problems


async def test_excluded_and_cancelled_records_can_be_requeued(db: Database) -> None:
    task = await admitted(db, n=3)
    running = await claimed(db)
    await change(db, "cancel", ids=(running,))
    claim = await flow.claim_one(db, "sampler-0.1")
    assert claim is not None
    await flow.end(db, claim, 1.0)
    await exclude(db, ids=(claim.record.id,))
    done: Done = await change(db, "requeue", ids=(running, claim.record.id))
    assert done.result == {"requeued": 2, "attempts": 2, "whole_tasks": 0, "refused": 0}
    assert await group_upkeep.open_next_attempts(db) == 2
    assert await group_upkeep.open_next_attempts(db) == 0
    assert await flow.run_group(db, (0.0, 1.0, 0.5)) == "ready"
    closed = await tasks.get(db, task.id)
    assert closed.members == 3
    account = await accounting.account(db)
    assert account.balanced, account.problems


async def test_round_is_not_left_over_a_seat_that_was_requeued_meanwhile(db: Database) -> None:
    task = await admitted(db, n=2)
    records = [await claimed(db), await claimed(db)]
    await change(db, "cancel", ids=tuple(records))
    (read_before,) = await groups.read(db, [task.id])
    await change(db, "requeue", ids=(records[0],), id="op-2")
    assert await groups.close_group(db, read_before, flow.RULE, Actor.STEWARD) == "gone"
    assert await group_upkeep.open_next_attempts(db) == 1
    assert (await tasks.get(db, task.id)).round == 1


async def test_requeue_of_a_seat_that_was_cut_off_is_finished_when_it_is_repeated(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await admitted(db, n=2)
    records = [await claimed(db), await claimed(db)]
    await change(db, "cancel", ids=tuple(records))
    (read_before,) = await groups.read(db, [task.id])
    done: Done
    done, deaths = await repeated_after_deaths(
        monkeypatch, lambda: change(db, "requeue", filter="status=cancelled", id="op-2")
    )
    assert (deaths, done.result["requeued"]) == (2, 2)
    assert await groups.close_group(db, read_before, flow.RULE, Actor.STEWARD) == "gone"
    assert await group_upkeep.open_next_attempts(db) == 2
    assert await flow.run_group(db, (0.0, 1.0)) == "ready"
    again: Done = await change(db, "requeue", ids=tuple(records), id="op-2")
    assert again.result["requeued"] == 2
    assert (await tasks.get(db, task.id)).status == "ready", "the repeated operation requeues nothing else"
    assert (await accounting.account(db)).balanced


@pytest.mark.parametrize("killed", [True, False])
async def test_record_whose_task_is_leased_before_it_is_requeued_is_refused(
    db: Database, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    task = await admitted(db, n=3)
    record = await claimed(db)
    await change(db, "cancel", ids=(record,))
    assert await flow.run_group(db, (0.0, 1.0)) == "ready"
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)

    async def leases_first(*args: Any, **kwargs: Any) -> Any:
        assert await steps.lease(db, flow.step_of(lineage.id, 1, [await tasks.get(db, task.id)]))
        if killed:
            raise StoreUnavailableError("killed")
        return await requeue(*args, **kwargs)

    requeue = tasks.requeue
    with monkeypatch.context() as patched:
        patched.setattr(tasks, "requeue", leases_first)
        if killed:
            with pytest.raises(StoreUnavailableError):
                await change(db, "requeue", ids=(record,), id="op-2")
        else:
            done: Done = await change(db, "requeue", ids=(record,), id="op-2")
            assert (done.result["requeued"], done.result["refused"]) == (0, 1)
    with pytest.raises(RefusedError, match=f"{record} is over: {task.id} is leased"):
        await change(db, "requeue", ids=(record,), id="op-2")
    assert (await accounting.account(db)).balanced


async def test_record_of_a_closed_group_has_its_whole_task_sampled_again(db: Database) -> None:
    task = await admitted(db, n=3)
    record = await claimed(db)
    await change(db, "cancel", ids=(record,))
    assert await flow.run_group(db, (0.0, 1.0)) == "ready"
    effect: Effect = await change(db, "requeue", ids=(record,), dry_run=True)
    assert effect.changes == ("1 task is sampled again as a whole, because the group is closed: 3 new records",)
    assert effect.loses == ("2 records of their present rounds are given up",)
    for _ in range(2):
        done: Done = await change(db, "requeue", ids=(record,))
        assert done.result["requeued"] == 1
    again = await tasks.get(db, task.id)
    assert (again.status, again.round) == ("queued", 2), "once per operation"
    assert (await accounting.account(db)).balanced


# ---- cancel ----


async def test_cancelled_records_free_their_places_and_the_group_closes_without_them(db: Database) -> None:
    task = await admitted(db, n=4)
    running = await claimed(db)
    waiting = f"{task.id}#r1.s3.a1"
    effect: Effect = await change(db, "cancel", ids=(running, waiting), dry_run=True)
    assert effect.changes[0] == "1 waiting record will not be sampled"
    assert effect.loses == ("1 episode stops, and 0 generated tokens are given up",)
    for _ in range(2):
        done: Done = await change(db, "cancel", ids=(running, waiting), note="wrong prompt")
        assert done.result["cancelled"] == 2, "once per operation"
    one = await record_of(db, running)
    assert (one.status, one.reason) == ("cancelled", "cancelled: wrong prompt")
    assert not await claims.fail(db, running, "sampler-0.1", Outcome.TOOL_SERVER_FAILED), "the sampler lost it"
    assert await flow.run_group(db, (0.0, 1.0)) == "ready"
    assert (await tasks.get(db, task.id)).members == 2
    account = await accounting.account(db)
    assert account.balanced, account.problems


# ---- rescore ----


async def test_new_scores_change_the_baseline_of_a_closed_group_and_keep_the_former_ones(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1, scores=(0.0, 1.0, 0.0))
    record = task.shares[0].record
    effect: Effect = await change(db, "rescore", ids=(record,), dry_run=True)
    assert effect.changes[0] == "1 record of 1 group is scored again by the scorer of its task, in the samplers"
    done: Done = await change(db, "rescore", ids=(record,))
    assert done.under_way == "0 of 1 record scored again, by samplers"
    assert await score_all(db, 1.0) == []
    done = await change(db, "rescore", ids=(record,))
    assert done.result == {"rescored": 1, "changed": 1, "refused": 0}
    assert done.lines[1] == "1 score changed: from 0 to 1 on average"
    one = await record_of(db, record)
    assert (one.score, one.scores_before, one.score_parts) == (1.0, [0.0], {"right": 1.0})
    now = await tasks.get(db, task.id)
    assert now.baseline is not None
    assert now.baseline.mean == pytest.approx(2 / 3)
    stored = {data["_id"]: data["advantage"] for data in await db.find("DBRecordData", {})}
    assert stored == {share.record: share.advantage for share in now.shares}
    assert (await accounting.account(db)).balanced


async def test_open_group_waits_for_a_new_score(db: Database) -> None:
    task = await admitted(db, n=2)
    for score in (0.0, 1.0):
        claim = await flow.claim_one(db, "sampler-0.1")
        assert claim is not None
        await flow.end(db, claim, score)
    await change(db, "rescore", filter="score=0")
    assert await groups.close(db, task.id, flow.RULE, Actor.STEWARD) == "open"
    assert await score_all(db, 0.5) == []
    assert await groups.close(db, task.id, flow.RULE, Actor.STEWARD) == "ready"
    closed = await tasks.get(db, task.id)
    assert closed.baseline is not None
    assert closed.baseline.mean == pytest.approx(0.75)
    (again,) = await db.find("Record", {"score": 0.5})
    assert again["score_parts"] == {"right": 0.5}
    assert (await accounting.account(db)).balanced


async def test_group_that_a_step_leases_first_keeps_its_scores_and_the_command_says_so(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1)
    await change(db, "rescore", filter="score=0")
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    assert await steps.lease(db, flow.step_of(lineage.id, 1, [task]))
    (why,) = await score_all(db, 1.0)
    assert why.startswith(f"its score stays: {task.id} is leased")
    done: Done = await change(db, "rescore", filter="score=0")
    assert done.result == {"rescored": 0, "changed": 0, "refused": 1}
    assert "keeps its score" in done.lines[1]
    assert (await accounting.account(db)).balanced


async def test_what_a_dead_sampler_took_is_scored_by_another(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1)
    await change(db, "rescore", filter="score=0")
    assert await rescoring.claim(db, "sampler-0.1") is not None
    assert await rescoring.claim(db, "sampler-1.1") is None, "another has it"
    await owners.expire(db, "sampler-0.1", "it was killed")
    await dead_owners.expire(db)
    await flow.sampler(db, "sampler-1.1")
    assert await score_all(db, 0.25, "sampler-1.1") == []
    assert (await record_of(db, task.shares[0].record)).score == 0.25


async def test_new_score_that_was_cut_off_before_its_record_knew_is_finished(db: Database) -> None:
    (task,) = await flow.ready_tasks(db, 1, scores=(0.0, 1.0, 0.0))
    record = task.shares[0].record
    await change(db, "rescore", ids=(record,))
    assert await rescoring._close_again(db, task, record, 1.0, flow.RULE)
    # The sampler dies here; another one excludes, and the trainer leases.
    await exclude(db, ids=(task.shares[2].record,), id="op-2")
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    now = await tasks.get(db, task.id)
    assert [share.score for share in now.shares] == [1.0, None]
    await flow.commit(db, lineage.id, 1, [now]) if now.signal else await groups.settle(db, [now])
    assert (await record_of(db, record)).score == 1.0
    assert await score_all(db, 1.0) == []
    account = await accounting.account(db)
    assert account.balanced, account.problems


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
