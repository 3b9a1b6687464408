"""Turns, calls and tool calls: batched, ordered, idempotent, owned; large values cut; tokens rebuilt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.policies.status_tables import CallStatus, IllegalMoveError, ToolCallStatus
from agentrl.store import chunks, owners, trajectories
from agentrl.store.database import Bulk, Database, StoreUnavailableError
from agentrl.store.documents import (
    DispatchedSamplingTask,
    ParsedCall,
    ToolCall,
    Turn,
    call_id,
    load,
    tool_call_id,
    turn_id,
)
from agentrl.store.trajectories import OwnershipError, Writer
from agentrl.tokens.binary_format import pack_floats, pack_ids, unpack_ids
from agentrl.tokens.spans import full_prompts

RECORD = "shop/train/0/000001#r1.s0.a1"
ME = "sampler-0.1"


def call(index: int, *, owner: str = ME, record: str = RECORD, **fields: Any) -> DispatchedSamplingTask:
    return DispatchedSamplingTask(id=call_id(record, index), record=record, index=index, owner=owner, **fields)


def answered(index: int, output: list[int], **fields: Any) -> DispatchedSamplingTask:
    return call(
        index,
        status=CallStatus.DONE,
        output=pack_ids(output),
        log_probs=pack_floats([-0.5] * len(output)),
        versions=[(3, len(output))],
        finish_reason="stop",
        **fields,
    )


def tool(number: int, status: str = ToolCallStatus.REQUESTED, *, owner: str = ME, **fields: Any) -> ToolCall:
    return ToolCall(id=tool_call_id(RECORD, 0, number), record=RECORD, owner=owner, status=status, **fields)


async def test_an_episode_is_stored_once_and_its_tokens_are_rebuilt(db: Database) -> None:
    writer = Writer(db)
    first = call(0, prompt=pack_ids([1, 2, 3]))
    await writer.sent(first)
    await writer.answered(answered(0, [4, 5]))
    base = call_id(RECORD, 0)
    await writer.sent(call(1, base=base, base_length=5, prompt=pack_ids([6])))
    await writer.answered(answered(1, [7]))
    await writer.turn(Turn(id=turn_id(RECORD, 0), record=RECORD, owner=ME, text="lookup", call=base))
    stored = (await trajectories.calls_of(db, [RECORD]))[RECORD]
    assert [each.status for each in stored] == ["done", "done"]
    assert stored[0].versions == [(3, 2)]
    assert stored[0].done_at is not None
    assert full_prompts(trajectories.stored_calls(stored)) == {0: [1, 2, 3], 1: [1, 2, 3, 4, 5, 6]}
    [turn] = await trajectories.turns_of(db, RECORD)
    assert turn.text == "lookup"


async def test_the_same_again_changes_nothing(db: Database) -> None:
    writer = Writer(db)
    for _ in range(3):
        await writer.sent(call(0, prompt=pack_ids([1])))
        await writer.answered(answered(0, [4, 5]))
        await writer.turn(Turn(id=turn_id(RECORD, 0), record=RECORD, owner=ME, text="one"))
    before = [await db.find(name, {}) for name in ("DispatchedSamplingTask", "Turn")]
    await writer.answered(answered(0, [9, 9, 9]))
    await writer.turn(Turn(id=turn_id(RECORD, 0), record=RECORD, owner=ME, text="another"))
    assert [await db.find(name, {}) for name in ("DispatchedSamplingTask", "Turn")] == before
    assert [len(found) for found in before] == [1, 1]


async def test_what_another_owner_wrote_is_not_taken_for_ones_own(db: Database) -> None:
    writer = Writer(db)
    await writer.sent(call(0, owner="sampler-9.9"))
    others = [writer.sent(call(index)) for index in range(1, 6)]
    results = await asyncio.gather(writer.sent(call(0)), *others, return_exceptions=True)
    assert isinstance(results[0], OwnershipError)
    assert results[1:] == [None] * 5, "the others of the batch do not suffer for it"
    assert await db.count("DispatchedSamplingTask", {"owner": ME}) == 5


async def test_a_change_of_what_is_another_owners_is_not_taken_for_made(db: Database) -> None:
    writer = Writer(db)
    await asyncio.gather(*(writer.sent(call(index)) for index in range(3)))
    await writer.answered(answered(0, [1]))
    await db.update_one("DispatchedSamplingTask", {"_id": call(1).id}, {"$set": {"owner": "sampler-9.9"}})
    moves = [writer.answered(answered(index, [1])) for index in range(3)]
    results = await asyncio.gather(*moves, return_exceptions=True)
    assert results[0] is None, "it was made before, which is just as good"
    assert isinstance(results[1], OwnershipError)
    assert results[2] is None
    assert await db.count("DispatchedSamplingTask", {"status": "done"}) == 2


class Counting(Database):
    batches = 0

    async def write(self, collection: str, writes: Any, *, ordered: bool = True) -> Bulk:
        self.batches += 1
        return await super().write(collection, writes, ordered=ordered)


async def test_writes_that_come_together_go_out_together(db: Database) -> None:
    counting = Counting(db._client, db.name)
    writer = Writer(counting)
    records = [f"{RECORD}{number}" for number in range(200)]
    await asyncio.gather(*(writer.sent(call(0, record=record)) for record in records))
    assert await db.count("DispatchedSamplingTask", {}) == 200
    assert counting.batches <= 3
    await writer.close()


class Noting(Database):
    """Notes what is written when. An insert of model calls waits for a change of tool calls."""

    def __init__(self, like: Database) -> None:
        super().__init__(like._client, like.name)
        self.notes: list[str] = []
        self.changes = asyncio.Event()

    async def write(self, collection: str, writes: Any, *, ordered: bool = True) -> Bulk:
        if not writes:
            return await super().write(collection, writes, ordered=ordered)
        if collection == "ToolCall":
            self.changes.set()
        done = await super().write(collection, writes, ordered=ordered)
        self.notes.append(f"{collection} changed")
        return done

    async def insert_missing(self, collection: str, documents: Any) -> list[Any]:
        if not documents:
            return []
        if collection == "DispatchedSamplingTask":
            await self.changes.wait()
        self.notes.append(f"{collection} begins")
        return await super().insert_missing(collection, documents)


async def test_what_is_made_of_others_goes_out_behind_them_and_nothing_else_waits(db: Database) -> None:
    await Writer(db).requested(tool(0))
    noting = Noting(db)
    writer = Writer(noting)
    async with asyncio.timeout(20):
        await asyncio.gather(
            writer.turn(Turn(id=turn_id(RECORD, 0), record=RECORD, owner=ME, text="one")),
            writer.requested(tool(1)),
            writer.tool_moved(tool(1, ToolCallStatus.LOST)),
            writer.sent(call(0)),
            writer.answered(answered(0, [4, 5])),
            writer.tool_moved(tool(0, ToolCallStatus.OK, result="7")),
        )
    assert [each.status for each in await trajectories.tool_calls_of(db, RECORD)] == ["ok", "lost"]
    answer, request = (noting.notes.index(note) for note in ("DispatchedSamplingTask changed", "ToolCall begins"))
    assert answer < request, "whoever finds a tool call finds the tokens that asked for it"
    assert noting.notes.index("Turn begins") > answer


class Away(Database):
    async def insert_missing(self, collection: str, documents: Any) -> list[Any]:
        raise StoreUnavailableError("MongoDB did not answer.")

    async def write(self, collection: str, writes: Any, *, ordered: bool = True) -> Bulk:
        raise StoreUnavailableError("MongoDB did not answer.")


async def test_a_database_that_is_away_is_told_to_everybody_who_waits(db: Database) -> None:
    writer = Writer(Away(db._client, db.name))
    results = await asyncio.gather(*(writer.sent(call(index)) for index in range(3)), return_exceptions=True)
    assert all(isinstance(result, StoreUnavailableError) for result in results)


class BackTooSoon(Database):
    """Away for the model calls of one Record, and there again for whatever comes behind them."""

    def __init__(self, like: Database) -> None:
        super().__init__(like._client, like.name)
        self.on_away: Callable[[], None] = lambda: None

    async def insert_missing(self, collection: str, documents: Any) -> list[Any]:
        if collection == "DispatchedSamplingTask" and any(each["record"] == RECORD for each in documents):
            self.on_away()
            raise StoreUnavailableError("MongoDB did not answer.")
        return await super().insert_missing(collection, documents)


async def test_what_is_made_of_others_is_not_written_where_those_were_not(db: Database) -> None:
    away = BackTooSoon(db)
    writer = Writer(away)
    meanwhile: list[asyncio.Task[None]] = []
    away.on_away = lambda: meanwhile.append(asyncio.create_task(writer.requested(tool(2))))
    results = await asyncio.gather(
        writer.answered(answered(0, [4, 5]), shown=False),
        writer.requested(tool(1)),
        writer.tool_moved(tool(1, ToolCallStatus.LOST)),
        writer.turn(Turn(id=turn_id(RECORD, 0), record=RECORD, owner=ME, text="one")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [StoreUnavailableError] * 4
    await asyncio.gather(*meanwhile, return_exceptions=True)
    assert isinstance(meanwhile[0].exception(), StoreUnavailableError), "asked for while nobody knew of it"
    assert await trajectories.tool_calls_of(db, RECORD) == []
    assert await trajectories.turns_of(db, RECORD) == []


async def test_another_record_does_not_suffer_for_what_was_not_written(db: Database) -> None:
    other = f"{RECORD}-other"
    theirs = ToolCall(id=tool_call_id(other, 0, 0), record=other, owner=ME)
    writer = Writer(BackTooSoon(db))
    told = await asyncio.gather(
        writer.answered(answered(0, [4, 5]), shown=False), writer.requested(theirs), return_exceptions=True
    )
    assert (type(told[0]), told[1]) == (StoreUnavailableError, None)
    assert len(await trajectories.tool_calls_of(db, other)) == 1


async def test_a_tool_call_goes_from_requested_to_its_end_and_not_further(db: Database) -> None:
    writer = Writer(db)
    await writer.requested(tool(0, server="shop", tool="lookup", arguments={"item": "tea"}))
    await writer.tool_moved(tool(0, ToolCallStatus.RUNNING, session="x"))
    await writer.tool_moved(tool(0, ToolCallStatus.OK, result="7", latency_s=0.2, session="x"))
    await writer.tool_moved(tool(0, ToolCallStatus.TIMEOUT))
    [stored] = await trajectories.tool_calls_of(db, RECORD)
    assert (stored.status, stored.result, stored.arguments) == ("ok", "7", {"item": "tea"})
    assert stored.done_at is not None
    assert stored.requested_at is not None
    with pytest.raises(IllegalMoveError):
        await writer.answered(call(0, status=CallStatus.SENT))


async def test_what_models_write_is_stored_as_far_as_it_can_be(db: Database) -> None:
    writer = Writer(db)
    strange = {"huge": 10**30, "half": "\ud800", "nul\0key": [1, {"deep": -(2**70)}], "fine": 1.5}
    await asyncio.gather(
        writer.requested(tool(0, arguments=strange)),
        writer.turn(
            Turn(
                id=turn_id(RECORD, 0),
                record=RECORD,
                owner=ME,
                text="a\ud800b",
                parsed=[ParsedCall(name="f", arguments=strange)],
            )
        ),
    )
    [stored] = await trajectories.tool_calls_of(db, RECORD)
    assert stored.arguments["huge"] == str(10**30)
    assert stored.arguments["fine"] == 1.5
    [turn] = await trajectories.turns_of(db, RECORD)
    assert turn.text == "a?b"


async def test_large_values_keep_both_ends_inline_and_the_whole_in_chunks(db: Database) -> None:
    writer = Writer(db)
    text = "begin " + "tée 茶 " * 500_000 + "end"
    await writer.requested(tool(0))
    await writer.tool_moved(tool(0, ToolCallStatus.RUNNING))
    for _ in range(2):
        await writer.tool_moved(tool(0, ToolCallStatus.OK, result=text))
    [stored] = await trajectories.tool_calls_of(db, RECORD)
    assert len(stored.result.encode()) < chunks.INLINE_BYTES
    assert stored.result.startswith("begin tée")
    assert stored.result.endswith("茶 end")
    assert "bytes left out" in stored.result
    assert await chunks.whole(db, stored.id, "result") == text
    assert await chunks.whole(db, stored.id, "text") is None
    assert chunks.cut("x", "text", "small").inline == "small"


async def test_a_record_that_was_handed_over_goes_on_where_it_was(db: Database) -> None:
    former = Writer(db)
    await former.sent(call(0))
    await former.answered(answered(0, [1]))
    await former.turn(Turn(id=turn_id(RECORD, 0), record=RECORD, owner=ME, index=0))
    await former.sent(call(1))
    await former.answered(answered(1, [2]))
    await former.requested(tool(1))
    await former.sent(call(2))
    assert await trajectories.lose(db, RECORD, ME, resumable=True) == 1
    trunk = await trajectories.take_over(db, RECORD, "shop/train/0/000000", "sampler-1.1")
    assert [turn.index for turn in trunk.turns] == [0]
    assert [each.index for each in trunk.calls] == [0, 1]
    assert [each.status for each in trunk.tool_calls] == ["requested"]
    assert trunk.next_call == 4
    # The former sampler still writes: nothing of it counts.
    with pytest.raises(OwnershipError):
        await former.sent(call(1))
    with pytest.raises(OwnershipError):
        await former.tool_moved(tool(1, ToolCallStatus.LOST))
    with pytest.raises(OwnershipError):
        await former.answered(answered(2, [3]))
    [stored] = await trajectories.tool_calls_of(db, RECORD)
    assert stored.status == "requested"
    # The new one asks for the same tool call again, and goes on.
    latter = Writer(db)
    again = tool(1, owner="sampler-1.1")
    await latter.requested(again)
    again.status = ToolCallStatus.RUNNING
    await latter.tool_moved(again)
    [document] = await db.find("ToolCall", {})
    assert load(ToolCall, document).status == "running"


async def test_nothing_is_written_for_an_owner_that_was_declared_dead(db: Database) -> None:
    now = [0.0]
    lease = owners.Lease(db, ME, unit="sampler-0", role="sampler", clock=lambda: now[0])
    await lease.open()
    sleeper = Writer(db, lease.certain)
    await sleeper.sent(call(0))
    await owners.expire(db, ME, "it sleeps")
    now[0] += 3.0
    writes = [sleeper.answered(answered(0, [1])), sleeper.answered(answered(1, [1]), shown=False)]
    writes += [sleeper.requested(tool(0))]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [OwnershipError] * 3
    assert await db.count("DispatchedSamplingTask", {"status": "done"}) == await db.count("ToolCall", {}) == 0


async def test_what_the_former_owner_sent_last_waits_for_nobody(db: Database) -> None:
    """It woke up after it was declared dead, and before the Record went on elsewhere."""
    former = Writer(db)
    await former.sent(call(0))
    await former.answered(answered(0, [1]))
    await trajectories.lose(db, RECORD, ME, resumable=True)
    await former.sent(call(1))
    trunk = await trajectories.take_over(db, RECORD, "shop/train/0/000000", "sampler-1.1")
    assert [each.index for each in trunk.calls] == [0]
    assert await db.count("DispatchedSamplingTask", {"status": "sent"}) == 0


async def test_a_call_that_comes_after_the_record_went_on_elsewhere_is_not_stored_beside_the_new_ones(
    db: Database,
) -> None:
    """Its sampler was stopped between the answer and the insert, and did not know of its death."""
    former, latter = Writer(db), Writer(db)
    await former.answered(answered(0, [1]), shown=False)
    trunk = await trajectories.take_over(db, RECORD, "shop/train/0/000000", "sampler-1.1")
    await latter.answered(answered(trunk.next_call, [3], owner="sampler-1.1"), shown=False)
    late = [former.answered(answered(1, [2]), shown=False), former.requested(tool(1))]
    assert [type(end) for end in await asyncio.gather(*late, return_exceptions=True)] == [OwnershipError] * 2
    assert [unpack_ids(each.output) for each in (await trajectories.calls_of(db, [RECORD]))[RECORD]] == [[1], [3]]
    assert await db.count("ToolCall", {}) == 0, "what it asks for was asked for by nobody"


async def test_a_call_that_comes_while_the_record_goes_on_elsewhere_is_part_of_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, find_one, late = Writer(db), db.find_one, [answered(1, [2])]

    async def found_before_it_came(*arguments: Any, **options: Any) -> Any:
        found = await find_one(*arguments, **options)
        if late:
            await former.answered(late.pop(), shown=False)
        return found

    await former.answered(answered(0, [1]), shown=False)
    monkeypatch.setattr(db, "find_one", found_before_it_came)
    trunk = await trajectories.take_over(db, RECORD, "shop/train/0/000000", "sampler-1.1")
    assert [each.index for each in trunk.calls] == [0, 1]
    assert {each.owner for each in trunk.calls} == {"sampler-1.1"}
    assert trunk.next_call == 3


async def test_calls_without_tokens_are_not_read_as_tokens(db: Database) -> None:
    writer = Writer(db)
    await writer.sent(call(0))
    failed = call(0, status=CallStatus.FAILED, error="the engine died")
    await writer.answered(failed)
    await writer.sent(call(1, prompt=pack_ids([1])))
    partial = answered(1, [2, 3])
    partial.status = CallStatus.PARTIAL
    await writer.answered(partial)
    assert await trajectories.calls_of(db, ["nobody"]) == {"nobody": []}
    [stored] = (await trajectories.calls_of(db, [RECORD]))[RECORD]
    assert (stored.index, stored.status) == (1, "partial")
