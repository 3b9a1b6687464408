"""The account agrees with a run in which all went well, and names whatever is changed in its documents."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.policies.advantages import Overlong
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.status_tables import Actor, CallStatus
from agentrl.store import accounting, groups, indexes, lineages, publications, tasks
from agentrl.store.audit.problems import SHOWN, Problem
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import call_id, epoch_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, Epoch, Record, ToolCall, load, to_bson
from agentrl.tokens.binary_format import pack_floats, pack_ids
from tests.store.flow import admit, claim_one, commit, end, queue, ready_tasks, row, sampler

TOKENS = 5
GONE = {"$delete": True}
Breakage = tuple[str, Plain, Any]
BREAKAGES: dict[str, Breakage] = {
    "documents of Task with an unknown status": ("Task", {"row": 2}, {"$set": {"status": "lost"}}),
    "documents of ToolCall with an unknown status": (
        "DispatchedSamplingTask",
        {},
        {"$set": {"tool_calls.0.status": "lost?"}},
    ),
    "epochs whose rows are not the tasks": ("Epoch", {}, {"$set": {"inserted": 4, "rows": 4}}),
    "records whose task does not exist": ("Record", {"seat": 0}, {"$set": {"task": "nowhere"}}),
    "tasks without all of the seats": ("Task", {"row": 1}, {"$set": {"n": 9}}),
    "records with a seat of a round that is over": ("Task", {"row": 1}, {"$set": {"round": 2}}),
    "seats whose attempts do not follow one another": ("Record", {"seat": 1}, {"$set": {"attempt": 2}}),
    "running records whose owner is dead": (
        "Record",
        {"seat": 0},
        {"$set": {"status": "running", "owner": "sampler-7.7"}},
    ),
    "units of which more than one life holds a lease": ("Owner", {"_id": "sampler-0.2"}, {"$set": {"expired": False}}),
    "baselines other than those of the valid members": ("Record", {"seat": 1}, {"$set": {"score": 0.5}}),
    "leased tasks that no leased step has": (
        "Task",
        {"row": 1},
        {"$set": {"status": "leased", "step": 4, "lineage": "x"}},
    ),
    "trained tasks that no committed step has": ("Task", {"row": 0}, {"$set": {"step": 4}}),
    "filtered tasks that no committed step has": ("Task", {"row": 0}, {"$set": {"status": "filtered"}}),
    "numbers of steps given more than once": ("Step", {"status": "released"}, {"$set": {"status": "committed"}}),
    "lineages with a lease out of turn": ("Step", {"status": "released"}, {"$set": {"status": "leased"}}),
    "committed steps outside of what stands of the lineage": (
        "Lineage",
        {"owner": "trainer-0.1"},
        {"$set": {"first_step": 2}},
    ),
    "tasks whose trained count is not that of the committed steps": (
        "Task",
        {"row": 0},
        {"$set": {"trained_count": 3}},
    ),
    "records that trained more than 1 time": ("Step", {"status": "released"}, {"$set": {"status": "committed"}}),
    "trained records that should not have trained": ("DBRecordData", {}, GONE),
    "trained records without a share in a task of the step": ("Task", {"row": 0}, {"$set": {"shares": []}}),
    "lineages that are open at once": ("Lineage", {"_id": "former"}, {"$set": {"closed": False}}),
    "versions out of order": ("Publication", {"_id": 2}, {"$set": {"lineage": "former"}}),
    "steps begun from a version of another lineage": ("Publication", {"_id": 1}, {"$set": {"lineage": "former"}}),
    "records that trained beyond the bound of the step": ("Step", {"step": 1}, {"$set": {"bounds": {"shop": -1}}}),
    "model calls open in records that ended": (
        "DispatchedSamplingTask",
        {"index": 0},
        {"$set": {"status": "sent"}},
    ),
    "tool calls open in records that ended": (
        "DispatchedSamplingTask",
        {},
        {"$set": {"tool_calls.0.status": "requested"}},
    ),
    "model calls whose tokens, log-probs and versions do not fit": (
        "DispatchedSamplingTask",
        {"index": 0},
        {"$set": {"versions": [[1, TOKENS + 1]]}},
    ),
    "records with other tokens than they report": (
        "Record",
        {"seat": 0},
        {"$set": {"generated_tokens": 4}},
    ),
}


async def a_run(db: Database) -> None:
    """Three groups, of which one trained; a Step that was released; a lineage before."""
    now = await db.now()
    former = {"_id": "former", "owner": "trainer-0.0", "first_step": 1, "closed": True, "opened_at": now}
    await db.insert_many("Lineage", [former])
    closed = await ready_tasks(db, 3)
    epoch = Epoch(id=epoch_id("shop", "train", 0), environment="shop", rows=3, inserted=3, done=True)
    await db.insert_many("Epoch", [to_bson(epoch)])
    await db.insert_many("Owner", [{"_id": "sampler-0.2", "unit": "sampler-0", "role": "sampler", "expired": True}])
    for record in [load(Record, found) for found in await db.find("Record", {})]:
        await with_calls(db, record)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    for parent in (None, 1):
        taken = await publications.take_number(db, parent=parent, lineage=lineage.id, step=0)
        assert await publications.announce(db, taken.id, lineage.id, {})
    leased = await commit(db, lineage.id, 1, closed[:1], base_version=1)
    again = {"_id": "former/1", "lineage": "former", "step": 1, "status": "released", "tasks": [], "filtered": []}
    await db.insert_many("Step", [again | {"records": leased.records}])


async def with_calls(db: Database, record: Record) -> None:
    call = DispatchedSamplingTask(
        id=call_id(record.id, 0),
        record=record.id,
        task=record.task,
        owner=record.owner,
        status=CallStatus.DONE,
        output=pack_ids(list(range(TOKENS))),
        log_probs=pack_floats([-1.0] * TOKENS),
        versions=[(1, TOKENS)],
        tool_calls=[ToolCall(id=tool_call_id(call_id(record.id, 0), 0), status="ok")],
    )
    await db.insert_many("DispatchedSamplingTask", [to_bson(call)])


@pytest.mark.parametrize("what", BREAKAGES)
async def test_an_account_names_sums_that_do_not_agree(
    db: Database, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "LOOK_AGAIN_S", 0.0)
    await a_run(db)
    assert (await accounting.account(db)).problems == ()
    collection, filter, update = BREAKAGES[what]
    if update is GONE:
        await db.delete_many(collection, filter)
    else:
        assert await db.update_one(collection, filter, update)
    account = await accounting.account(db)
    assert not account.balanced
    assert what in {problem.what for problem in account.problems}, account.problems


async def test_records_of_unknown_purpose_are_counted_separately(db: Database) -> None:
    await a_run(db)
    before = (await accounting.account(db)).records
    unset = {"$unset": {"purpose": "", "status": ""}}
    assert await db.update_one("Record", {"seat": 0}, unset)
    records = (await accounting.account(db)).records
    assert records["unknown"] == {"unknown": 1}
    assert sum(sum(each.values()) for each in records.values()) == sum(sum(each.values()) for each in before.values())


async def test_documents_that_are_incomplete_for_a_moment_are_no_problem(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While records end all the time, each look finds another record between two writes."""
    await a_run(db)
    first, second = (record["_id"] for record in await db.find("Record", {}, sort=[("_id", 1)], limit=2))
    seen = {record["_id"]: record["generated_tokens"] for record in await db.find("Record", {})}

    async def tells(record: str, tokens: int) -> None:
        assert await db.update_one("Record", {"_id": record}, {"$set": {"generated_tokens": tokens}})

    look = accounting._problems

    async def look_and_go_on(database: Database, most: int) -> list[Problem]:
        found = await look(database, most)
        assert found
        await tells(first, seen[first])
        await tells(second, seen[second] + 1)
        return found

    await tells(first, seen[first] + 1)
    monkeypatch.setattr(accounting, "_problems", look_and_go_on)
    monkeypatch.setattr(accounting, "LOOK_AGAIN_S", 0.0)
    assert not (await accounting.account(db)).problems


