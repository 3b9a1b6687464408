"""`records requeue` and `cancel`: seats are attempted again, or given up, and their groups close."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import RefusedError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Effect
from agentrl.steward import group_upkeep
from agentrl.store import accounting, claims, groups, lineages, steps, tasks
from agentrl.store.database import Database, StoreUnavailableError
from tests.steward.test_record_changes import admitted, change, claimed, exclude, failed, record_of
from tests.store import flow
from tests.store.deaths import repeated_after_deaths

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
