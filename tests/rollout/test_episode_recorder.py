"""The writes of a recorder for a turn, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentrl.engines.interface import Generated, Sampling
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.rollout import episode_recorder
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.store import calls
from agentrl.store.call_writer import Writer
from agentrl.store.database import Bulk, Database, StoreUnavailableError, Write
from agentrl.store.document_ids import within
from agentrl.store.documents import DispatchedSamplingTask, ToolCall
from agentrl.toolbox.api_messages import CallAnswer
from tests.store import flow
from tests.waiting import aeventually


async def begun(db: Database, writer: Writer) -> Recorder:
    (task,) = await flow.queue(db, 1)
    assert await flow.admit(db, task, n=1)
    owner = await flow.sampler(db)
    claim = await flow.claim_one(db, owner)
    assert claim is not None
    return await Recorder.begin(db, writer, claim, owner)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_call_that_ends_while_it_is_being_shown_has_its_beginning_and_its_end(
    db: Database, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The call ends `turns` turns of the event loop after it was sent: before, at or after the moment when it is
    shown."""
    monkeypatch.setattr(episode_recorder, "SHOWN_AFTER_S", 0.0)
    recorder = await begun(db, Writer(db))
    call = recorder.sent(0, [1, 2, 3], Sampling(), "engine-0.1")
    for _ in range(turns):
        await asyncio.sleep(0)
    recorder.answered(call, [1, 2, 3], Generated(ids=[4], log_probs=[-0.5], versions=[(1, 1)], finish="stop"))
    await recorder.settled()
    (stored,) = await db.find("DispatchedSamplingTask", {"_id": within(recorder.record.id)})
    assert stored["status"] == "done"
    assert stored["sent_at"]
    assert stored["done_at"]


class Away(Writer):
    """The store does not take a model call."""

    def insert(self, call: DispatchedSamplingTask) -> asyncio.Future[None]:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(StoreUnavailableError("MongoDB did not answer."))
        return failed


async def answered(recorder: Recorder, turn: int = 0) -> None:
    call = recorder.sent(turn, [1, 2, 3], Sampling(), "engine-0.1")
    recorder.answered(call, [1, 2, 3], Generated(ids=[4], log_probs=[-0.5], versions=[(1, 1)], finish="stop"))


async def asked(recorder: Recorder, number: int = 0, *, durable: bool = True) -> ToolCall:
    return await recorder.requested(0, number, server="shop", tool="lookup", arguments={}, session="x", durable=durable)


async def test_no_tool_call_and_no_turn_is_stored_without_the_tokens_that_asked_for_it(db: Database) -> None:
    recorder = await begun(db, Away(db))
    await answered(recorder)
    with pytest.raises(EndedError, match="MongoDB did not answer"):
        await asked(recorder)
    recorder.turn_over(0)
    with pytest.raises(EndedError, match="MongoDB did not answer"):
        await recorder.settled()
    assert await db.count("DispatchedSamplingTask", {}) == 0


async def test_tool_calls_of_one_moment_are_durable_with_their_model_call_before_they_are_sent(db: Database) -> None:
    recorder = await begun(db, Writer(db))
    await answered(recorder)
    await asyncio.gather(asked(recorder, 0), asked(recorder, 1))
    (stored,) = await calls.of_record(db, recorder.record.id)
    assert [(one.id, one.status) for one in stored.tool_calls] == [(f"{stored.id}.{n}", "requested") for n in (0, 1)]
    assert stored.status == "done"
    await asked(recorder, 2)
    assert [len(one.tool_calls) for one in await calls.of_record(db, recorder.record.id)] == [3]


async def test_a_turn_whose_tools_may_run_again_is_written_once_when_it_is_over(db: Database) -> None:
    recorder = await begun(db, Writer(db))
    await answered(recorder)
    recorder.parsed(0, "lookup()", [], calls.now())
    tool_call = await asked(recorder, durable=False)
    recorder.tool_runs(tool_call)
    assert await calls.of_record(db, recorder.record.id) == []
    recorder.tool_moved(tool_call, ToolCallStatus.OK, CallAnswer(status="ok", content="7"))
    recorder.turn_over(0, last=True)
    await recorder.settled()
    (stored,) = await calls.of_record(db, recorder.record.id)
    assert (stored.text, [one.result for one in stored.tool_calls]) == ("lookup()", ["7"])
    assert recorder.reached.turns == 1