async def test_a_lasting_problem_is_reported_among_many_incomplete_documents(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look finds other incomplete documents, more than are shown, and all sorted before the one that stays
    wrong."""
    await a_run(db)
    kind = "DispatchedSamplingTask"

    async def half_way(look: str) -> None:
        await db.delete_many(kind, {"moment": True})
        names = [f"{look}{number}" for number in range(SHOWN + 1)]
        await db.insert_many(kind, [{"_id": name, "status": "lost?", "moment": True} for name in names])

    look = accounting._problems

    async def look_and_go_on(database: Database, most: int) -> list[Problem]:
        found = await look(database, most)
        await half_way("1")
        return found

    await half_way("0")
    await db.insert_many(kind, [{"_id": "zz", "status": "lost?"}])
    monkeypatch.setattr(accounting, "_problems", look_and_go_on)
    monkeypatch.setattr(accounting, "LOOK_AGAIN_S", 0.0)
    what = f"documents of {kind} with an unknown status"
    (seen,) = (problem for problem in (await accounting.account(db)).problems if problem.what == what)
    assert (seen.count, seen.examples) == (1, ("zz",))


async def test_a_baseline_of_scores_that_turns_add_to_agrees(db: Database) -> None:
    await sampler(db)
    (task,) = await queue(db, 1)
    assert await admit(db, task, n=4)
    for turns, score in ((1, 1.0), (2, 1.0), (3, 0.0), (4, 0.0)):
        claim = await claim_one(db, "sampler-0.1")
        assert claim is not None
        assert await end(db, claim, score)
        await db.update_one("Record", {"_id": claim.record.id}, {"$set": {"turns": turns}})
    assert await groups.close(db, task.id, GroupRule(turn_spread=0.2), Actor.SAMPLER) == "ready"
    assert not (await accounting.account(db)).problems
    await db.update_one("Task", {"_id": task.id}, {"$set": {"baseline.turn_spread": 0.0}})
    assert "baselines" in (await accounting.account(db)).problems[0].what


async def test_a_baseline_of_scores_that_length_takes_from_agrees(db: Database) -> None:
    await sampler(db)
    (task,) = await queue(db, 1)
    assert await admit(db, task, n=4)
    for tokens in (10, 150, 250, 10):
        claim = await claim_one(db, "sampler-0.1")
        assert claim is not None
        assert await end(db, claim, 1.0)
        await db.update_one("Record", {"_id": claim.record.id}, {"$set": {"generated_tokens": tokens}})
    rule = GroupRule(overlong=Overlong(100, 200, 0.4))
    assert await groups.close(db, task.id, rule, Actor.SAMPLER) == "ready"
    of_baselines = [one.what for one in (await accounting.account(db)).problems if "baselines" in one.what]
    assert not of_baselines
    stored = await db.find_one("Task", {"_id": task.id})
    assert stored is not None
    assert stored["baseline"]["mean"] == pytest.approx(1 - (0.2 + 0.4) / 4)
    await db.update_one("Task", {"_id": task.id}, {"$set": {"baseline.overlong_penalty": 0.1}})
    assert any("baselines" in one.what for one in (await accounting.account(db)).problems)


async def test_a_seat_that_is_held_twice_is_reported(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that makes it impossible has to be lost first."""
    monkeypatch.setattr(accounting, "LOOK_AGAIN_S", 0.0)
    await a_run(db)
    first = await db.find_one("Record", {"seat": 0})
    assert first is not None
    await db._database["Record"].drop_index("held")
    try:
        await db.insert_many("Record", [first | {"_id": "another", "attempt": 2}])
        account = await accounting.account(db)
    finally:
        await db.delete_many("Record", {})
        await indexes.ensure(db)
    assert "seats held by more than one record" in {problem.what for problem in account.problems}


async def test_an_account_adds_up(db: Database) -> None:
    closed = await ready_tasks(db, 2)
    await tasks.insert(db, [row(7)])
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await commit(db, lineage.id, 1, closed[:1])
    account = await accounting.account(db)
    assert account.tasks == {"train": {"trained": 1, "ready": 1, "queued": 1}}
    assert account.records == {"train": {"scored": 4}}
    assert account.seats == {"wanted": 4, "held": 4, "empty": 0}
    assert account.outcomes == {"policy": 4}
    assert (account.steps, account.trained_records, account.balanced) == ({"committed": 1}, 2, True)
