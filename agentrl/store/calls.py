"""Reads model calls with their texts and tool calls, ends calls that no process waits for, and hands a Record over.

Invariants: everything of a Record is in one range of ids; after a hand-over every write of the former owner is refused,
even one that it prepared before; token data is stored once: a call stores only the part of its prompt that its base
does not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentrl.policies.status_tables import (
    DISPATCHED_SAMPLING_TASK,
    TOOL_CALL,
    Actor,
    CallStatus,
    ToolCallStatus,
    check,
)
from agentrl.store.call_writer import CALLS, now
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import call_id, within
from agentrl.store.documents import DispatchedSamplingTask, load, storable, to_bson
from agentrl.tokens.binary_format import unpack_ids
from agentrl.tokens.spans import StoredCall

RANGES_AT_ONCE = 100
UNDER_WAY = [
    *("record", "turn", "index", "engine", "status", "sent_at"),
    *(f"tool_calls.{name}" for name in ("id", "server", "tool", "status", "requested_at")),
]
"""The fields that show what a call waits for."""
WITHOUT_TEXTS = {"text": 0, "parsed": 0, "tool_calls": 0}
WITH_TOKENS = [CallStatus.DONE, CallStatus.PARTIAL]


# ---- ranges ----


def of_records(records: Sequence[str]) -> Iterator[Plain]:
    """Filters that together find the calls of these Records, each with few enough ranges. The seats of a Task have
    adjacent ids, so a Task is one range."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for record in records:
        by_task[record.partition("#")[0]].append(record)
    tasks = sorted(by_task)
    for start in range(0, len(tasks), RANGES_AT_ONCE):
        some = tasks[start : start + RANGES_AT_ONCE]
        ranges = [{"_id": within(task, "#" if "#" in by_task[task][0] else "/")} for task in some]
        yield {"$or": ranges, "record": {"$in": [record for task in some for record in by_task[task]]}}


# ---- reading ----


async def of_record(database: Database, record: str) -> list[DispatchedSamplingTask]:
    """All calls of a Record in their order."""
    documents = await database.find(CALLS, {"_id": within(record)})
    return sorted((load(DispatchedSamplingTask, call) for call in documents), key=lambda call: call.index)


async def with_tokens(
    database: Database, records: Iterable[str], *, texts: bool = True
) -> dict[str, list[DispatchedSamplingTask]]:
    """The model calls of each Record that have tokens, in their order."""
    wanted = list(records)
    by_record: dict[str, list[DispatchedSamplingTask]] = defaultdict(list, {record: [] for record in wanted})
    for matched in of_records(wanted):
        answered = matched | {"status": {"$in": WITH_TOKENS}}
        for document in await database.find(CALLS, answered, projection=None if texts else WITHOUT_TEXTS):
            call = load(DispatchedSamplingTask, document)
            by_record[call.record].append(call)
    return {record: sorted(calls, key=lambda call: call.index) for record, calls in by_record.items()}


def stored_calls(calls: Sequence[DispatchedSamplingTask]) -> dict[int, StoredCall]:
    """The calls in the form that the token tree reads."""
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


# ---- as rows ----


def turn_row(call: Mapping[str, Any]) -> Plain:
    """A model call that ended a turn, as the row of that turn."""
    copied = {name: call.get(name) for name in ("_id", "record", "task", "owner", "text", "parsed")}
    return copied | {
        "index": call["turn"],
        "call": call["_id"],
        "tool_calls": [one["id"] for one in call.get("tool_calls", ())],
        "reason": call.get("finish_reason", ""),
        "started_at": call.get("began_at"),
        "done_at": call.get("over_at"),
    }


def tool_rows(call: Mapping[str, Any]) -> list[Plain]:
    """Its tool calls, each with the record, task, turn and owner that it belongs to."""
    around = {name: call.get(name) for name in ("record", "task", "turn", "owner")}
    return [{"_id": one["id"], **around, **one} for one in call.get("tool_calls", ())]


def tool_row_stages(*more: str) -> list[Plain]:
    """Stages that make the same rows on the server, with more fields of the model call."""
    around: Plain = {name: f"${name}" for name in ("record", "task", "turn", "owner", "called_at", *more)}
    own = {"_id": "$tool_calls.id", "failed": {"$gt": ["$tool_calls.error_class", ""]}}
    row = {"$mergeObjects": [own | around, "$tool_calls"]}
    return [{"$unwind": "$tool_calls"}, {"$replaceRoot": {"newRoot": row}}]


