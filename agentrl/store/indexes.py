"""The indexes, next to the queries that they are for.

Invariants: every query that a process repeats uses one of these indexes (a test asks the server); a unique key makes a
repeated insert harmless and a doubly held seat impossible; making the indexes again changes nothing; indexes that
earlier versions made and no query uses any more are dropped.
"""

from __future__ import annotations

from typing import Any

import pymongo
from pymongo import IndexModel

from agentrl.policies.status_tables import (
    HOLDS_SEAT,
    CallStatus,
    RecordStatus,
    ReplayStatus,
    TaskStatus,
    ToolCallStatus,
)
from agentrl.store import other_model_calls, schema
from agentrl.store.call_writer import CALLS
from agentrl.store.calls import FAILED_TOOLS, WITH_TOOLS
from agentrl.store.database import AlreadyThereError, Database, Plain


def _index(name: str, keys: str, **options: Any) -> IndexModel:
    return IndexModel([(key, 1) for key in keys.split()], name=name, **options)


IN_HAND = [RecordStatus.RUNNING.value, RecordStatus.FINISHED.value, RecordStatus.UNSCORED.value]
UNSCORED = [RecordStatus.FINISHED.value, RecordStatus.UNSCORED.value]
UNFOLLOWED = [RecordStatus.FAILED.value, RecordStatus.ABANDONED.value]
REPLAYS_IN_HAND = [ReplayStatus.PREPARING.value, ReplayStatus.REPLAYING.value]
ASKED = [ToolCallStatus.REQUESTED.value, ToolCallStatus.RUNNING.value]

INDEXES: dict[str, list[IndexModel]] = {
    "Task": [
        # Admission: the queued tasks of an environment in their order. Counting: tasks by status and purpose.
        _index("queue", "status purpose environment epoch place"),
        # An admission takes a free place in the order; a steward that counted before another one admitted does not get
        # it.
        _index("places", "admitted_order", unique=True, partialFilterExpression={"admitted_order": {"$gt": 0}}),
        _index("in_order", "status admitted_order _id"),
        _index("evaluations", "version purpose status"),
        _index("seating", "seating", partialFilterExpression={"seating": True}),
        _index("sweeping", "sweeping", partialFilterExpression={"sweeping": True}),
        _index("repairing", "repairing", partialFilterExpression={"repairing": True}),
        _index("step", "lineage step"),
        _index("consumed", "status pruned admitted_order"),
        # Tasks that may train once more, separate from all that may not.
        _index("again", "trained_count", partialFilterExpression={"status": TaskStatus.TRAINED.value}),
        # For the lists that people and the console read again and again, like `finished` and `begun` of Records,
        # `leased` of Steps and `saved` of Checkpoints.
        _index("admitted", "admitted_at _id"),
    ],
    "Record": [
        # Claims: the first open record in the order of admission. Records that are not open are not in the index.
        _index("open", "order seat", partialFilterExpression={"status": RecordStatus.OPEN.value}),
        _index("counts", "status purpose environment"),
        # Records that wait for their score, the oldest first.
        _index("unscored", "order", partialFilterExpression={"status": {"$in": UNSCORED}, "owner": ""}),
        _index("in_hand", "owner status", partialFilterExpression={"status": {"$in": IN_HAND}}),
        _index("seats", "task round seat attempt", unique=True),
        _index(
            "held",
            "task round seat",
            unique=True,
            partialFilterExpression={"status": {"$in": sorted(status.value for status in HOLDS_SEAT)}},
        ),
        _index("unfollowed", "status", partialFilterExpression={"status": {"$in": UNFOLLOWED}, "followed": False}),
        _index("requeued", "requeued_by", partialFilterExpression={"requeued_by": {"$gt": ""}, "followed": False}),
        _index("rescores", "rescore.sampler", partialFilterExpression={"rescore.wanted": True}),
        _index("finished", "finished_at _id"),
        _index("begun", "started_at _id"),
        _index("ages", "started_at", partialFilterExpression={"status": RecordStatus.RUNNING.value}),
    ],
    # Everything in a Record or a Task is a range of ids, so only searches across all of them need an index.
    "DispatchedSamplingTask": [
        _index("sent", "record", partialFilterExpression={"status": CallStatus.SENT.value}),
        _index("tools_open", "record", partialFilterExpression={"tool_calls.status": {"$in": ASKED}}),
        # Tool calls: the newest, only those that failed, those of one tool, the slowest; and failures by their time.
        _index("called", "called_at _id", partialFilterExpression=WITH_TOOLS),
        _index("called_and_failed", "called_at _id", partialFilterExpression=FAILED_TOOLS),
        _index("called_tool", "tool_calls.tool called_at _id", partialFilterExpression=WITH_TOOLS),
        _index("slowest_call", "tool_calls.latency_s _id", partialFilterExpression=WITH_TOOLS),
        _index("tools_failed", "failed_at _id", partialFilterExpression={"failed_at": {"$type": "date"}}),
        _index("malformed", "done_at", partialFilterExpression={"parsed.error": {"$gt": ""}}),
    ],
    "DBRecordData": [_index("task", "task")],
    "Image": [
        _index("number", "number", unique=True),
        _index("unused", "used_at", partialFilterExpression={"removed": False, "of_task": False}),
        _index("of_tasks", "of_task removed length", partialFilterExpression={"of_task": True}),
    ],
    "Replay": [
        _index("queue", "created_at place", partialFilterExpression={"status": ReplayStatus.QUEUED.value}),
        _index("in_hand", "owner", partialFilterExpression={"status": {"$in": REPLAYS_IN_HAND}}),
        _index("operation", "operation status"),
        _index("call", "call"),
        _index("created", "created_at _id"),
    ],
    "Step": [
        _index("status", "status step"),
        _index("tasks", "tasks"),
        _index("filtered", "filtered"),
        _index("leased", "leased_at _id"),
        _index("reinstating", "reinstating", partialFilterExpression={"reinstating": True}),
    ],
    "Lineage": [_index("closed", "closed"), _index("opened", "opened_at")],
    "Checkpoint": [_index("status", "status step"), _index("saved", "at _id")],
    "Publication": [_index("status", "status"), _index("evaluation", "evaluation")],
    "Owner": [_index("expired", "expired expires_at"), _index("role", "role expires_at"), _index("unit", "unit")],
    "Service": [_index("alive", "state kind seen_at")],
    "Epoch": [_index("done", "done"), _index("split", "environment split epoch")],
    **other_model_calls.INDEXES,
}

