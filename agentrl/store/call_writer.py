"""Writes what happens inside episodes: model calls with their texts and tool calls, and the progress of Records.

One writer serves all episodes of a process, because a command costs the server more than its documents do.

Invariants: the future of a write resolves when the write is durable; writes that arrive while another is under way are
sent together; a model call of a Record is sent after the one before it, and not at all if that one was refused; writing
the same document again changes nothing, but a document of another owner raises OwnershipError. Moves of a status that
follow each other closely may be one write, but each is checked with the tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
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
from agentrl.store.documents import Chunk, DispatchedSamplingTask, ToolCall, storable, to_bson
from agentrl.store.owners import OwnerLostError

MOST_AT_ONCE = 500
GATHER_S = 0.025
"""Writes of episodes within this time are sent together."""
RESULTS_BYTES = 8 << 20
"""The most bytes that all results of a turn take in its document, which MongoDB limits to 16 MiB."""
CALLS = DispatchedSamplingTask.__name__
_RECORDS = "Record"
_MOVES_OF_A_TOOL_CALL = ("status", "error_class", "tried_again", "result", "latency_s", "session", "done_at")


class OwnershipError(ConflictError):
    """The document belongs to another owner, so another sampler goes on with this episode."""


class _Entry(NamedTuple):
    """A write that was not sent yet."""

    collection: str
    id: str
    record: str
    owner: str
    write: UpdateOne | Plain
    """A change, or a whole new document."""
    chunks: Sequence[Chunk]
    """Parts of values that are too large for the document; they are written first."""
    written: asyncio.Future[None]

    @property
    def is_new(self) -> bool:
        return not isinstance(self.write, UpdateOne)


class Writer:
    """Queues writes and sends them. The futures that its methods return raise the error of a failed write."""

    def __init__(self, database: Database, certain: Callable[[], Awaitable[None]] | None = None) -> None:
        """`certain` raises OwnerLostError if the owner of all these episodes was declared dead; then nothing is
        written."""
        self._database = database
        self._certain = certain
        self._waiting: list[_Entry] = []
        self._writing: asyncio.Task[None] | None = None

    def insert(self, call: DispatchedSamplingTask) -> asyncio.Future[None]:
        """Insert a model call with everything that it has by now."""
        check(DISPATCHED_SAMPLING_TASK, "", CallStatus.SENT, Actor.SAMPLER, call.id)
        if call.status != CallStatus.SENT:
            check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, CallStatus(call.status), Actor.SAMPLER, call.id)
        for tool_call in call.tool_calls:
            check(TOOL_CALL, "", ToolCallStatus.REQUESTED, Actor.SAMPLER, tool_call.id)
        document: Plain = to_bson(call)
        large: list[Chunk] = []
        for name in ("text", "parsed", "error"):
            document[name] = _fitting(call.id, name, document[name], large)
        document["called_at"], document["failed_at"] = _called_at(call.tool_calls), _failed_at(call.tool_calls)
        document["tool_calls"] = [_plain_tool_call(one, large, of=call) for one in call.tool_calls]
        return self._queue(CALLS, call.id, call.record, call.owner, document, large)

    def update(
        self,
        call: DispatchedSamplingTask,
        names: Collection[str],
        moved: Sequence[ToolCall] = (),
        *,
        new: Sequence[ToolCall] = (),
    ) -> asyncio.Future[None]:
        """Update these fields of a stored model call, and either the present status of some of its tool calls, or add
        `new` tool calls. A later status is never replaced by an earlier one."""
        mine: Plain = {"_id": call.id, "owner": call.owner}
        if "status" in names:
            check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, CallStatus(call.status), Actor.SAMPLER, call.id)
            mine["status"] = {"$in": list(DISPATCHED_SAMPLING_TASK.sources(CallStatus(call.status), Actor.SAMPLER))}
        large: list[Chunk] = []
        update: Plain = {}
        fields = {name: _fitting(call.id, name, to_bson(getattr(call, name)), large) for name in names}
        still: list[Mapping[str, Any]] = []
        for number, tool_call in enumerate(moved):
            plain = _plain_tool_call(tool_call, large, of=call)
            fields |= {f"tool_calls.$[t{number}].{name}": plain[name] for name in _MOVES_OF_A_TOOL_CALL}
            before = _sources_of(ToolCallStatus(tool_call.status))
            still.append({f"t{number}.id": tool_call.id, f"t{number}.status": {"$in": before}})
        if new:
            assert not moved, "one update cannot change tool calls and add others"
            for tool_call in new:
                check(TOOL_CALL, "", ToolCallStatus.REQUESTED, Actor.SAMPLER, tool_call.id)
            mine["tool_calls.id"] = {"$nin": [one.id for one in new]}
            update["$push"] = {"tool_calls": {"$each": [_plain_tool_call(one, large, of=call) for one in new]}}
        if fields:
            update["$set"] = fields
        newest = {"called_at": _called_at(new), "failed_at": _failed_at([*moved, *new])}
        if newest := {name: at for name, at in newest.items() if at is not None}:
            update["$max"] = newest
        change = UpdateOne(mine, update, array_filters=still or None)
        return self._queue(CALLS, call.id, call.record, call.owner, change, large)

    def progress(self, record: str, owner: str, update: UpdateOne) -> asyncio.Future[None]:
        """Store the progress of a Record. Raises OwnershipError if it no longer belongs to this owner, or is
        superseded."""
        return self._queue(_RECORDS, record, record, owner, update, ())

    async def close(self) -> None:
        """Wait until everything is written."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    # ---- inside ----

    def _queue(
        self, collection: str, id: str, record: str, owner: str, write: UpdateOne | Plain, large: Sequence[Chunk]
    ) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(collection, id, record, owner, write, large, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._flush(), name="write model calls")
        return written

    async def _flush(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch = self._next_batch()
            if (refusal := await self._refusal()) is not None:
                _answer(batch, refusal)
                continue
            calls = [entry for entry in batch if entry.collection == CALLS]
            records = [entry for entry in batch if entry.collection == _RECORDS]
            failed, _ = await asyncio.gather(self._write_batch(CALLS, calls), self._write_batch(_RECORDS, records))
            # They were queued before the failure was known.
            held = [entry for entry in self._waiting if entry.record in failed and entry.collection == CALLS]
            for entry in held:
                _answer([entry], failed[entry.record])
            if held:
                self._waiting = [entry for entry in self._waiting if entry not in held]

    def _next_batch(self) -> list[_Entry]:
        """The next writes in order, but only one new document for each Record, because its later documents depend on
        it."""
        batch: list[_Entry] = []
        later: list[_Entry] = []
        begun: dict[str, str] = {}
        held: set[str] = set()
        for entry in self._waiting:
            if entry.collection == CALLS and entry.is_new and begun.setdefault(entry.record, entry.id) != entry.id:
                held.add(entry.record)
            full = len(batch) >= MOST_AT_ONCE
            (later if full or entry.record in held else batch).append(entry)
        self._waiting = later
        return batch

    async def _refusal(self) -> Exception | None:
        """Why a Record's document must not be inserted: if another sampler has taken the Record over, that sampler
        could no longer adopt the document."""
        try:
            if self._certain is not None:
                await self._certain()
        except OwnerLostError as lost:
            return OwnershipError(lost.message)
        except AgentrlError as failed:
            return failed
        return None

    async def _write_batch(self, collection: str, entries: list[_Entry]) -> dict[str, Exception]:
        """Returns the Records with a failed write, each with the reason."""
        if not entries:
            return {}
        try:
            await chunks.write(self._database, [chunk for entry in entries for chunk in entry.chunks])
            suspects = [*await self._insert(collection, entries), *await self._change(collection, entries)]
            lost = await self._lost(collection, suspects) if suspects else []
        except StoreUnavailableError as away:
            return _answer(entries, away)
        except Exception as failed:  # noqa: BLE001 - it is raised where the write was queued
            if len(entries) == 1:
                return _answer(entries, failed)
            # One write is at fault. The others must not fail because of it, and writing them again is harmless.
            by_record: dict[str, Exception] = {}
            for entry in entries:
                by_record |= await self._write_batch(collection, [entry])
            return by_record
        _answer([entry for entry in entries if entry not in lost], None)
        return _answer(lost, OwnershipError("What was to be changed belongs to another owner."))

    async def _insert(self, collection: str, entries: list[_Entry]) -> list[_Entry]:
        """Returns the entries whose document already existed, from this owner or another."""
        new: dict[str, tuple[_Entry, Plain]] = {}
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

    async def _change(self, collection: str, entries: list[_Entry]) -> list[_Entry]:
        """Returns all changes if one of them found nothing to change."""
        changes = [(entry, entry.write) for entry in entries if isinstance(entry.write, UpdateOne)]
        done = await self._database.write(collection, [write for _, write in changes])
        return [entry for entry, _ in changes] if done.matched < len(changes) else []

    async def _lost(self, collection: str, entries: list[_Entry]) -> list[_Entry]:
        """Of writes that changed nothing, those whose document belongs to another owner. The others had been made
        before."""
        ids = {"_id": {"$in": [entry.id for entry in entries]}}
        documents = await self._database.find(collection, ids, projection=["owner", "status"])
        # A Record that is not under way any more has no owner; nothing else loses its owner.
        held = [
            document for document in documents if collection != _RECORDS or document["status"] == RecordStatus.RUNNING
        ]
        owners = {document["_id"]: document["owner"] for document in held}
        return [entry for entry in entries if owners.get(entry.id) != entry.owner]


def _fitting(
    document: str, field: str, value: Any, large: list[Chunk], *, inline_bytes: int = chunks.INLINE_BYTES
) -> Any:
    """The value in a form that fits into the document. The whole of a long text is appended to `large`."""
    if not isinstance(value, str):
        return storable(value) if isinstance(value, list | dict) else value
    cut = chunks.cut(document, field, value, inline_bytes=inline_bytes)
    large += cut.chunks
    return storable(cut.inline)


def _plain_tool_call(call: ToolCall, large: list[Chunk], *, of: DispatchedSamplingTask) -> Plain:
    """Each result has an equal share of the room in the document."""
    share = min(chunks.INLINE_BYTES, RESULTS_BYTES // max(1, len(of.tool_calls)))
    plain: Plain = to_bson(call)
    for name in ("server", "tool", "arguments"):
        plain[name] = storable(plain[name])
    plain["result"] = _fitting(call.id, "result", call.result, large, inline_bytes=share)
    return plain


def _called_at(tool_calls: Iterable[ToolCall]) -> datetime | None:
    return max((tool_call.requested_at for tool_call in tool_calls if tool_call.requested_at), default=None)


def _failed_at(tool_calls: Iterable[ToolCall]) -> datetime | None:
    return max(
        (tool_call.done_at for tool_call in tool_calls if tool_call.error_class and tool_call.done_at), default=None
    )


def _sources_of(status: ToolCallStatus) -> list[str]:
    """The statuses from which a tool call may move. Its status `running` may not have been written."""
    sources = TOOL_CALL.sources(status, Actor.SAMPLER)
    if ToolCallStatus.RUNNING in sources:
        sources = (*sources, *TOOL_CALL.sources(ToolCallStatus.RUNNING, Actor.SAMPLER))
    return list(sources)


def _answer(entries: Iterable[_Entry], error: Exception | None) -> dict[str, Exception]:
    """Resolves the futures of the entries. For an error, returns their Records with it."""
    failed: dict[str, Exception] = {}
    for entry in entries:
        if error is not None:
            failed[entry.record] = error
        if entry.written.done():  # the caller was cancelled
            continue
        if error is None:
            entry.written.set_result(None)
        else:
            entry.written.set_exception(error)
    return failed


def now() -> datetime:
    """The time of this host, for times that people read and that decide nothing."""
    return datetime.now(UTC)