FAILED_TOOL_ROW = {"error_class": {"$gt": ""}}
WITH_TOOLS = {"called_at": {"$type": "date"}}
"""Model calls with tool calls."""
FAILED_TOOLS = {**WITH_TOOLS, "failed_at": {"$type": "date"}}
"""Model calls with a tool call that failed."""


# ---- after the owner is gone ----


async def lose(database: Database, record: str, owner: str, *, resumable: bool) -> int:
    """Mark calls as lost that no process waits for. The steward does this before it frees the Record of a dead sampler,
    and a sampler if it could not write how its calls ended. Returns the number of model calls and of documents with
    tool calls.

    A resumable loop asks the toolbox again under the same call ids, so its tool calls stay as they are.
    """
    check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, CallStatus.FAILED, Actor.STEWARD, record)
    mine = {"_id": within(record), "owner": owner}
    lost = {
        "status": CallStatus.FAILED,
        "error": "its sampler died before the answer was stored",
        "done_at": now(),
    }
    calls = await database.update_many(CALLS, mine | {"status": CallStatus.SENT}, {"$set": lost})
    if resumable:
        return calls
    open_ones = {"$in": list(TOOL_CALL.sources(ToolCallStatus.LOST, Actor.STEWARD))}
    gone: Plain = {"status": ToolCallStatus.LOST, "error_class": "infrastructure", "done_at": now()}
    return calls + await database.update_many(
        CALLS,
        mine | {"tool_calls.status": open_ones},
        {
            "$set": {f"tool_calls.$[open].{name}": value for name, value in gone.items()},
            "$max": {"failed_at": gone["done_at"]},
        },
        array_filters=[{"open.status": open_ones}],
    )


class Trunk(NamedTuple):
    """What is already stored of a Record that was handed over."""

    calls: list[DispatchedSamplingTask]
    """All of them, in their order."""
    next_call: int
    """An index that no call has used, not even a lost call, or one that was not stored."""

    @property
    def answered(self) -> list[DispatchedSamplingTask]:
        """Those with tokens."""
        return [call for call in self.calls if call.status in WITH_TOKENS]


async def stored(database: Database, record: str, task: str, owner: str) -> Trunk:
    """What is stored of a Record that no sampler has claimed before: the trunk of a fork."""
    found = await of_record(database, record)
    return Trunk(found, max((call.index for call in found), default=-1) + 1)


async def take_over(database: Database, record: str, task: str, owner: str) -> Trunk:
    """Take over a Record that was handed over. From now on its documents belong to the new owner, so later writes of
    the former owner are refused."""
    while True:
        await database.update_many(CALLS, {"_id": within(record)}, {"$set": {"owner": owner}})
        # The former owner may have sent one more call after it was declared dead.
        await lose(database, record, owner, resumable=True)
        documents = await database.find(CALLS, {"_id": within(record)}, projection=["index", "owner"])
        if any(call["owner"] != owner for call in documents):
            continue  # the former owner has inserted it meanwhile
        place = max((call["index"] for call in documents), default=-1) + 1
        if not await database.insert_missing(CALLS, [_kept_place(record, task, owner, place)]):
            break
    return Trunk(await of_record(database, record), place + 1)


def _kept_place(record: str, task: str, owner: str, index: int) -> Plain:
    """Takes the id of the next call. The former sampler may have been stopped just before it inserted an answer, and
    may wake up at any time: then it finds the id taken, and writes nothing that depends on that answer."""
    check(DISPATCHED_SAMPLING_TASK, "", CallStatus.SENT, Actor.SAMPLER, record)
    check(DISPATCHED_SAMPLING_TASK, CallStatus.SENT, CallStatus.FAILED, Actor.SAMPLER, record)
    kept = DispatchedSamplingTask(
        id=call_id(record, index),
        record=record,
        task=task,
        turn=-1,
        index=index,
        owner=owner,
        status=CallStatus.FAILED,
        error="its sampler had stored none when another one went on",
        sent_at=now(),
        done_at=now(),
    )
    document: Plain = storable(to_bson(kept))
    return document
