"""Model calls with texts and tool calls: batched, ordered, idempotent, owned; large values cut; tokens rebuilt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentrl.policies.status_tables import CallStatus, IllegalMoveError, ToolCallStatus
from agentrl.store import calls, chunks, owners
from agentrl.store.call_writer import OwnershipError, Writer
from agentrl.store.database import Bulk, Database, StoreUnavailableError
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, ParsedCall, ToolCall
from agentrl.tokens.binary_format import pack_floats, pack_ids, unpack_ids
from agentrl.tokens.spans import full_prompts

RECORD = "shop/train/0/000001#r1.s0.a1"
TASK = "shop/train/0/000001"
ME, NEXT = "sampler-0.1", "sampler-1.1"
CALLS = "DispatchedSamplingTask"
ANSWER = ("status", "output", "log_probs", "versions", "finish_reason")


def call(index: int, *, owner: str = ME, record: str = RECORD, **fields: Any) -> DispatchedSamplingTask:
    id = call_id(record, index)
    return DispatchedSamplingTask(id=id, record=record, index=index, turn=index, owner=owner, **fields)


def answered(index: int, output: list[int], **fields: Any) -> DispatchedSamplingTask:
    return call(
        index,
        **{"status": CallStatus.DONE} | fields,
        output=pack_ids(output),
        log_probs=pack_floats([-0.5] * len(output)),
        versions=[(3, len(output))],
        finish_reason="stop",
    )


def tool(number: int, status: str = ToolCallStatus.REQUESTED, *, of: int = 0, **fields: Any) -> ToolCall:
    return ToolCall(id=tool_call_id(call_id(RECORD, of), number), status=status, **fields)


async def stored_tools(db: Database) -> list[ToolCall]:
    return [one for each in await calls.of_record(db, RECORD) for one in each.tool_calls]


async def test_an_episode_is_stored_once_and_its_tokens_are_rebuilt(db: Database) -> None:
    writer = Writer(db)
    await writer.insert(call(0, prompt=pack_ids([1, 2, 3])))
    await writer.update(answered(0, [4, 5], text="lookup"), [*ANSWER, "text"])
    await writer.insert(answered(1, [7], base=call_id(RECORD, 0), base_length=5, prompt=pack_ids([6])))
    stored = (await calls.with_tokens(db, [RECORD]))[RECORD]
    assert [(each.status, each.text) for each in stored] == [("done", "lookup"), ("done", "")]
    assert stored[0].versions == [(3, 2)]
    assert full_prompts(calls.stored_calls(stored)) == {0: [1, 2, 3], 1: [1, 2, 3, 4, 5, 6]}
    [without, _] = (await calls.with_tokens(db, [RECORD], texts=False))[RECORD]
    assert (without.output, without.text) == (stored[0].output, "")


async def test_calls_of_many_records_are_found_by_ranges_of_ids(db: Database) -> None:
    writer = Writer(db)
    names = [f"shop/train/0/{task:06d}#r1.s{seat}.a1" for task in range(130) for seat in range(2)]
    await asyncio.gather(*(writer.insert(answered(0, [seat], record=name)) for seat, name in enumerate(names)))
    found = await calls.with_tokens(db, names[1:])
    assert [len(found[name]) for name in names[1:]] == [1] * 259
    assert names[0] not in found


async def test_writing_the_same_again_changes_nothing(db: Database) -> None:
    writer = Writer(db)
    for _ in range(3):
        await writer.insert(call(0, prompt=pack_ids([1])))
        await writer.update(answered(0, [4, 5]), ANSWER)
        await writer.update(call(0), (), new=[tool(0)])
        await writer.update(call(0), (), [tool(0, ToolCallStatus.OK, result="7")])
    before = await db.find(CALLS, {})
    await writer.update(answered(0, [9, 9, 9]), ANSWER)
    await writer.insert(answered(0, [9]))
    assert await db.find(CALLS, {}) == before
    assert len(before) == 1


async def test_document_of_another_owner_is_not_taken_for_ones_own(db: Database) -> None:
    writer = Writer(db)
    await writer.insert(call(0, owner="sampler-9.9"))
    others = [writer.insert(call(0, record=f"{RECORD}{number}")) for number in range(5)]
    results = await asyncio.gather(writer.insert(call(0)), *others, return_exceptions=True)
    assert isinstance(results[0], OwnershipError)
    assert results[1:] == [None] * 5, "other records of the batch do not suffer for it"
    assert await db.count(CALLS, {"owner": ME}) == 5


async def test_change_of_another_owners_document_is_refused(db: Database) -> None:
    writer = Writer(db)
    await asyncio.gather(*(writer.insert(call(index)) for index in range(3)))
    await writer.update(answered(0, [1]), ANSWER)
    await db.update_one(CALLS, {"_id": call(1).id}, {"$set": {"owner": "sampler-9.9"}})
    moves = [writer.update(answered(index, [1]), ANSWER) for index in range(3)]
    results = await asyncio.gather(*moves, return_exceptions=True)
    assert results[0] is None, "it was made before, which is just as good"
    assert isinstance(results[1], OwnershipError)
    assert results[2] is None
    assert await db.count(CALLS, {"status": "done"}) == 2


class Counting(Database):
    """Counts commands, and documents in each."""

    def __init__(self, like: Database) -> None:
        super().__init__(like._client, like.name)
        self.inserts: list[int] = []

    async def insert_missing(self, collection: str, documents: Any) -> list[Any]:
        self.inserts += [len(documents)] if documents else []
        return await super().insert_missing(collection, documents)


async def test_writes_that_come_together_go_out_together(db: Database) -> None:
    counting = Counting(db)
    writer = Writer(counting)
    records = [f"{RECORD}{number}" for number in range(200)]
    await asyncio.gather(*(writer.insert(call(0, record=record)) for record in records))
    assert await db.count(CALLS, {}) == 200
    assert len(counting.inserts) <= 3
    await writer.close()


async def test_second_call_of_a_record_goes_out_after_the_first(db: Database) -> None:
    counting = Counting(db)
    writer = Writer(counting)
    inserted = [writer.insert(answered(index, [index])) for index in range(2)]
    added = writer.update(call(1), (), new=[tool(0, of=1)])
    other = writer.insert(answered(0, [1], record=f"{RECORD}9"))
    await asyncio.gather(*inserted, added, other)
    assert [one.id for one in await stored_tools(db)] == [tool(0, of=1).id]
    assert counting.inserts[:2] == [2, 1]


class Away(Database):
    async def insert_missing(self, collection: str, documents: Any) -> list[Any]:
        raise StoreUnavailableError("MongoDB did not answer.")

    async def write(self, collection: str, writes: Any, *, ordered: bool = True) -> Bulk:
        raise StoreUnavailableError("MongoDB did not answer.")


async def test_every_write_fails_while_the_database_is_away(db: Database) -> None:
    writer = Writer(Away(db._client, db.name))
    results = await asyncio.gather(*(writer.insert(call(index)) for index in range(3)), return_exceptions=True)
    assert all(isinstance(result, StoreUnavailableError) for result in results)


class BackTooSoon(Database):
    """Away for the first call of one Record, and there again for what comes after it."""

    def __init__(self, like: Database) -> None:
        super().__init__(like._client, like.name)
        self.on_away: Callable[[], None] = lambda: None

    async def insert_missing(self, collection: str, documents: Any) -> list[Any]:
        if any(each["_id"] == call_id(RECORD, 0) for each in documents):
            self.on_away()
            raise StoreUnavailableError("MongoDB did not answer.")
        return await super().insert_missing(collection, documents)


async def test_writes_that_depend_on_a_failed_write_are_not_made(db: Database) -> None:
    away = BackTooSoon(db)
    writer = Writer(away)
    meanwhile: list[asyncio.Future[None]] = []
    away.on_away = lambda: meanwhile.append(writer.insert(answered(2, [3])))
    first = writer.insert(answered(0, [4, 5]))
    results = await asyncio.gather(
        first,
        writer.update(call(0), (), new=[tool(0)]),
        writer.insert(answered(1, [6])),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [StoreUnavailableError] * 3
    await asyncio.gather(*meanwhile, return_exceptions=True)
    assert isinstance(meanwhile[0].exception(), StoreUnavailableError), "it was queued before the failure was known"
    assert await calls.of_record(db, RECORD) == []


async def test_a_failed_write_does_not_affect_other_records(db: Database) -> None:
    other = f"{RECORD}-other"
    away = BackTooSoon(db)
    writer = Writer(away)
    theirs: list[asyncio.Future[None]] = []
    away.on_away = lambda: theirs.append(writer.insert(answered(0, [4], record=other)))
    with pytest.raises(StoreUnavailableError):
        await writer.insert(answered(0, [4, 5]))
    await theirs[0]
    assert len(await calls.of_record(db, other)) == 1


async def test_a_tool_call_goes_from_requested_to_its_end_and_not_further(db: Database) -> None:
    writer = Writer(db)
    first = tool(0, server="shop", tool="lookup", arguments={"item": "$tea"})
    await writer.insert(answered(0, [1], tool_calls=[first, tool(1)]))
    await writer.update(call(0), (), [tool(0, ToolCallStatus.RUNNING, session="x")])
    await writer.update(call(0), (), [tool(0, ToolCallStatus.OK, result="$7", latency_s=0.2, session="x")])
    await writer.update(call(0), (), [tool(0, ToolCallStatus.TIMEOUT), tool(1, ToolCallStatus.LOST)])
    stored, other = await stored_tools(db)
    assert (stored.status, stored.result, stored.arguments) == ("ok", "$7", {"item": "$tea"})
    assert other.status == "lost"
    with pytest.raises(IllegalMoveError):
        await writer.update(call(0, status=CallStatus.SENT), ["status"])


async def test_what_models_write_is_stored_as_far_as_it_can_be(db: Database) -> None:
    writer = Writer(db)
    strange = {"huge": 10**30, "half": "\ud800", "nul\0key": [1, {"deep": -(2**70)}], "fine": 1.5}
    parsed = [ParsedCall(name="f", arguments=strange)]
    await writer.insert(answered(0, [1], text="a\ud800b", parsed=parsed, tool_calls=[tool(0, arguments=strange)]))
    await writer.update(answered(0, [1], text="b\ud800c", parsed=parsed), ["text", "parsed"])
    [stored] = await calls.of_record(db, RECORD)
    for arguments in (stored.tool_calls[0].arguments, stored.parsed[0].arguments):
        assert arguments["huge"] == str(10**30)
        assert arguments["fine"] == 1.5
    assert stored.text == "b?c"


async def test_large_values_keep_both_ends_inline_and_the_whole_in_chunks(db: Database) -> None:
    writer = Writer(db)
    text = "begin " + "tée 茶 " * 500_000 + "end"
    await writer.insert(answered(0, [1], text=text, tool_calls=[tool(0, ToolCallStatus.RUNNING)]))
    for _ in range(2):
        await writer.update(call(0), (), [tool(0, ToolCallStatus.OK, result=text)])
    [document] = await calls.of_record(db, RECORD)
    [stored] = document.tool_calls
    assert len(stored.result.encode()) < chunks.INLINE_BYTES
    assert stored.result.startswith("begin tée")
    assert stored.result.endswith("茶 end")
    assert "bytes left out" in stored.result
    assert await chunks.whole(db, stored.id, "result") == text
    assert await chunks.whole(db, document.id, "text") == text
    assert await chunks.whole(db, stored.id, "text") is None
    assert chunks.cut("x", "text", "small").inline == "small"


async def test_a_record_that_was_handed_over_goes_on_where_it_was(db: Database) -> None:
    former = Writer(db)
    await former.insert(answered(0, [1], over_at=calls.now()))
    await former.insert(answered(1, [2], tool_calls=[tool(0, of=1)]))
    await former.insert(call(2))
    assert await calls.lose(db, RECORD, ME, resumable=True) == 1
    trunk = await calls.take_over(db, RECORD, TASK, NEXT)
    assert [each.index for each in trunk.calls if each.over_at] == [0]
    assert [each.index for each in trunk.answered] == [0, 1]
    assert [one.status for each in trunk.calls for one in each.tool_calls] == ["requested"]
    assert trunk.next_call == 4
    # The former sampler still writes: nothing of it counts.
    with pytest.raises(OwnershipError):
        await former.insert(call(1))
    with pytest.raises(OwnershipError):
        await former.update(call(1), (), [tool(0, ToolCallStatus.LOST, of=1)])
    with pytest.raises(OwnershipError):
        await former.update(call(1), (), new=[tool(1, of=1)])
    with pytest.raises(OwnershipError):
        await former.update(answered(2, [3]), ANSWER)
    [stored] = await stored_tools(db)
    assert stored.status == "requested"
    # The new one joins the same tool call, and goes on.
    await Writer(db).update(call(1, owner=NEXT), (), [tool(0, ToolCallStatus.RUNNING, of=1)])
    [stored] = await stored_tools(db)
    assert stored.status == "running"


async def test_open_calls_of_a_record_that_cannot_be_resumed_are_lost(db: Database) -> None:
    writer = Writer(db)
    await writer.insert(answered(0, [1], tool_calls=[tool(0, ToolCallStatus.OK), tool(1), tool(2, "running")]))
    await writer.insert(call(1))
    assert await calls.lose(db, RECORD, NEXT, resumable=False) == 0, "it is another owner's"
    assert await calls.lose(db, RECORD, ME, resumable=False) == 2
    assert [one.status for one in await stored_tools(db)] == ["ok", "lost", "lost"]
    assert [each.status for each in await calls.of_record(db, RECORD)] == ["done", "failed"]


async def test_nothing_is_written_for_an_owner_that_was_declared_dead(db: Database) -> None:
    now = [0.0]
    lease = owners.Lease(db, ME, unit="sampler-0", role="sampler", clock=lambda: now[0])
    await lease.open()
    sleeper = Writer(db, lease.certain)
    await sleeper.insert(call(0))
    await owners.expire(db, ME, "it sleeps")
    now[0] += 3.0
    writes = [sleeper.update(answered(0, [1]), ANSWER), sleeper.insert(answered(1, [1]))]
    writes += [sleeper.update(call(0), (), new=[tool(0)])]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [OwnershipError] * 3
    assert [each.status for each in await calls.of_record(db, RECORD)] == ["sent"]


async def test_last_call_of_the_former_owner_ends_with_the_take_over(db: Database) -> None:
    """The former owner continues after it was declared dead, and before another owner takes the Record over."""
    former = Writer(db)
    await former.insert(answered(0, [1]))
    await calls.lose(db, RECORD, ME, resumable=True)
    await former.insert(call(1))
    trunk = await calls.take_over(db, RECORD, TASK, NEXT)
    assert [each.index for each in trunk.answered] == [0]
    assert await db.count(CALLS, {"status": "sent"}) == 0


async def test_call_that_arrives_after_the_take_over_is_not_stored_beside_the_new_ones(db: Database) -> None:
    """Its sampler was stopped between the answer and the insert, and did not know of its death."""
    former, latter = Writer(db), Writer(db)
    await former.insert(answered(0, [1]))
    trunk = await calls.take_over(db, RECORD, TASK, NEXT)
    await latter.insert(answered(trunk.next_call, [3], owner=NEXT))
    late = [former.insert(answered(1, [2], tool_calls=[tool(1, of=1)])), former.insert(answered(2, [4]))]
    assert [type(end) for end in await asyncio.gather(*late, return_exceptions=True)] == [OwnershipError] * 2
    stored = (await calls.with_tokens(db, [RECORD]))[RECORD]
    assert [unpack_ids(each.output) for each in stored] == [[1], [3]]
    assert await stored_tools(db) == []


@pytest.mark.parametrize("after", ["find", "update_many"])
async def test_call_that_arrives_during_the_take_over_is_part_of_the_record(
    db: Database, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    former, act, late = Writer(db), getattr(db, after), [answered(1, [2])]

    async def done_before_it_came(*arguments: Any, **options: Any) -> Any:
        done = await act(*arguments, **options)
        if late:
            await former.insert(late.pop())
        return done

    await former.insert(answered(0, [1]))
    monkeypatch.setattr(db, after, done_before_it_came)
    trunk = await calls.take_over(db, RECORD, TASK, NEXT)
    assert [each.index for each in trunk.answered] == [0, 1]
    assert {each.owner for each in trunk.calls} == {NEXT}
    assert trunk.next_call == 3


async def test_calls_without_tokens_are_not_read_as_tokens(db: Database) -> None:
    writer = Writer(db)
    await writer.insert(call(0))
    await writer.update(call(0, status=CallStatus.FAILED, error="the engine died"), ["status", "error"])
    await writer.insert(answered(1, [2, 3], status=CallStatus.PARTIAL, prompt=pack_ids([1])))
    assert await calls.with_tokens(db, ["nobody"]) == {"nobody": []}
    [stored] = (await calls.with_tokens(db, [RECORD]))[RECORD]
    assert (stored.index, stored.status) == (1, "partial")


async def test_a_turn_with_many_long_results_fits_into_its_document(db: Database) -> None:
    """MongoDB takes 16 MiB."""
    writer = Writer(db)
    texts = [f"{number:04d}" * 60_000 for number in range(80)]
    made = answered(0, [4], tool_calls=[tool(number) for number in range(80)])
    await writer.insert(made)
    for one, text in zip(made.tool_calls, texts, strict=True):
        one.status, one.result = ToolCallStatus.OK, text
    await writer.update(made, (), made.tool_calls)
    stored = await stored_tools(db)
    assert [one.result[:4] for one in stored] == [text[:4] for text in texts]
    assert await chunks.whole(db, stored[79].id, "result") == texts[79]
    await writer.insert(msgspec.structs.replace(made, id=call_id(RECORD, 1), index=1))
    assert [len(each.tool_calls) for each in await calls.of_record(db, RECORD)] == [80, 80]
