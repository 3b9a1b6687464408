"""From the queue to a closed group: admission, seats, claims, scores, rounds."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from agentrl.errors import RefusedError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor, IllegalMoveError, RecordStatus, TaskStatus
from agentrl.store import admission_counts, claims, groups, owners, tasks
from agentrl.store.call_writer import OwnershipError, Writer
from agentrl.store.claims import Claim, Ending, Reached, Scored
from agentrl.store.database import Database
from agentrl.store.document_ids import record_id
from agentrl.store.documents import DBRecordData
from agentrl.store.owners import OwnerLostError
from tests.store.flow import RULE, admit, claim_one, end, queue, run_group, sampler


async def statuses(db: Database, task: str) -> list[str]:
    found = await db.find("Record", {"task": task}, sort=[("round", 1), ("seat", 1), ("attempt", 1)])
    return [record["status"] for record in found]


async def test_a_task_goes_from_the_queue_to_ready(db: Database) -> None:
    [task] = await queue(db, 1)
    assert await admit(db, task, n=4)
    owner = await sampler(db)
    assert await run_group(db, [1.0, 0.0, 0.0, 1.0], owner=owner) == "ready"

    closed = await tasks.get(db, task.id)
    assert closed.status == TaskStatus.READY
    assert closed.signal
    assert closed.baseline is not None
    assert (closed.baseline.mean, closed.baseline.std, closed.baseline.valid) == (0.5, 0.5, 4)
    assert closed.sampling == {"temperature": 1.0}
    assert closed.deadline_at is not None
    assert closed.admitted_at is not None
    assert closed.deadline_at - closed.admitted_at == timedelta(seconds=600)
    advantages = {data["_id"]: data["advantage"] for data in await db.find("DBRecordData", {})}
    assert advantages == {share.record: share.advantage for share in closed.shares}
    assert sum(advantages.values()) == pytest.approx(0)
    assert await admission_counts.of_admission(db) == admission_counts.Counts(ready=4)


async def test_queueing_again_changes_nothing(db: Database) -> None:
    rows = await queue(db, 3)
    await admit(db, rows[0])
    assert await tasks.insert(db, rows) == 0
    assert (await tasks.get(db, rows[0].id)).status == TaskStatus.ADMITTED


async def test_only_one_of_many_admissions_of_a_task_succeeds(db: Database) -> None:
    [task] = await queue(db, 1)
    assert sum(await asyncio.gather(*(admit(db, task, n=8) for _ in range(10)))) == 1
    assert await db.count("Record", {"task": task.id}) == 8


async def test_an_interrupted_admission_is_completed_by_any_steward(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=4)
    # The steward died after it had opened two of the seats.
    await db.delete_many("Record", {"seat": {"$gte": 2}})
    await db.update_one("Task", {"_id": task.id}, {"$set": {"seating": True}})
    assert (await admission_counts.of_admission(db)).in_flight >= 4
    assert await groups.close(db, task.id, RULE, Actor.STEWARD) == "open"
    await asyncio.gather(tasks.repair(db), tasks.repair(db))
    assert await statuses(db, task.id) == ["open"] * 4
    assert (await admission_counts.of_admission(db)).in_flight == 4


async def test_records_are_claimed_in_the_order_of_admission(db: Database) -> None:
    rows = await queue(db, 3)
    for task in reversed(rows):
        await admit(db, task, n=2)
    owner = await sampler(db)
    claimed = [await claim_one(db, owner) for _ in range(6)]
    assert [claim.task.row for claim in claimed if claim] == [2, 2, 1, 1, 0, 0]
    assert [claim.record.seat for claim in claimed if claim] == [0, 1, 0, 1, 0, 1]
    assert await claim_one(db, owner) is None


async def test_claims_skip_excluded_environments(db: Database) -> None:
    for environment in ("broken", "shop"):
        [task] = await queue(db, 1, environment=environment)
        await admit(db, task, n=1)
    claim = await claim_one(db, "sampler-0.1", environments=["shop"])
    assert claim is not None
    assert claim.record.environment == "shop"
    assert await claim_one(db, "sampler-0.1", environments=["shop"]) is None


async def test_many_claimers_never_get_the_same_record(db: Database) -> None:
    rows = await queue(db, 10)
    for task in rows:
        await admit(db, task, n=8)

    async def take(owner: str) -> list[str]:
        mine = []
        while (claim := await claim_one(db, owner)) is not None:
            mine.append(claim.record.id)
        return mine

    taken = await asyncio.gather(*(take(f"sampler-{number}.1") for number in range(16)))
    everything = [record for mine in taken for record in mine]
    assert len(everything) == len(set(everything)) == 80
    for number, mine in enumerate(taken):
        assert await db.count("Record", {"owner": f"sampler-{number}.1"}) == len(mine)


async def test_an_owner_that_lost_its_claim_writes_nothing(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=1)
    claim = await claim_one(db, "sampler-0.1")
    assert claim is not None
    stranger = "sampler-1.1"
    ending = Ending(outcome=Outcome.ANSWERED)
    record = claim.record.id
    assert not await claims.finish(db, record, stranger, ending)
    assert not await claims.fail(db, record, stranger, Outcome.ENGINE_FAILED)
    assert not await claims.hand_back(db, record, stranger)
    assert not await claims.score(db, record, "sampler-0.1", 1.0, DBRecordData(id=record)), "not finished yet"
    assert await db.count("DBRecordData", {}) == 0
    assert await claims.finish(db, record, "sampler-0.1", ending)
    assert not await claims.finish(db, record, "sampler-0.1", ending), "it ended already"


async def test_a_record_ends_with_its_outcome_and_times(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    first, second = await claim_one(db, "s.1"), await claim_one(db, "s.1")
    assert first is not None
    assert second is not None
    writer = Writer(db)

    async def progress(claim: Claim, owner: str) -> None:
        update = claims.progress(claim.record.id, owner, Reached(turns=1, generated_tokens=7, versions=[4, 3]))
        await writer.progress(claim.record.id, owner, update)

    seen = await asyncio.gather(
        progress(first, "s.1"), progress(second, "s.2"), progress(second, "s.1"), return_exceptions=True
    )
    assert [type(answer) for answer in seen] == [type(None), OwnershipError, type(None)], (
        "each caller gets the error of its own record"
    )
    assert await claims.finish(db, first.record.id, "s.1", Ending(outcome=Outcome.TURN_LIMIT, turns=3))
    assert await claims.fail(db, second.record.id, "s.1", Outcome.TOOL_SERVER_FAILED, "$dollar is no field")
    limit, failed = await db.find("Record", {}, sort=[("seat", 1)])
    assert (limit["outcome"], limit["outcome_class"], limit["turns"]) == ("turn_limit", "limit", 3)
    assert limit["finished_at"] >= limit["started_at"]
    assert limit["duration_s"] >= 0
    assert (failed["status"], failed["outcome_class"]) == (RecordStatus.FAILED, "infrastructure")
    assert failed["error"] == "$dollar is no field"
    with pytest.raises(ValueError, match="does not finish"):
        await claims.finish(db, first.record.id, "s.1", Ending(outcome=Outcome.ENGINE_FAILED))


async def test_a_record_that_is_handed_back_goes_on_in_the_same_attempt(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=1)
    first = await claim_one(db, "sampler-0.1", resumable=True)
    assert first is not None
    assert await claims.hand_back(db, first.record.id, "sampler-0.1")
    second = await claim_one(db, "sampler-1.1")
    assert second is not None
    assert second.record.id == first.record.id
    assert first.fresh
    assert not second.fresh
    assert not await end(db, first, 1.0), "the former owner's claim is gone"
    assert await end(db, second, 1.0)


async def test_evaluations_are_claimed_before_what_was_admitted_first(db: Database) -> None:
    [early] = await queue(db, 1)
    await admit(db, early, n=2)
    [held_out] = await queue(db, 1, environment="held-out", purpose="eval")
    await admit(db, held_out, n=1)
    claimed = [await claim_one(db, "s.1") for _ in range(3)]
    assert [claim.record.purpose for claim in claimed if claim is not None] == ["eval", "train", "train"]


async def test_what_ends_together_with_its_score_ends_once_and_for_its_owner(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=3)
    held = [await claim_one(db, owner) for owner in ("s.1", "s.1", "s.2")]
    records = [claim.record.id for claim in held if claim is not None]
    ending = Ending(outcome=Outcome.ANSWERED, turns=1)
    ended = [Scored(record, ending, 1.0, DBRecordData(id=record, task=task.id)) for record in records]
    for _ in range(2):  # an answer may be lost on its way
        assert await claims.finish_scored(db, "s.1", ended) == set(records[:2])
    assert await db.count("Record", {"status": RecordStatus.SCORED, "score": 1.0}) == 2
    assert await db.count("DBRecordData", {}) == 2, "a record of another owner is not written"
    answers = await groups.close_among(db, [task.id, "nowhere"], RULE, Actor.SAMPLER)
    assert answers == {task.id: "open", "nowhere": "gone"}


async def test_only_one_of_many_closings_of_a_group_succeeds(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    for score in (0.0, 1.0):
        claim = await claim_one(db, "s.1")
        assert claim is not None
        await end(db, claim, score)
    answers = await asyncio.gather(*(groups.close(db, task.id, RULE, Actor.SAMPLER) for _ in range(8)))
    assert sorted(set(answers)) == ["gone", "ready"]
    assert answers.count("ready") == 1


async def test_advantages_that_were_not_written_are_written_again(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    await run_group(db, [0.0, 1.0])
    await db.update_many("DBRecordData", {}, {"$set": {"advantage": None}})
    await groups.settle(db, [await tasks.get(db, task.id)])
    assert sorted(data["advantage"] for data in await db.find("DBRecordData", {})) == pytest.approx([-1, 1], abs=1e-3)


async def test_equal_scores_are_no_signal_and_hold_no_capacity(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=4)
    assert await run_group(db, [1.0] * 4) == "ready"
    closed = await tasks.get(db, task.id)
    assert not closed.signal
    assert closed.reason == "all scores are 1"
    assert await admission_counts.of_admission(db) == admission_counts.Counts()


async def test_too_few_valid_members_are_another_round_and_then_dead(db: Database) -> None:
    [task] = await queue(db, 1)
    for round in (1, 2):
        current = await tasks.get(db, task.id)
        assert (current.status, current.round) == (TaskStatus.QUEUED, round)
        assert await admit(db, current, n=4, rounds_max=2, deadline_s=-1)
        for outcome in (None, Outcome.ENGINE_FAILED, Outcome.ENGINE_FAILED, Outcome.TOOL_TIMEOUT):
            claim = await claim_one(db, "s.1")
            assert claim is not None
            assert claim.record.round == round
            await (end(db, claim, 1.0) if outcome is None else claims.fail(db, claim.record.id, "s.1", outcome))
        assert await groups.close(db, task.id, RULE, Actor.SAMPLER) == "open", "a sampler does not give up a round"
        assert await groups.close(db, task.id, RULE, Actor.STEWARD) == ("requeued" if round == 1 else "dead")
    given_up = await tasks.get(db, task.id)
    assert (given_up.status, given_up.reason, given_up.round) == (TaskStatus.DEAD, "rounds", 2)
    assert await db.count("Record", {"status": "scored"}) == 0, "nothing of a former round holds a seat"
    assert await admission_counts.of_admission(db) == admission_counts.Counts()


async def test_the_deadline_closes_a_group_without_late_members(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=4, deadline_s=-1)
    held = [await claim_one(db, "s.1") for _ in range(3)]
    for claim, score in zip(held[:2], (0.0, 1.0), strict=True):
        assert claim
        await end(db, claim, score)
    assert await groups.close(db, task.id, RULE, Actor.STEWARD) == "open", "a seat without an attempt is not late"
    held.append(await claim_one(db, "s.1"))
    assert await groups.close(db, task.id, RULE, Actor.STEWARD) == "ready"
    late = held[2]
    assert late
    assert await end(db, late, 1.0), "its result is kept"
    [document] = await db.find("Record", {"_id": late.record.id})
    assert document["late"]
    assert await groups.close(db, task.id, RULE, Actor.STEWARD) == "gone"
    [data] = await db.find("DBRecordData", {"_id": late.record.id})
    assert data["advantage"] is None


async def test_an_operator_requeues_and_nothing_of_the_former_round_counts(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    await run_group(db, [0.0, 1.0])
    again = await tasks.requeue(db, task.id, "looked wrong")
    assert (again.status, again.round, again.shares, again.signal) == (TaskStatus.QUEUED, 2, [], False)
    assert await statuses(db, task.id) == ["superseded"] * 2
    assert await db.distinct("Record", "reason", {"task": task.id}) == ["looked wrong"], "each says why it is over"
    unsampled = await tasks.requeue(db, task.id, "twice")
    assert unsampled.round == 2, "a round that was never sampled is not left behind"
    assert await admit(db, unsampled, n=2)
    assert await db.count("Record", {"_id": record_id(task.id, 2, 1, 1), "status": "open"}) == 1


async def test_what_is_leased_is_not_requeued_and_the_answer_says_by_which_step(db: Database) -> None:
    [task] = await queue(db, 1)
    await db.update_one("Task", {"_id": task.id}, {"$set": {"status": "leased", "step": 7, "lineage": "trainer-0.1@x"}})
    with pytest.raises(RefusedError, match=r"step 7 of trainer-0\.1@x"):
        await tasks.requeue(db, task.id, "please")


async def test_a_sweep_that_was_cut_off_is_finished(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    # The process that raised the round died right after that.
    left = {"status": "queued", "round": 2, "sweeping": True, "reason": tasks.STALE}
    await db.update_one("Task", {"_id": task.id}, {"$set": left})
    assert await tasks.repair(db) == 1
    assert await statuses(db, task.id) == ["superseded"] * 2
    assert await db.distinct("Record", "reason", {"task": task.id}) == [tasks.STALE]
    assert await tasks.repair(db) == 0


async def test_seats_that_come_after_their_round_are_superseded_at_once(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    old = await tasks.get(db, task.id)
    await tasks.requeue(db, task.id, "meanwhile")
    await tasks.open_records(db, old, [(0, 2)])
    assert await db.count("Record", {"status": "open"}) == 0


async def test_a_task_that_is_requeued_before_its_seats_are_there_gets_all_of_them_later(db: Database) -> None:
    [task] = await queue(db, 1)
    admitted = {"status": "admitted", "seating": True, "n": 2, "admitted_order": 1}
    await db.update_one("Task", {"_id": task.id}, {"$set": admitted})
    slow = await tasks.get(db, task.id)
    requeued = await tasks.requeue(db, task.id, "meanwhile")
    await tasks.seat(db, [slow])
    assert await admit(db, requeued, n=2)
    assert await db.count("Record", {"status": "open"}) == 2


async def test_moves_that_do_not_exist_are_refused_with_the_story(db: Database) -> None:
    [task] = await queue(db, 1)
    with pytest.raises(IllegalMoveError, match=r"shop/train/0/000000 is queued in round 1 of 3"):
        await tasks.kill(db, task, Actor.TRAINER, "poison")


async def test_a_record_that_ended_without_an_owner_is_scored_by_another(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=1)
    claim = await claim_one(db, "s.1")
    assert claim is not None
    await claims.finish(db, claim.record.id, "s.1", Ending(outcome=Outcome.ANSWERED))
    assert await claims.claim_for_scoring(db, "s.2") is None
    await db.update_many("Record", {}, {"$set": {"owner": ""}})
    taken = await claims.claim_for_scoring(db, "s.2")
    assert taken is not None
    assert await claims.leave_unscored(db, taken.record.id, "s.2", "the judge is away")
    assert await claims.score(db, taken.record.id, "s.2", 1.0, DBRecordData(id=taken.record.id))


async def test_a_dead_owner_never_comes_back(db: Database) -> None:
    lease = owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler")
    await lease.open()
    assert lease.valid
    assert await owners.expire(db, "sampler-0.1", "killed")
    assert not await owners.expire(db, "sampler-0.1", "killed")
    with pytest.raises(owners.OwnerLostError):
        await lease.renew()
    with pytest.raises(owners.OwnerLostError):
        await owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler").open()
    assert await owners.dead_among(db, ["sampler-0.1", "sampler-9.9", ""]) == {"sampler-0.1", "sampler-9.9"}


async def test_another_run_of_the_same_name_counts_its_lives_from_one_again(db: Database) -> None:
    former = owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler", run="aaaaaaaa-1")
    await former.open()
    await owners.expire(db, "sampler-0.1", "killed", run="aaaaaaaa-1")
    later = owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler", run="bbbbbbbb-2")
    await later.open()
    await later.renew()
    assert later.incarnation == "sampler-0.1~bbbbbbbb"
    assert await owners.dead_among(db, ["sampler-0.1", later.incarnation]) == {"sampler-0.1"}, (
        "records of the earlier life are freed"
    )
    assert await owners.expire(db, "sampler-0.1", "its death was confirmed", run="bbbbbbbb-2")
    with pytest.raises(owners.OwnerLostError):
        await later.renew()


async def test_the_lives_of_an_earlier_run_end_with_the_first_of_the_next(db: Database) -> None:
    former = owners.Lease(db, "sampler-0.7", unit="sampler-0", role="sampler", run="aaaaaaaa-1")
    await former.open()
    await owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler", run="bbbbbbbb-2").open()
    with pytest.raises(owners.OwnerLostError):
        await former.renew()


async def test_an_older_life_that_opens_late_ends_and_the_newer_one_lives(db: Database) -> None:
    newer = owners.Lease(db, "sampler-0.10", unit="sampler-0", role="sampler")
    await newer.open()
    older = owners.Lease(db, "sampler-0.9", unit="sampler-0", role="sampler")
    with pytest.raises(owners.OwnerLostError):
        await older.open()
    assert not older.valid
    await newer.renew()
    assert await db.count("Owner", {"expired": False}) == 1


async def test_a_life_whose_death_was_confirmed_before_it_opened_never_opens(db: Database) -> None:
    assert await owners.expire(db, "sampler-0.1", "its death was confirmed")
    with pytest.raises(owners.OwnerLostError):
        await owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler").open()
    await owners.Lease(db, "sampler-0.2", unit="sampler-0", role="sampler").open()


async def test_a_holder_knows_before_others_do_that_its_lease_is_past(db: Database) -> None:
    now = 100.0
    lease = owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler", clock=lambda: now)
    await lease.open()
    now += owners.LEASE_S - owners.MARGIN_S - 0.1
    assert lease.valid
    now += 0.2
    assert not lease.valid
    assert await owners.reap(db) == []


async def test_owners_are_reaped_by_the_servers_clock_and_extended_after_a_gap(db: Database) -> None:
    for number in range(3):
        await sampler(db, f"sampler-{number}.1")
    past = (await db.now()) - timedelta(seconds=1)
    await db.update_many("Owner", {"_id": {"$ne": "sampler-2.1"}}, {"$set": {"expires_at": past}})
    assert await owners.extend_all(db) == 3
    assert await owners.reap(db) == []
    await db.update_one("Owner", {"_id": "sampler-1.1"}, {"$set": {"expires_at": past}})
    assert await owners.reap(db) == ["sampler-1.1"]
    assert await owners.reap(db) == []
    silent = await owners.silence_s(db, "sampler")
    assert silent is not None
    assert 0 <= silent < 10
    assert await owners.silence_s(db, "steward") is None


async def test_an_owner_that_was_stopped_checks_its_lease_in_the_store(db: Database) -> None:
    now = [0.0]
    lease = owners.Lease(db, "sampler-0.1", unit="sampler-0", role="sampler", clock=lambda: now[0])
    await lease.open()
    await lease.renew()
    await owners.expire(db, "sampler-0.1", "it sleeps")
    await lease.certain()  # asked a moment ago, so it is not asked again
    now[0] += 3.0
    assert lease.valid, "by its own clock the lease is still valid"
    with pytest.raises(OwnerLostError):
        await lease.certain()
