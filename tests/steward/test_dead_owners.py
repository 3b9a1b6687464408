"""What a steward does with the work of the dead: records, steps and releases of samplers and trainers that are gone."""

from __future__ import annotations

from datetime import timedelta

from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import StepStatus, TaskStatus
from agentrl.steward import dead_owners, group_upkeep
from agentrl.store import (
    claims,
    lineages,
    owners,
    steps,
    tasks,
)
from agentrl.store.call_writer import Writer
from agentrl.store.claims import Ending
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, ToolCall
from tests.steward.test_rounds import full_round, steward
from tests.store.flow import claim_one, run_group, sampler, step_of


async def test_records_of_a_dead_sampler_are_handed_over_or_abandoned(db: Database) -> None:
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    dying = await sampler(db, "sampler-0.1")
    resumable = await claim_one(db, dying, resumable=True)
    lost = await claim_one(db, dying)
    ended = await claim_one(db, dying)
    assert resumable
    assert lost
    assert ended
    writer = Writer(db)
    for claim in (resumable, lost):
        record = claim.record.id
        wanted = DispatchedSamplingTask(id=call_id(record, 0), record=record, owner=dying, status="done")
        wanted.tool_calls = [ToolCall(id=tool_call_id(wanted.id, 0))]
        await writer.insert(wanted)
        await writer.insert(DispatchedSamplingTask(id=call_id(record, 1), index=1, record=record, owner=dying))
    await claims.finish(db, ended.record.id, dying, Ending(outcome=Outcome.ANSWERED))
    made.died(dying)
    done = await made.round()
    assert (done.expired, done.freed, done.redrawn) == ([dying], 2, 1)

    assert not await claims.finish(db, lost.record.id, dying, Ending(outcome=Outcome.ANSWERED))
    again = await claim_one(db, await sampler(db, "sampler-1.1"))
    assert again is not None
    assert again.record.id == resumable.record.id
    [abandoned] = await db.find("Record", {"status": "abandoned"})
    assert (abandoned["outcome"], abandoned["outcome_class"]) == ("owner_lost", "infrastructure")
    assert await db.count("DispatchedSamplingTask", {"status": "failed"}) == 2
    with_tools = {"tool_calls.0": {"$exists": True}}
    stored = await db.find("DispatchedSamplingTask", with_tools, sort=[("_id", 1)])
    assert [call["tool_calls"][0]["status"] for call in stored] == ["requested", "lost"]
    unscored = await claims.claim_for_scoring(db, "sampler-1.1")
    assert unscored is not None
    assert unscored.record.id == ended.record.id


async def test_a_new_incarnation_frees_what_the_one_before_it_held(db: Database) -> None:
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    await sampler(db, "sampler-0.1")
    assert await claim_one(db, "sampler-0.1")
    await sampler(db, "sampler-0.2")
    assert (await dead_owners.expire(db)).abandoned == 1
    assert await group_upkeep.open_next_attempts(db) == 1


async def test_after_a_gap_everybody_is_renewed_once_before_anybody_is_reaped(db: Database) -> None:
    first = steward(db, 1)
    await first.start()
    await sampler(db, "sampler-0.1")
    # The database was away for longer than a lease: nobody could renew, the steward as little as the sampler.
    past = (await db.now()) - timedelta(seconds=5)
    await db.update_many("Owner", {}, {"$set": {"expires_at": past}})
    await full_round(first)
    assert await db.count("Owner", {"expired": True}) == 0
    # From here on the steward was there all the time, and the sampler was silent.
    await db.update_one("Owner", {"_id": "sampler-0.1"}, {"$set": {"expires_at": past}})
    await full_round(first)
    assert [owner["_id"] for owner in await db.find("Owner", {"expired": True})] == ["sampler-0.1"]


async def test_a_steward_that_comes_back_soon_does_not_extend_the_dead(db: Database) -> None:
    first = steward(db, 1)
    await first.start()
    await sampler(db, "sampler-0.1")
    past = (await db.now()) - timedelta(seconds=1)
    await db.update_one("Owner", {"_id": "sampler-0.1"}, {"$set": {"expires_at": past}})
    second = steward(db, 2)
    await second.start()
    await full_round(second)
    assert await db.count("Owner", {"_id": "sampler-0.1", "expired": True}) == 1


async def test_steps_of_a_dead_trainer_are_released(db: Database) -> None:
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    owner = await sampler(db)
    await run_group(db, [0.0, 1.0, 0.0, 1.0], owner=owner)
    trainer = owners.Lease(db, "trainer-0.1", unit="trainer-0", role="trainer")
    await trainer.open()
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    [ready] = await steps.ready(db)
    step = await steps.lease(db, step_of(lineage.id, 1, [ready.task]))
    assert step is not None
    assert (await dead_owners.expire(db)).steps == 0
    await owners.expire(db, "trainer-0.1", "killed")
    assert (await dead_owners.expire(db)).steps == 1
    assert (await tasks.get(db, ready.task.id)).status == TaskStatus.READY
    assert not await steps.commit(db, step.id, {}), "what was released is never committed"
    [document] = await db.find("Step", {})
    assert document["status"] == StepStatus.RELEASED


async def test_the_steward_ends_a_release_that_was_cut_off(db: Database) -> None:
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    await run_group(db, [0.0, 1.0, 0.0, 1.0], owner=await sampler(db))
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    [ready] = await steps.ready(db)
    step = await steps.lease(db, step_of(lineage.id, 1, [ready.task]))
    assert step is not None
    assert (await dead_owners.expire(db)).steps == 0
    await db.update_one("Step", {"_id": step.id}, {"$set": {"status": StepStatus.RELEASED}})
    assert (await dead_owners.expire(db)).steps == 1
    assert (await tasks.get(db, ready.task.id)).status == TaskStatus.READY
    assert (await dead_owners.expire(db)).steps == 0
