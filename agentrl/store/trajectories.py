"""What happens inside an episode: turns, model calls, tool calls.

Invariants: a write is answered when it is durable; writes that come while another is under way go out together, and
what is made of others behind them, and not at all where those were not taken; the same document again changes nothing,
but one that another owner wrote is never taken for one's own, and a change of what is another owner's by now is never
taken for made (OwnershipError). Tokens are stored once: a call keeps of its prompt only what its base does not have.
Moves that follow each other within a moment may be one write; none is skipped in the tables.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pymongo import UpdateOne

from agentrl.errors import AgentrlError, ConflictError
from agentrl.policies.status_tables import (
    DISPATCHED_SAMPLING_TASK,
    TOOL_CALL,
    Actor,
    CallStatus,
    RecordStatus,
    ToolCallStatus,
    check,
)
from agentrl.store import chunks
from agentrl.store.database import Database, Plain, StoreUnavailableError
from agentrl.store.documents import DispatchedSamplingTask, ToolCall, Turn, call_id, load, storable, to_bson
from agentrl.store.owners import OwnerLostError
from agentrl.store.updates import NOW, setting
from agentrl.tokens.binary_format import unpack_ids
from agentrl.tokens.spans import StoredCall

MOST_AT_ONCE = 500
GATHER_S = 0.025
"""What episodes write within this time goes out together: a command costs the server more than its documents do."""
ORDER = ("DispatchedSamplingTask", "ToolCall", "Turn")
"""As they are made of each other: whoever sees a tool call sees the model call that asked for it, with its tokens. That
whoever sees a turn sees all of it is for those who write: they wait for the rest before."""
_SEE_OTHERS = ORDER[1:]
_RECORD = "Record"

_CALL_SOURCES = DISPATCHED_SAMPLING_TASK.sources
_TOOL_SOURCES = TOOL_CALL.sources
_TOLD_OF_A_TOOL_CALL = ("status", "error_class", "tried_again", "result", "latency_s", "session")


class OwnershipError(ConflictError):
    """What was to be written belongs to another owner: this episode is somebody else's by now."""


class _Waiting(NamedTuple):
    """A write that has not gone out yet."""

    collection: str
    id: str
    record: str
    owner: str
    write: UpdateOne | Plain
    """A change, or a whole new document."""
    written: asyncio.Future[None]


