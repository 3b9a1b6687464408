"""`records rescore`: new scores change what was not trained, once, whatever dies."""

from __future__ import annotations

import pytest

from agentrl.policies.status_tables import Actor
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Effect
from agentrl.steward import dead_owners
from agentrl.store import accounting, groups, lineages, owners, rescoring, steps, tasks
from agentrl.store.database import Database
from tests.steward.test_record_changes import admitted, change, exclude, record_of, score_all
from tests.store import flow


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
