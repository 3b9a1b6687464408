"""What a batch waits for, read from the store: the group, the record, the call; or the reason why nothing is
admitted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from agentrl.policies.admission_capacity import Counts
from agentrl.policies.outcomes import AROUND_A_DEADLINE_S, AROUND_A_TOOL_CALL_S, Outcome
from agentrl.policies.status_tables import CallStatus, ToolCallStatus
from agentrl.protocol.messages import Wait
from agentrl.steward import admission, batch_waits
from agentrl.steward.admission import Admitted
from agentrl.store import claims, service_registry
from agentrl.store.call_writer import Writer
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, Service, ToolCall
from tests.steward.test_rounds import full_round, settings, steward
from tests.store.flow import admit, claim_one, end, queue, run_group, sampler

NOTHING = Admitted(0, 0, Counts(), "there is no room")


FAILING = NOTHING._replace(why_not="60 of the last 100 failed", trial="60 of the last 100 failed")


def named(seen: list[Wait]) -> list[tuple[str, str]]:
    return [(wait.who, wait.on) for wait in seen]


async def admitted(db: Database) -> str:
    """One group of four."""
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    [task] = await db.find("Task", {"status": "admitted"})
    return str(task["_id"])


async def older(db: Database, kind: str, id: str, field: str, seconds: float) -> None:
    [found] = await db.find(kind, {"_id": id})
    await db.update_one(kind, {"_id": id}, {"$set": {field: found[field] - timedelta(seconds=seconds)}})


async def test_the_chain_leads_to_the_tool_call_without_an_answer(db: Database) -> None:
    task = await admitted(db)
    owner, writer = await sampler(db, "sampler-1.3"), Writer(db)
    first, second = [await claim_one(db, owner) for _ in range(2)]
    assert first is not None
    assert second is not None
    await older(db, "Record", second.record.id, "started_at", 40.0)
    record = second.record.id
    name = f"record {record} on sampler-1"
    ours = settings(tools_s={"shop": 5.0}, episode_s=30.0)
    seen = await batch_waits.look(db, ours, NOTHING)
    assert named(seen) == [("batch", f"task {task}"), (f"task {task}", name), (name, "sampler-1")]
    assert seen[0].what == "4 of its 4 records are not done"
    assert seen[1].what == "is under way, in turn 1"
    assert seen[1].age_s >= 40.0
    assert all(wait.at_most_s for wait in seen), "no wait is unbounded"
    assert seen[2].at_most_s == 30.0 + AROUND_A_DEADLINE_S, "at its deadline it ends itself"
    await service_registry.report(db, toolbox(0, unavailable=["shop"]))
    parked = (await batch_waits.look(db, ours, NOTHING))[-1]
    assert (parked.who, parked.on) == (name, "tool server shop")
    assert parked.what == "toolbox-0: shop has its breaker open"
    await service_registry.report(db, toolbox(0, unavailable=[]))

    call = DispatchedSamplingTask(id=call_id(record, 0), record=record, task=task, owner=owner, engine="engine-0.1")
    await writer.insert(call)
    seen = await batch_waits.look(db, ours, NOTHING)
    assert named(seen)[3:] == [(name, "model call c0 on engine-0"), ("model call c0 on engine-0", "engine-0")]

    later = msgspec.structs.replace(call, id=call_id(record, 2), turn=2, index=2, status=CallStatus.DONE)
    await writer.insert(later)
    seen = await batch_waits.look(db, ours, NOTHING)
    assert seen[1].what == "is under way, in turn 3", "the turn is known before the record counts it"

    tool = ToolCall(id=tool_call_id(call.id, 0), server="shop", tool="lookup")
    call.status = CallStatus.DONE
    await writer.update(call, ["status"])
    await writer.update(call, (), new=[tool])
    ago = datetime.now(UTC) - timedelta(seconds=312)
    await db.update_one("DispatchedSamplingTask", {"_id": call.id}, {"$set": {"tool_calls.0.requested_at": ago}})
    seen = await batch_waits.look(db, ours, NOTHING)
    assert named(seen)[3:] == [(name, "tool shop.lookup"), ("tool shop.lookup", "toolbox")]
    assert seen[3].what == f"has not answered the call {tool.id}"
    assert 312.0 <= seen[3].age_s < 372.0
    assert seen[3].at_most_s == seen[4].at_most_s == 2 * 5.0 + AROUND_A_TOOL_CALL_S, "it may be made twice"
    for status in (ToolCallStatus.RUNNING, ToolCallStatus.OK):
        tool.status = status
        await writer.update(call, (), [tool])
    assert "tool shop.lookup" not in dict(named(await batch_waits.look(db, ours, NOTHING))).values()
    await writer.close()


async def test_records_that_nobody_claims_that_wait_for_a_score_and_groups_that_are_done(db: Database) -> None:
    task = await admitted(db)
    open_one = f"record {task}#r1.s0.a1"
    seen = await batch_waits.look(db, settings(), NOTHING)
    assert named(seen)[1:] == [(f"task {task}", open_one), (open_one, "sampler")]
    assert seen[1].what == "is open, and no sampler has claimed it"

    owner = await sampler(db)
    for score in (0.0, 1.0, 0.0):
        claim = await claim_one(db, owner)
        assert claim is not None
        assert await end(db, claim, score)
    claim = await claim_one(db, owner)
    assert claim is not None
    assert await claims.finish(db, claim.record.id, owner, claims.Ending(outcome=Outcome.ANSWERED))
    seen = await batch_waits.look(db, settings(), NOTHING)
    assert seen[1].what == "has ended, and it waits for its score"
    assert named(seen)[2] == (f"record {claim.record.id} on sampler-0", "sampler-0")
    assert await claims.leave_unscored(db, claim.record.id, owner, "the judge is away")
    seen = await batch_waits.look(db, settings(), NOTHING)
    assert seen[0].what == "1 of its 4 records are not done"
    assert seen[1].what == "has ended, and the scorer cannot answer"
    assert await claims.give_up_scoring(db, claim.record.id, owner, "the judge never answered")
    seen = await batch_waits.look(db, settings(), NOTHING)
    assert [(wait.on, wait.what) for wait in seen] == [
        (f"task {task}", "has no record under way and is not closed yet")
    ]


async def test_without_a_group_under_way_admission_says_why(db: Database) -> None:
    task = await admitted(db)
    assert await run_group(db, [0.0, 1.0, 1.0, 0.0], owner=await sampler(db)) == "ready"
    await older(db, "Task", task, "admitted_at", 90.0)
    [wait] = await batch_waits.look(db, settings(), NOTHING)
    assert (wait.who, wait.on) == ("batch", "admission")
    assert wait.what == "admits nothing: there is no room (0 records under way, 0 ready, 0 leased)"
    assert wait.age_s >= 90.0


async def test_while_most_attempts_fail_the_wait_says_that_only_a_few_are_tried(db: Database) -> None:
    task = await admitted(db)
    await older(db, "Task", task, "admitted_at", 5.0)
    [wait] = await batch_waits.look(db, settings(), FAILING)
    assert (wait.who, wait.on) == ("batch", "admission"), "no batch can come from the records under way"
    assert wait.what.startswith("tries only a few: 60 of the last 100 failed (0 records under way")
    assert wait.at_most_s is not None
    assert wait.age_s > wait.at_most_s, "the wait is overdue"


async def test_an_evaluation_has_a_chain_of_its_own(db: Database) -> None:
    [task] = await queue(db, 1, purpose="eval")
    assert await admit(db, task, n=1)
    seen = await batch_waits.look(db, settings(), NOTHING)
    record = f"record {task.id}#r1.s0.a1"
    assert named(seen) == [
        ("batch", "admission"),
        ("evaluation", f"task {task.id}"),
        (f"task {task.id}", record),
        (record, "sampler"),
    ]


# ---- tool servers that cannot be used ----


def toolbox(number: int, *, unavailable: list[str], names: tuple[str, ...] = ("shop", "search")) -> Service:
    return Service(
        id=f"toolbox-{number}.1",
        unit=f"toolbox-{number}",
        kind="toolbox",
        state="serving",
        url=f"http://127.0.0.1:{number}",
        names=list(names),
        unavailable=unavailable,
        troubles=[f"{name} has its breaker open" for name in unavailable],
    )


async def test_nothing_is_admitted_that_needs_a_server_which_is_left_alone(db: Database) -> None:
    made = steward(db, held_out=2)
    await made.start()
    await service_registry.report(db, toolbox(0, unavailable=["shop"]))
    done = await made.round()
    assert done.admitted.groups == 0
    assert done.admitted.why_not == "shop needs toolbox-0: shop has its breaker open"
    assert "shop has its breaker open" in done.sentence()
    assert await db.count("Record", {}) == 0
    [wait] = await made.waits()
    assert "shop has its breaker open" in wait.what

    # Another server's trouble is not this environment's, and one toolbox that can is enough.
    await service_registry.report(db, toolbox(0, unavailable=["search"]))
    assert await admission.held_environments(db, settings()) == {}
    await service_registry.report(db, toolbox(0, unavailable=["shop"]))
    await service_registry.report(db, toolbox(1, unavailable=[]))
    assert await admission.held_environments(db, settings()) == {}
    assert (await made.round()).admitted.groups == 4


async def test_evaluations_wait_for_their_servers_too(db: Database) -> None:
    made = steward(db)
    await made.start()
    await full_round(made)
    await db.update_many("Task", {"status": "queued"}, {"$set": {"purpose": "eval"}})
    await service_registry.report(db, toolbox(0, unavailable=["shop"]))
    assert (await made.round()).evaluations == 0
    await service_registry.report(db, toolbox(0, unavailable=[]))
    assert (await made.round()).evaluations > 0