class Writer:
    """Writes for all episodes of one process, a batch at a time."""

    def __init__(self, database: Database, certain: Callable[[], Awaitable[None]] | None = None) -> None:
        """`certain` raises OwnerLostError if the owner of all these episodes was declared dead: nothing is written."""
        self._database = database
        self._certain = certain
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def sent(self, call: DispatchedSamplingTask) -> None:
        """A model call, before it goes to an engine."""
        check(DISPATCHED_SAMPLING_TASK, "", CallStatus.SENT, Actor.SAMPLER, call.id)
        call.sent_at = call.sent_at or _now()
        await self._write(call, storable(to_bson(call)))

    async def answered(self, call: DispatchedSamplingTask, *, shown: bool = True) -> None:
        """What came of it: `done`, `partial` or `failed`, with the tokens. `shown`: it was written when it was sent."""
        status = CallStatus(call.status)
        check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, status, Actor.SAMPLER, call.id)
        if not shown:
            check(DISPATCHED_SAMPLING_TASK, "", CallStatus.SENT, Actor.SAMPLER, call.id)
            call.done_at = _now()
            await self._write(call, storable(to_bson(call)))
            return
        names = ("status", "output", "log_probs", "versions", "finish_reason", "engine", "turn", "error")
        fields = {name: getattr(call, name) for name in names}
        await self._move(call, _CALL_SOURCES(status, Actor.SAMPLER), fields)

    async def turn(self, turn: Turn) -> None:
        """A turn once it is over; its calls and tool calls were written before."""
        short, pieces = chunks.cut(turn.id, "text", turn.text)
        await chunks.write(self._database, pieces)
        turn.text = short
        turn.done_at = turn.done_at or _now()
        await self._write(turn, storable(to_bson(turn)))

    async def requested(self, call: ToolCall) -> None:
        """A tool call; it may be sent to the toolbox when this returns."""
        check(TOOL_CALL, "", ToolCallStatus.REQUESTED, Actor.SAMPLER, call.id)
        call.requested_at = call.requested_at or _now()
        await self._write(call, storable(to_bson(call)))

    async def tool_moved(self, call: ToolCall) -> None:
        """A new status of a tool call, with what the toolbox said. That it runs need not have been written before."""
        status = ToolCallStatus(call.status)
        sources = _TOOL_SOURCES(status, Actor.SAMPLER)
        if ToolCallStatus.RUNNING in sources:
            sources = (*sources, *_TOOL_SOURCES(ToolCallStatus.RUNNING, Actor.SAMPLER))
        short, pieces = chunks.cut(call.id, "result", call.result)
        await chunks.write(self._database, pieces)
        call.result = short
        fields = {name: getattr(call, name) for name in _TOLD_OF_A_TOOL_CALL}
        await self._move(call, sources, fields, ends=status is not ToolCallStatus.RUNNING)

    async def progress(self, record: str, owner: str, update: UpdateOne) -> None:
        """How far a Record is. OwnershipError if it is not this owner's any more, or superseded."""
        await self._queue(_RECORD, record, record, owner, update)

    async def close(self) -> None:
        """Wait until everything is out."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    # ---- inside ----

    async def _move(
        self,
        document: DispatchedSamplingTask | ToolCall,
        sources: Sequence[str],
        fields: Mapping[str, Any],
        *,
        ends: bool = True,
    ) -> None:
        """A conditional update: a status that was reached already is not left again."""
        present = {"_id": document.id, "owner": document.owner, "status": {"$in": list(sources)}}
        computed = {"done_at": NOW} if ends else {}
        await self._write(document, UpdateOne(present, setting(storable(to_bson(fields)), **computed)))

    async def _write(self, document: DispatchedSamplingTask | Turn | ToolCall, write: UpdateOne | Plain) -> None:
        await self._queue(type(document).__name__, document.id, document.record, document.owner, write)

    async def _queue(self, collection: str, id: str, record: str, owner: str, write: UpdateOne | Plain) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(collection, id, record, owner, write, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._flush(), name="write trajectories")
        await written

    async def _flush(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            if (refusal := await self._refusal()) is not None:
                _answer(batch, refusal)
                continue
            failed: dict[str, Exception] = {}
            for together in _in_turn(batch):
                going = ((name, _without(entries, failed)) for name, entries in together.items())
                for found in await asyncio.gather(*(self._write_batch(name, entries) for name, entries in going)):
                    failed |= found
            # So were these asked for by who did not know of it yet.
            self._waiting = _without(self._waiting, failed)

    async def _refusal(self) -> Exception | None:
        """What is inserted after somebody took a Record over cannot be made theirs, and would mislead them later."""
        try:
            if self._certain is not None:
                await self._certain()
        except OwnerLostError as lost:
            return OwnershipError(lost.message)
        except AgentrlError as failed:
            return failed
        return None

    async def _write_batch(self, collection: str, entries: list[_Waiting]) -> dict[str, Exception]:
        """The Records of which something was not written, each with the reason."""
        if not entries:
            return {}
        try:
            known = await self._insert(collection, entries)
            others = {id(entry) for entry in known}
            new = (entry for entry in entries if not isinstance(entry.write, UpdateOne) and id(entry) not in others)
            _answer(new, None)
            suspects = [*known, *await self._change(collection, entries)]
            lost = await self._lost(collection, suspects) if suspects else []
        except StoreUnavailableError as away:
            return _answer(entries, away)
        except Exception as failed:  # noqa: BLE001 - it is raised where the write was asked for
            if len(entries) == 1:
                return _answer(entries, failed)
            # One of them is at fault. The others must not suffer for it, and writing them again is harmless.
            by_record: dict[str, Exception] = {}
            for entry in entries:
                by_record |= await self._write_batch(collection, [entry])
            return by_record
        _answer([entry for entry in entries if entry not in lost], None)
        return _answer(lost, OwnershipError("What was to be changed belongs to another owner."))

    async def _insert(self, collection: str, entries: list[_Waiting]) -> list[_Waiting]:
        """What is new. Answers what was there before: written by this owner, or by another."""
        new: dict[str, tuple[_Waiting, Plain]] = {}
        there = []
        for entry in entries:
            if isinstance(entry.write, UpdateOne):
                continue
            if entry.id in new:
                there.append(entry)
            else:
                new[entry.id] = entry, entry.write
        known = await self._database.insert_missing(collection, [document for _, document in new.values()])
        return [*there, *(new[id][0] for id in known)]

    async def _change(self, collection: str, entries: list[_Waiting]) -> list[_Waiting]:
        """Answers all changes if one of them found nothing to change."""
        changes = [(entry, entry.write) for entry in entries if isinstance(entry.write, UpdateOne)]
        done = await self._database.write(collection, [write for _, write in changes])
        return [entry for entry, _ in changes] if done.matched < len(changes) else []

    async def _lost(self, collection: str, entries: list[_Waiting]) -> list[_Waiting]:
        """Of writes that changed nothing, those whose document is another owner's. The others had been made before."""
        ids = {"_id": {"$in": [entry.id for entry in entries]}}
        found = await self._database.find(collection, ids, projection=["owner", "status"])
        # A Record that is not under way any more is nobody's; nothing else loses its owner.
        held = [document for document in found if collection != _RECORD or document["status"] == RecordStatus.RUNNING]
        owners = {document["_id"]: document["owner"] for document in held}
        return [entry for entry in entries if owners.get(entry.id) != entry.owner]


