"""Excluded records never train, their groups close without them, and the account balances."""

from __future__ import annotations

import random

import pytest

from agentrl.errors import RefusedError
from agentrl.policies.status_tables import Actor
from agentrl.store import accounting, chosen_records, exclusions, groups, lineages, steps, tasks
from agentrl.store.database import Database
from agentrl.store.documents import Task
from tests.store.flow import RULE, admit, claim_one, commit, end, queue, ready_tasks, sampler, step_of


async def exclude(db: Database, *ids: str, by: str = "op-1") -> list[bool]:
    enough = []
    for one in (await chosen_records.read(db, ids)).values():
        assert exclusions.refusal(one) is None or exclusions.is_unfinished(one, by)
        assert one.task is not None
        enough.append(await exclusions.exclude(db, one.task, [one.record.id], "bad tool", by=by, rule=RULE))
    return enough


async def refusal(db: Database, record: str) -> str:
    refused = exclusions.refusal((await chosen_records.read(db, [record]))[record])
    return refused.sentence if refused else ""


def records_of(task: Task) -> list[str]:
    return [share.record for share in task.shares]


async def test_closed_group_gets_the_baseline_of_its_other_records(db: Database) -> None:
    (task,) = await ready_tasks(db, 1, scores=(0.0, 1.0, 1.0, 0.0))
    first, *others = records_of(task)
    for _ in range(2):
        assert await exclude(db, first) == [True], "the same operation may be repeated"
    now = await tasks.get(db, task.id)
    assert now.status == "ready"
    assert now.baseline is not None
    assert (now.baseline.valid, now.baseline.mean) == (3, pytest.approx(2 / 3))
    assert records_of(now) == others
    record = await db.find_one("Record", {"_id": first})
    assert record is not None
    assert (record["status"], record["reason"], record["excluded_by"]) == ("excluded", "excluded: bad tool", "op-1")
    shares = {share.record: share.advantage for share in now.shares} | {first: None}
    stored = {data["_id"]: data["advantage"] for data in await db.find("DBRecordData", {})}
    assert stored == shares
    assert (await accounting.account(db)).balanced


async def test_record_of_an_open_group_is_no_member_when_it_closes(db: Database) -> None:
    await sampler(db)
    (task,) = await queue(db, 1)
    await admit(db, task, n=3)
    ended = []
    for score in (0.0, 1.0, 1.0):
        claim = await claim_one(db, "sampler-0.1")
        assert claim is not None
        await end(db, claim, score)
        ended.append(claim.record.id)
        if len(ended) == 1:
            await exclude(db, ended[0])
    assert await groups.close(db, task.id, RULE, Actor.SAMPLER) == "ready"
    closed = await tasks.get(db, task.id)
    assert records_of(closed) == ended[1:]
    assert not closed.signal, "the other scores are equal"
    assert (await accounting.account(db)).balanced


async def test_group_with_too_few_records_left_is_sampled_again(db: Database) -> None:
    (task,) = await ready_tasks(db, 1, scores=(0.0, 1.0))
    assert await exclude(db, records_of(task)[0]) == [False]
    again = await tasks.get(db, task.id)
    assert (again.status, again.round, again.reason) == ("queued", 2, exclusions.TOO_FEW)
    assert (await accounting.account(db)).balanced


async def test_a_record_in_a_step_is_refused_with_its_number_also_after_a_rollback(db: Database) -> None:
    leased, trained = await ready_tasks(db, 2)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await commit(db, lineage.id, 1, [trained])
    assert await steps.lease(db, step_of(lineage.id, 2, [leased]))
    assert await refusal(db, records_of(trained)[0]) == f"{records_of(trained)[0]} trained in step 1 of {lineage.id}."
    assert "is leased by step 2 of" in await refusal(db, records_of(leased)[0])
    await lineages.begin(db, "trainer-0.2", parent_checkpoint="", after_step=0)
    assert (await tasks.get(db, trained.id)).status == "ready"
    assert "trained, before a rollback, in step 1 of" in await refusal(db, records_of(trained)[0])
    assert await refusal(db, records_of(leased)[0]) == "", "its step was released"


async def test_lease_after_the_plan_wins(db: Database) -> None:
    (task,) = await ready_tasks(db, 1, scores=(0.0, 1.0, 1.0))
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await steps.lease(db, step_of(lineage.id, 1, [task]))
    with pytest.raises(RefusedError, match="went on meanwhile"):
        await exclusions.exclude(db, task, records_of(task)[:1], "", by="op-1", rule=RULE)
    record = await db.find_one("Record", {"_id": records_of(task)[0]})
    assert record is not None
    assert record["status"] == "scored"


async def test_overtaken_closing_gives_an_excluded_record_no_advantage(db: Database) -> None:
    (task,) = await ready_tasks(db, 1, scores=(0.0, 1.0, 1.0, 0.0))
    first = records_of(task)[0]
    await exclude(db, first)
    # The process that closed the group writes what follows from its shares only now.
    await groups._write_advantages(db, task.shares)
    stored = await db.find_one("DBRecordData", {"_id": first})
    assert stored is not None
    assert stored["advantage"] is None


async def test_exclusion_after_the_trainer_looked_leaves_the_record_out_of_its_step(db: Database) -> None:
    (task,) = await ready_tasks(db, 1, scores=(0.0, 1.0, 1.0, 0.0))
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await db.update_many("DBRecordData", {"_id": {"$in": records_of(task)[:3]}}, {"$set": {"intervened": True}})
    wanted = step_of(lineage.id, 1, [task])
    wanted.intervened = 3
    await exclude(db, records_of(task)[0])
    leased = await steps.lease(db, wanted)
    assert leased is not None
    assert leased.records == records_of(task)[1:]
    assert leased.intervened == 2
    now = await tasks.get(db, task.id)
    assert now.shares != task.shares[1:], "the baseline is another"
    assert list((await steps.shares_of(db, leased)).values()) == now.shares
    assert await steps.commit(db, leased.id, {}, records=records_of(task)[2:])
    assert await steps.recently_trained(db) == (2, 1)
    assert (await accounting.account(db)).balanced


@pytest.mark.parametrize("seed", range(12))
async def test_account_balances_after_any_order_of_exclusions_steps_and_rollbacks(db: Database, seed: int) -> None:
    chance = random.Random(seed)
    ready = await ready_tasks(db, 4, scores=(0.0, 1.0, 0.0, 1.0))
    names = [record for task in ready for record in records_of(task)]
    lives, number = 1, 1
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    for act in range(12):
        match chance.choice(("exclude", "exclude", "train", "rollback")):
            case "exclude":
                for name in chance.sample(names, 3):
                    one = (await chosen_records.read(db, [name]))[name]
                    if exclusions.refusal(one) is None and one.task is not None and name not in one.task.excluded:
                        await exclusions.exclude(db, one.task, [name], "", by=f"op-{act}", rule=RULE)
            case "train":
                chosen = [one.task for one in await steps.ready(db, limit=1) if one.records]
                if chosen:
                    await commit(db, lineage.id, number, chosen)
                    number += 1
            case "rollback":
                lives, number = lives + 1, 1
                lineage = await lineages.begin(db, f"trainer-0.{lives}", parent_checkpoint="", after_step=0)
    account = await accounting.account(db)
    assert account.balanced, account.problems
    committed = await db.find("Step", {"status": "committed"})
    excluded = {record["_id"] for record in await db.find("Record", {"status": "excluded"})}
    assert not excluded & {record for step in committed for record in step["records"]}
