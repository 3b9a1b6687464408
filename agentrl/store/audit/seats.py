"""Rows, tasks, seats and attempts.

Invariants checked here: every row of an epoch that began is one Task; an admitted Task has all its seats, and only its
present round holds seats; a seat has at most one holder; attempts of a seat have consecutive numbers, each follows one
that failed, and no seat has more counted re-draws than allowed.

One pass over the records finds the tasks in which anything of their seats may be wrong. Only these are examined.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentrl.policies import outcomes
from agentrl.policies.group_closing import REDRAWN
from agentrl.policies.status_tables import (
    DISPATCHED_SAMPLING_TASK,
    HOLDS_SEAT,
    TOOL_CALL,
    RecordStatus,
    Table,
    TaskStatus,
)
from agentrl.store import owners
from agentrl.store.audit.problems import NAMED, SEATED, Check, Problem, beside, found, repeated, the_one
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain

HOLDING = sorted(status.value for status in HOLDS_SEAT)
_FOLLOWED = [*(status.value for status in REDRAWN), RecordStatus.SUPERSEDED.value]
"""Statuses that another attempt may follow. A repair supersedes an attempt that was opened after its base."""
_WITHOUT_SEATS = (TaskStatus.QUEUED, TaskStatus.DEAD)
_ROUND = ("round", "held", "records", "seats", "first", "last")


def unknown_statuses(table: Table) -> Check:
    async def check(database: Database) -> Problem | None:
        what = f"documents of {table.name} with an unknown status"
        # Tool calls have no collection of their own.
        collection = CALLS if table is TOOL_CALL else table.name
        return await found(database, collection, [{"$match": _unknown(table)}], what)

    return check


async def statuses_of_calls_may_be_unknown(database: Database) -> bool:
    """False if neither a model call nor a tool call has an unknown status."""
    unknown = {"$or": [_unknown(DISPATCHED_SAMPLING_TASK), _unknown(TOOL_CALL)]}
    return await database.find_one(CALLS, unknown, projection=["_id"]) is not None


def _unknown(table: Table) -> Plain:
    unknown: Plain = {"status": {"$nin": [status.value for status in table.statuses]}}
    return {"tool_calls": {"$elemMatch": unknown}} if table is TOOL_CALL else unknown


async def rows_that_are_not_tasks(database: Database) -> Problem | None:
    """Epochs with fewer Tasks than noted. There may be more, if a portion was inserted and not noted yet."""
    stages: list[Plain] = [
        {
            "$lookup": {
                "from": "Task",
                # The ids of its Tasks begin with its own id and a slash; 0 is the character after the slash.
                "let": {"first": {"$concat": ["$_id", "/"]}, "end": {"$concat": ["$_id", "0"]}},
                "pipeline": [
                    {"$match": {"$expr": {"$and": [{"$gte": ["$_id", "$$first"]}, {"$lt": ["$_id", "$$end"]}]}}},
                    {"$group": {"_id": None, "tasks": {"$sum": 1}, "places": {"$addToSet": "$place"}}},
                ],
                "as": "of",
            }
        },
        {
            "$set": {
                "tasks": {"$ifNull": [{"$first": "$of.tasks"}, 0]},
                "left_out": {"$add": [{"$ifNull": ["$left_out.hard", 0]}, {"$ifNull": ["$left_out.easy", 0]}]},
                "places": {"$size": {"$ifNull": [{"$first": "$of.places"}, []]}},
            }
        },
        {
            "$match": {
                "$expr": {
                    "$or": [
                        {"$lt": [{"$add": ["$tasks", "$left_out"]}, "$inserted"]},
                        {"$gt": ["$tasks", "$rows"]},
                        {"$ne": ["$places", "$tasks"]},
                        {"$ne": ["$done", {"$gte": ["$inserted", "$rows"]}]},
                    ]
                }
            }
        },
    ]
    return await found(database, "Epoch", stages, "epochs whose rows are not the tasks")


async def by_task(database: Database) -> AsyncIterator[Plain]:
    """Every task that exists or that records name: its own fields as `of`, if it exists, and for each of its rounds the
    number of records, seats and held seats, with the lowest and the highest attempt."""
    holds: Plain = {"$cond": [{"$in": ["$status", HOLDING]}, 1, 0]}
    rounds: Plain = {
        "$group": {
            "_id": {"task": "$task", "round": "$round"},
            "held": {"$sum": holds},
            "records": {"$sum": 1},
            "seats": {"$addToSet": "$seat"},
            "first": {"$min": "$attempt"},
            "last": {"$max": "$attempt"},
        }
    }
    each: Plain = {"id": "$_id.task", "round": "$_id.round", "seats": {"$size": "$seats"}}
    stages: list[Plain] = [
        rounds,
        {"$project": {"_id": 0, "held": 1, "records": 1, "first": 1, "last": 1, **each}},
        beside("Task", {"of": {name: f"${name}" for name in ("n", "round", "status", "seating", "sweeping")}}),
        {
            "$group": {
                "_id": "$id",
                "of": the_one("of"),
                "rounds": {
                    "$push": {"$cond": [{"$gt": ["$records", 0]}, {name: f"${name}" for name in _ROUND}, "$$REMOVE"]}
                },
            }
        },
    ]
    async for task in database.stream_aggregate("Record", stages):
        yield task


async def seats_and_attempts(database: Database) -> list[Problem]:
    suspects = [task["_id"] async for task in by_task(database) if _is_suspect(task)]
    if not suspects:
        return []
    tasks: Plain = {"$in": suspects} if len(suspects) <= NAMED else {"$nin": []}
    checks = (
        _records_without_task,
        _tasks_without_all_seats,
        _seats_held_twice,
        _seats_held_in_vain,
        _broken_chains_of_attempts,
    )
    return [problem for check in checks if (problem := await check(database, tasks)) is not None]


def _is_suspect(task: Plain) -> bool:
    """True if any of the checks below can find something in this task."""
    of: Plain | None = task["of"]
    if of is None or any(_is_suspect_round(each, of) for each in task["rounds"]):
        return True
    if of.get("status") not in SEATED or of.get("seating") is not False:
        return False
    present = sum(int(each["seats"]) for each in task["rounds"] if each.get("round") == of.get("round"))
    return present != of.get("n")


def _is_suspect_round(each: Plain, of: Plain) -> bool:
    if each["records"] != each["seats"] or (each["first"], each["last"]) != (1, 1):
        return True  # if each seat has one record, its first attempt, nothing can be wrong
    if not each["held"] or of.get("sweeping") is True:
        return False
    return bool(each.get("round") != of.get("round") or of.get("status") in _WITHOUT_SEATS)


async def _records_without_task(database: Database, tasks: Plain) -> Problem | None:
    joined: Plain = {"$lookup": {"from": "Task", "localField": "_id", "foreignField": "_id", "as": "of"}}
    # Looks at each task once, instead of once for each of its records.
    among: Plain = {"$match": {"task": tasks}}
    groups = await database.aggregate("Record", [among, {"$group": {"_id": "$task"}}, joined, {"$match": {"of": []}}])
    missing = [group["_id"] for group in groups]
    if not missing:
        return None
    return await found(
        database, "Record", [{"$match": {"task": {"$in": missing}}}], "records whose task does not exist"
    )


async def _tasks_without_all_seats(database: Database, tasks: Plain) -> Problem | None:
    attempts: Plain = {
        "$lookup": {
            "from": "Record",
            "let": {"round": "$round"},
            "localField": "_id",
            "foreignField": "task",
            "pipeline": [{"$match": {"$expr": {"$eq": ["$round", "$$round"]}}}, {"$project": {"seat": 1}}],
            "as": "attempts",
        }
    }
    stages: list[Plain] = [
        {"$match": {"_id": tasks, "status": {"$in": list(SEATED)}, "seating": False}},
        attempts,
        {"$match": {"$expr": {"$ne": [{"$size": {"$setUnion": ["$attempts.seat", []]}}, "$n"]}}},
    ]
    return await found(database, "Task", stages, "tasks without all of the seats")


async def _seats_held_twice(database: Database, tasks: Plain) -> Problem | None:
    held = {"task": tasks, "status": {"$in": HOLDING}}
    stages = repeated(held, {"task": "$task", "round": "$round", "seat": "$seat"})
    return await found(database, "Record", stages, "seats held by more than one record")


async def _seats_held_in_vain(database: Database, tasks: Plain) -> Problem | None:
    """Records that hold a seat of a round that is over, or of a Task that has no seats now."""
    held: Plain = {"$match": {"task": tasks, "status": {"$in": HOLDING}}}
    rounds: list[Plain] = [
        held,
        {"$group": {"_id": {"task": "$task", "round": "$round"}}},
        {"$lookup": {"from": "Task", "localField": "_id.task", "foreignField": "_id", "as": "of"}},
        {"$set": {"of": {"$first": "$of"}}},
        {"$match": {"of.sweeping": {"$ne": True}, "of._id": {"$exists": True}}},
        {
            "$match": {
                "$or": [
                    {"$expr": {"$ne": ["$_id.round", "$of.round"]}},
                    {"of.status": {"$in": list(_WITHOUT_SEATS)}},
                ]
            }
        },
        {"$project": {"_id": 1}},
    ]
    over = [group["_id"] for group in await database.aggregate("Record", rounds)]
    if not over:
        return None
    stages = [held, {"$match": {"task": {"$in": [one["task"] for one in over]}}}]
    stages.append({"$match": {"$expr": {"$in": [{"task": "$task", "round": "$round"}, {"$literal": over}]}}})
    return await found(database, "Record", stages, "records with a seat of a round that is over")


async def _broken_chains_of_attempts(database: Database, tasks: Plain) -> Problem | None:
    last = {"$eq": ["$$one.attempt", "$last"]}
    stages: list[Plain] = [
        {"$match": {"task": tasks}},
        {
            "$group": {
                "_id": {"task": "$task", "round": "$round", "seat": "$seat"},
                "tries": {"$push": {"attempt": "$attempt", "status": "$status"}},
                "numbers": {"$addToSet": "$attempt"},
                "last": {"$max": "$attempt"},
                "first": {"$min": "$attempt"},
                "paid": {"$sum": {"$cond": [{"$or": ["$free", {"$gt": ["$requeued_by", ""]}]}, 0, 1]}},
            }
        },
        {
            "$set": {
                "gone_on": {
                    "$filter": {
                        "input": "$tries",
                        "as": "one",
                        "cond": {"$not": {"$or": [last, {"$in": ["$$one.status", _FOLLOWED]}]}},
                    }
                }
            }
        },
        {
            "$match": {
                "$or": [
                    {"$expr": {"$ne": [{"$size": "$numbers"}, "$last"]}},
                    {"first": {"$ne": 1}},
                    {"gone_on": {"$ne": []}},
                    {"paid": {"$gt": 1 + outcomes.MAX_REDRAWS}},
                ]
            }
        },
        {"$set": {"_id": {"$concat": ["$_id.task", "#r", {"$toString": "$_id.round"}]}}},
    ]
    return await found(database, "Record", stages, "seats whose attempts do not follow one another")


async def records_of_the_dead(database: Database) -> Problem | None:
    """Records that stayed with a dead sampler for longer than its detection takes (seconds, or one lease)."""
    running = {"status": RecordStatus.RUNNING}
    names = await database.distinct("Record", "owner", running)
    dead = await owners.dead_among(database, names)
    stages: list[Plain] = [{"$match": {**running, "owner": {"$in": sorted(dead)}}}]
    return await found(database, "Record", stages, "running records whose owner is dead") if dead else None


async def units_with_two_owners(database: Database) -> Problem | None:
    stages = repeated({"expired": False}, "$unit")
    return await found(database, "Owner", stages, "units of which more than one life holds a lease")