def _in_turn(batch: Iterable[_Waiting]) -> Iterator[dict[str, list[_Waiting]]]:
    """What may be written at the same time, by collection; then what is made of it: new tool calls with their changes,
    and turns. So an episode that wants a tool waits for two answers of the server, whatever the others write."""
    first: dict[str, list[_Waiting]] = defaultdict(list)
    then: dict[str, list[_Waiting]] = defaultdict(list)
    new = {entry.id for entry in batch if entry.collection in _SEE_OTHERS and not isinstance(entry.write, UpdateOne)}
    for entry in batch:
        (then if entry.id in new else first)[entry.collection].append(entry)
    yield first
    yield then


def _without(entries: list[_Waiting], failed: Mapping[str, Exception]) -> list[_Waiting]:
    """What may be written. Answers what is made of what was not."""
    held = [entry for entry in entries if entry.record in failed and entry.collection in _SEE_OTHERS]
    for entry in held:
        _answer([entry], failed[entry.record])
    return [entry for entry in entries if entry not in held] if held else entries


def _answer(entries: Iterable[_Waiting], error: Exception | None) -> dict[str, Exception]:
    """The Records concerned, where it is an error."""
    failed: dict[str, Exception] = {}
    for entry in entries:
        if error is not None:
            failed[entry.record] = error
        if entry.written.done():  # whoever asked was cancelled
            continue
        if error is None:
            entry.written.set_result(None)
        else:
            entry.written.set_exception(error)
    return failed


def _now() -> datetime:
    """For times that people read and nothing is decided by."""
    return datetime.now(UTC)


# ---- after the owner is gone ----


async def lose(database: Database, record: str, owner: str, *, resumable: bool) -> int:
    """What nobody waits for any more: by the steward, before it frees the Record of a dead sampler, and by a sampler
    that could not write how its calls ended.

    A resumable loop asks the toolbox again under the same call ids, so its tool calls stay as they are.
    """
    check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, CallStatus.FAILED, Actor.STEWARD, record)
    sent = {"record": record, "owner": owner, "status": CallStatus.SENT}
    lost = {"status": CallStatus.FAILED, "error": "nobody wrote how it ended"}
    calls = await database.update_many("DispatchedSamplingTask", sent, setting(lost, done_at=NOW))
    if resumable:
        return calls
    sources = list(_TOOL_SOURCES(ToolCallStatus.LOST, Actor.STEWARD))
    open_calls = {"record": record, "owner": owner, "status": {"$in": sources}}
    gone = {"status": ToolCallStatus.LOST, "error_class": "infrastructure"}
    return calls + await database.update_many("ToolCall", open_calls, setting(gone, done_at=NOW))