RETIRED: dict[str, list[IndexModel]] = {
    "Task": [_index("ready", "status admitted_order"), _index("order", "admitted_order")],
    "Record": [
        _index("newest", "created_at _id"),
        IndexModel([("created_at", -1), ("_id", 1)], name="newest"),
        _index("claims", "status order seat"),
        _index("owned", "owner status"),
        _index("followed", "status followed"),
    ],
    "Service": [_index("kind", "kind state seen_at")],
}
"""Indexes of earlier versions of agentrl, by name and keys. No other index is ever dropped, because it may belong to
another program."""


BUILT_WITHIN_S = 3600.0
"""A server drops a half built index when its client gives up, so the client waits long enough for a large run."""


async def ensure(database: Database) -> None:
    """Make the indexes. Raises ConfigError if the documents are of another version; then no index is changed. Updating
    documents of earlier versions may take minutes, if there are millions of calls."""
    with pymongo.timeout(BUILT_WITHIN_S):
        await _ensure(database)


async def _ensure(database: Database) -> None:
    await schema.ensure(database)
    if "called" not in await database.index_names(CALLS):
        # Earlier versions stored tool calls without this field, and lists show no call without it.
        without = {"tool_calls.requested_at": {"$type": "date"}, "called_at": None}
        await database.update_many(CALLS, without, [{"$set": {"called_at": {"$max": "$tool_calls.requested_at"}}}])
    for collection, indexes in INDEXES.items():
        try:
            await database.create_indexes(collection, indexes)
        except AlreadyThereError:
            if collection != "Task":
                raise
            await _separate_equal_places(database)
            await database.create_indexes(collection, indexes)
    for collection, indexes in RETIRED.items():
        await database.drop_indexes(collection, indexes)


async def _separate_equal_places(database: Database) -> None:
    """Two stewards of an earlier version may have given the same place twice; all but one task get other places at the
    end. If several processes do this at once, they make the same changes."""
    given = {"$match": {"admitted_order": {"$gt": 0}}}
    tasks: Plain = {"_id": "$admitted_order", "tasks": {"$push": "$_id"}}
    places = await database.aggregate("Task", [given, {"$group": tasks}, {"$sort": {"_id": 1}}])
    last = max((place["_id"] for place in places), default=0)
    for place in places:
        for task in sorted(place["tasks"])[1:]:
            last += 1
            had = {"_id": task, "admitted_order": place["_id"]}
            await database.update_one("Task", had, {"$set": {"admitted_order": last}})
