"""Tool calls as the steward answers them over a real database: what became of them, and everything about one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agentrl.errors import UnknownNameError
from agentrl.protocol.data_commands import (
    CallStory,
    ListCalls,
    Page,
    ShowCall,
)
from agentrl.store import lineages, steps
from agentrl.store.call_writer import CALLS, Writer
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, record_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, ToolCall
from tests.steward.test_queries import asked
from tests.store import flow

AT = datetime(2026, 1, 1, tzinfo=UTC)


async def called(db: Database, record: str, task: str, *, result: str = "42") -> list[str]:
    """A turn of a record that calls two tools of one server, and another server between them."""
    servers = ("shop", "search", "shop")
    call = DispatchedSamplingTask(id=call_id(record, 0), record=record, task=task, text="I look.", owner="sampler-0.1")
    call.tool_calls = [
        ToolCall(
            id=tool_call_id(call.id, number),
            server=server,
            tool="find",
            arguments={"item": "x" * 20},
            session="s-1",
            result=result,
            requested_at=AT + timedelta(seconds=number),
        )
        for number, server in enumerate(servers)
    ]
    await Writer(db).insert(call)
    return [one.id for one in call.tool_calls]


async def test_row_says_whether_the_record_trained_and_what_the_newest_replay_came_to(db: Database) -> None:
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    [task] = await flow.ready_tasks(db, 1, scores=(0.0, 1.0))
    step = flow.step_of(lineage.id, 1, [task])
    step.records = step.records[:1]
    assert await steps.lease(db, step)
    trained, other = record_id(task.id, 1, 0, 1), record_id(task.id, 1, 1, 1)
    assert step.records == [trained]
    first, *_ = await called(db, trained, task.id)
    await called(db, other, task.id)
    replays = [("r1", "flaky", 0), ("r2", "", 1)]
    await db.insert_many(
        "Replay",
        [
            {"_id": id, "call": first, "verdict": verdict, "status": "queued", "created_at": AT + timedelta(seconds=at)}
            for id, verdict, at in replays
        ],
    )
    page: Page = await asked(db, "list_calls", ListCalls(filter=f"record='{trained}'"))
    assert {row["trained"] for row in page.rows} == {False}, "the step is not committed yet"
    assert await steps.commit(db, step.id, {})
    everything: Page = await asked(db, "list_calls", ListCalls(sort="id"))
    assert {row["id"] for row in everything.rows if row["trained"]} == {f"{trained}/000.{n}" for n in range(3)}
    assert [row["replay"] for row in everything.rows if row["replay"]] == ["queued"]
    assert "arguments" not in everything.rows[0]
    only = "trained=true"
    for wanted, sort in ((only, ""), (only, "-latency_s"), (only, "tool"), ("", "-trained")):
        found: Page = await asked(db, "list_calls", ListCalls(filter=wanted, sort=sort))
        assert [row["record"] for row in found.rows][:3] == [trained] * 3, (wanted, sort)
        assert len(found.rows) == (3 if wanted else len(everything.rows))
    found = await asked(db, "list_calls", ListCalls(filter="trained=false and replay=queued"))
    assert found.rows == ()
    found = await asked(db, "list_calls", ListCalls(filter="replay=queued"))
    assert [row["id"] for row in found.rows] == [first], "the newest replay decides"


async def test_story_of_a_call_has_its_turn_its_record_and_its_session(db: Database) -> None:
    await flow.queue(db, 1)
    owner = await flow.sampler(db)
    assert await flow.admit(db, flow.row(0), n=1)
    claim = await flow.claim_one(db, owner)
    assert claim is not None
    ids = await called(db, claim.record.id, claim.task.id, result="y" * 3000)
    story: CallStory = await asked(db, "show_call", ShowCall(ids[2], chars=15))
    assert story.call["id"] == ids[2]
    assert story.call["arguments"]["item"].startswith("x" * 10)
    assert "2985 characters left out" in story.call["result"]
    assert (story.record["id"], story.record["ending"]["sentence"]) == (claim.record.id, "it has not ended")
    assert (story.turn["turn"], story.turn["text"]) == (0, "I look.")
    assert [one["id"] for one in story.session] == [ids[0], ids[2]], "the other server has a session of its own"
    whole: CallStory = await asked(db, "show_call", ShowCall(ids[0], chars=0))
    assert whole.call["result"] == "y" * 3000
    with pytest.raises(UnknownNameError, match="no tool call"):
        await asked(db, "show_call", ShowCall("x/000.0"))
    assert await db.count(CALLS, {}) == 1