class Trunk(NamedTuple):
    """What a Record that was handed over has already."""

    turns: list[Turn]
    calls: list[DispatchedSamplingTask]
    """With tokens, in their order; one more than turns have if the last turn was not over."""
    tool_calls: list[ToolCall]
    next_call: int
    """An index that no call had, not even a lost one, or one that was not stored."""


async def take_over(database: Database, record: str, task: str, owner: str) -> Trunk:
    """Go on with a Record that was handed over. From here on its documents are the new owner's, so whatever the former
    one still writes is refused."""
    while True:
        for collection in ORDER:
            await database.update_many(collection, {"record": record}, {"$set": {"owner": owner}})
        # The former owner may have sent one more since it was declared dead: nobody waits for that.
        await lose(database, record, owner, resumable=True)
        last = await database.find_one(
            "DispatchedSamplingTask", {"record": record}, sort=[("index", -1)], projection=["index"]
        )
        place = int(last["index"]) + 1 if last else 0
        if not await database.insert_missing("DispatchedSamplingTask", [_kept_place(record, task, owner, place)]):
            break
    return Trunk(
        turns=await turns_of(database, record),
        calls=(await calls_of(database, [record]))[record],
        tool_calls=await tool_calls_of(database, record),
        next_call=place + 1,
    )


def _kept_place(record: str, task: str, owner: str, index: int) -> Plain:
    """The former sampler may have been stopped with an answer that only had to be inserted, and wake up at any time:
    then its call finds its name taken, and so it writes nothing that follows from it."""
    check(DISPATCHED_SAMPLING_TASK, "", CallStatus.SENT, Actor.SAMPLER, record)
    check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, CallStatus.FAILED, Actor.SAMPLER, record)
    kept = DispatchedSamplingTask(
        id=call_id(record, index),
        record=record,
        task=task,
        index=index,
        owner=owner,
        status=CallStatus.FAILED,
        error="its sampler had stored none when another one went on",
        sent_at=_now(),
        done_at=_now(),
    )
    document: Plain = storable(to_bson(kept))
    return document


# ---- reading ----


async def turns_of(database: Database, record: str) -> list[Turn]:
    return [load(Turn, turn) for turn in await database.find("Turn", {"record": record}, sort=[("index", 1)])]


async def tool_calls_of(database: Database, record: str) -> list[ToolCall]:
    found = await database.find("ToolCall", {"record": record}, sort=[("turn", 1), ("_id", 1)])
    return [load(ToolCall, call) for call in found]


async def calls_of(database: Database, records: Iterable[str]) -> dict[str, list[DispatchedSamplingTask]]:
    """The model calls of each Record that have tokens, in their order."""
    wanted = list(records)
    answered = [CallStatus.DONE, CallStatus.PARTIAL]
    found = await database.find(
        "DispatchedSamplingTask",
        {"record": {"$in": wanted}, "status": {"$in": answered}},
        sort=[("record", 1), ("index", 1)],
    )
    by_record: dict[str, list[DispatchedSamplingTask]] = defaultdict(list, {record: [] for record in wanted})
    for document in found:
        call = load(DispatchedSamplingTask, document)
        by_record[call.record].append(call)
    return dict(by_record)


def stored_calls(calls: Sequence[DispatchedSamplingTask]) -> dict[int, StoredCall]:
    """As the token tree reads them."""
    index_of = {call.id: call.index for call in calls}
    return {
        call.index: StoredCall(
            prompt=unpack_ids(call.prompt),
            output=unpack_ids(call.output),
            base=index_of[call.base] if call.base else None,
            base_length=call.base_length,
        )
        for call in calls
    }