class Held(Writer):
    """Stores a model call when the test allows it."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.may_store = asyncio.Event()

    def insert(self, call: DispatchedSamplingTask) -> asyncio.Future[None]:
        async def store() -> None:
            await self.may_store.wait()
            await Writer.insert(self, call)

        return asyncio.create_task(store())


async def test_a_tool_call_that_may_run_again_waits_until_the_turns_before_it_are_stored(db: Database) -> None:
    """Otherwise another sampler could give its id to another call."""
    writer = Held(db)
    recorder = await begun(db, writer)
    await answered(recorder)
    recorder.turn_over(0, last=True)
    await answered(recorder, turn=1)
    asking = asyncio.create_task(
        recorder.requested(1, 0, server="shop", tool="lookup", arguments={}, session="x", durable=False)
    )
    assert not (await asyncio.wait([asking], timeout=0.1))[0]
    writer.may_store.set()
    tool_call = await asking
    assert [call.index for call in await calls.of_record(db, recorder.record.id)] == [0]
    assert (await calls.take_over(db, recorder.record.id, "", "sampler-9.1")).next_call == 2
    assert tool_call.id.endswith("/001.0")


class Changes(Database):
    """Counts the changes that are sent."""

    sent = 0

    async def write(self, collection: str, writes: Sequence[Write], *, ordered: bool = True) -> Bulk:
        self.sent += len(writes)
        return await super().write(collection, writes, ordered=ordered)


async def test_answer_and_tool_calls_of_a_shown_model_call_are_one_change(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No crash can leave tool calls on a model call without tokens."""
    monkeypatch.setattr(episode_recorder, "SHOWN_AFTER_S", 0.0)
    counting = Changes(db._client, db.name)
    recorder = await begun(db, Writer(counting))
    call = recorder.sent(0, [1, 2, 3], Sampling(), "engine-0.1")

    async def shown() -> bool:
        return bool(await calls.of_record(db, recorder.record.id))

    await aeventually(shown, what="the call is shown")
    monkeypatch.setattr(episode_recorder, "SHOWN_AFTER_S", 60.0)
    recorder.answered(call, [1, 2, 3], Generated(ids=[4], log_probs=[-0.5], versions=[(1, 1)], finish="stop"))
    await asked(recorder)
    (stored,) = await calls.of_record(db, recorder.record.id)
    assert (stored.status, len(stored.tool_calls), counting.sent) == ("done", 1, 1)


async def test_later_turns_are_reported_once_in_a_while(db: Database) -> None:
    """The staleness of a record under way follows from its first turn."""
    counting = Changes(db._client, db.name)
    recorder = await begun(db, Writer(counting))
    for turn in range(3):
        await answered(recorder, turn)
        recorder.turn_over(turn)
        await recorder.settled()
    record = await db.find_one("Record", {"_id": recorder.record.id})
    assert record is not None
    assert (record["turns"], record["versions"], counting.sent) == (1, [1], 1)
    assert recorder.reached.turns == 3


async def test_what_takes_long_is_shown_as_being_under_way(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_recorder, "SHOWN_AFTER_S", 0.05)
    recorder = await begun(db, Writer(db))
    await answered(recorder)
    tool_call = await asked(recorder, durable=False)
    recorder.tool_runs(tool_call)

    async def statuses() -> list[str]:
        return [one.status for call in await calls.of_record(db, recorder.record.id) for one in call.tool_calls]

    async def runs() -> bool:
        return await statuses() == ["running"]

    await aeventually(runs, what="the call is shown")
    recorder.tool_moved(tool_call, ToolCallStatus.OK, CallAnswer(status="ok", content="7"))
    recorder.turn_over(0, last=True)
    await recorder.settled()
    assert await statuses() == ["ok"]
