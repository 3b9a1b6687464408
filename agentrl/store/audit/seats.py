"""Rows, tasks, seats and attempts.

Invariants proven here: every row of an epoch that began is one Task; a Task that was admitted has all its seats, and
only its present round holds any; a seat has at most one holder; attempts of a seat follow one another without a gap,
each after one that failed, and no more of them are paid for than are allowed.
"""

from __future__ import annotations

from agentrl.policies import outcomes
from agentrl.policies.status_tables import HOLDS_SEAT, TOOL_CALL, RecordStatus, Table, TaskStatus
from agentrl.store import owners
from agentrl.store.audit.problems import SEATED, Check, Problem, attempts, found, repeated
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain

HOLDING = sorted(status.value for status in HOLDS_SEAT)
_FOLLOWED = [RecordStatus.FAILED, RecordStatus.ABANDONED, RecordStatus.EXCLUDED]
"""What another attempt may come after."""


def unknown_statuses(table: Table) -> Check:
    """Tool calls have no collection of their own."""
    known = [status.value for status in table.statuses]
    unknown: Plain = {"status": {"$nin": known}}
    of_tools = {"tool_calls": {"$elemMatch": unknown}}
    collection, filter = (CALLS, of_tools) if table is TOOL_CALL else (table.name, unknown)

    async def check(database: Database) -> Problem | None:
        what = f"documents of {table.name} with an unknown status"
        return await found(database, collection, [{"$match": filter}], what)

    return check


async def rows_that_are_not_tasks(database: Database) -> Problem | None:
    """A portion that was inserted and not noted yet is more than was noted, never less."""
    stages: list[Plain] = [
        {
            "$lookup": {
                "from": "Task",
                # Ids of its Tasks begin with its own and a slash, which a 0 follows.
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
                "places": {"$size": {"$ifNull": [{"$first": "$of.places"}, []]}},
            }
        },
        {
            "$match": {
                "$expr": {
                    "$or": [
                        {"$lt": ["$tasks", "$inserted"]},
                        {"$gt": ["$tasks", "$rows"]},
                        {"$ne": ["$places", "$tasks"]},
                        {"$ne": ["$done", {"$gte": ["$inserted", "$rows"]}]},
                    ]
                }
            }
        },
    ]
    return await found(database, "Epoch", stages, "epochs whose rows are not the tasks")


async def records_without_task(database: Database) -> Problem | None:
    joined: Plain = {"$lookup": {"from": "Task", "localField": "_id", "foreignField": "_id", "as": "of"}}
    # Each task is looked at once, and not with each of its records.
    groups = await database.aggregate("Record", [{"$group": {"_id": "$task"}}, joined, {"$match": {"of": []}}])
    missing = [group["_id"] for group in groups]
    if not missing:
        return None
    return await found(
        database, "Record", [{"$match": {"task": {"$in": missing}}}], "records whose task does not exist"
    )


async def tasks_without_all_seats(database: Database) -> Problem | None:
    stages: list[Plain] = [
        {"$match": {"status": {"$in": list(SEATED)}, "seating": False}},
        attempts({"seat": 1}),
        {"$match": {"$expr": {"$ne": [{"$size": {"$setUnion": ["$attempts.seat", []]}}, "$n"]}}},
    ]
    return await found(database, "Task", stages, "tasks without all of the seats")


async def seats_held_twice(database: Database) -> Problem | None:
    stages = repeated({"status": {"$in": HOLDING}}, {"task": "$task", "round": "$round", "seat": "$seat"})
    return await found(database, "Record", stages, "seats held by more than one record")


async def seats_held_in_vain(database: Database) -> Problem | None:
    """Of a round that is over, or of a Task that has no seats now."""
    held: Plain = {"$match": {"status": {"$in": HOLDING}}}
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
                    {"of.status": {"$in": [TaskStatus.QUEUED, TaskStatus.DEAD]}},
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


async def broken_chains_of_attempts(database: Database) -> Problem | None:
    last = {"$eq": ["$$one.attempt", "$last"]}
    stages: list[Plain] = [
        {
            "$group": {
                "_id": {"task": "$task", "round": "$round", "seat": "$seat"},
                "tries": {"$push": {"attempt": "$attempt", "status": "$status"}},
                "numbers": {"$addToSet": "$attempt"},
                "last": {"$max": "$attempt"},
                "first": {"$min": "$attempt"},
                "paid": {"$sum": {"$cond": ["$free", 0, 1]}},
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
    """A dead sampler is noticed within seconds or a lease; these stayed for longer."""
    running = {"status": RecordStatus.RUNNING}
    names = await database.distinct("Record", "owner", running)
    dead = await owners.dead_among(database, names)
    stages: list[Plain] = [{"$match": {**running, "owner": {"$in": sorted(dead)}}}]
    return await found(database, "Record", stages, "running records whose owner is dead") if dead else None


async def units_with_two_owners(database: Database) -> Problem | None:
    stages = repeated({"expired": False}, "$unit")
    return await found(database, "Owner", stages, "units of which more than one life holds a lease")
