"""The account: every task, record, seat and step, and sums that must agree.

Invariants: it reads and changes nothing; it counts from the documents themselves, never from another count; a problem
names the first documents that show it. What is under way while it reads is no problem: it is looked at once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from agentrl.policies.states import RECORD, STEP, TASK, RecordStatus, StepStatus, Table, TaskStatus
from agentrl.store import owners
from agentrl.store.database import Database, Plain

SHOWN = 5
LOOK_AGAIN_S = 0.5

SEATED = (TaskStatus.ADMITTED, TaskStatus.READY, TaskStatus.LEASED, TaskStatus.TRAINED, TaskStatus.FILTERED)
"""Tasks whose present round has all its seats."""


class Problem(msgspec.Struct, frozen=True):
    what: str
    count: int
    examples: tuple[str, ...] = ()

    def sentence(self) -> str:
        shown = ", ".join(self.examples)
        return f"{self.count} {self.what}: {shown}{' …' if self.count > len(self.examples) else ''}"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    tasks: dict[str, dict[str, int]]
    """By purpose and status."""
    records: dict[str, dict[str, int]]
    """By purpose and status."""
    seats: dict[str, int]
    """Of present rounds: `wanted`, `held` and `empty`."""
    steps: dict[str, int]
    """By status."""
    trained_records: int
    """In committed Steps that were not rolled back."""
    outcomes: dict[str, int]
    """Ended attempts by class."""
    problems: tuple[Problem, ...]

    @property
    def balanced(self) -> bool:
        return not self.problems


Check = Callable[[Database], Coroutine[Any, Any, Problem | None]]


async def account(database: Database, *, max_trained_count: int = 1) -> Account:
    problems = await _problems(database, max_trained_count)
    if problems:
        # A change that spans documents may have been half way; what is wrong stays wrong.
        await asyncio.sleep(LOOK_AGAIN_S)
        again = {problem.what: problem for problem in await _problems(database, max_trained_count)}
        problems = [again[problem.what] for problem in problems if problem.what in again]
    steps = await _counted(database, "Step", {"status": "$status"})
    return Account(
        tasks=await _by_purpose(database, "Task"),
        records=await _by_purpose(database, "Record"),
        seats=await _seats(database),
        steps={group["status"]: count for group, count in steps},
        trained_records=await _trained_records(database),
        outcomes={
            group["class"]: count
            for group, count in await _counted(database, "Record", {"class": "$outcome_class"})
            if group["class"]
        },
        problems=tuple(problems),
    )


async def _problems(database: Database, max_trained_count: int) -> list[Problem]:
    checks: list[Check] = [
        *(_unknown_statuses(table) for table in (TASK, RECORD, STEP)),
        _records_without_task,
        _tasks_without_all_seats,
        _seats_held_twice,
        _records_of_the_dead,
        _leases_that_disagree,
        _wrong_trained_counts,
        _trained_too_often(max_trained_count),
        _baselines_that_do_not_agree,
        _trained_without_share,
    ]
    return [problem for check in checks if (problem := await check(database)) is not None]


# ---- sums ----


async def _counted(database: Database, collection: str, key: Plain) -> list[tuple[dict[str, str], int]]:
    found = await database.aggregate(collection, [{"$group": {"_id": key, "count": {"$sum": 1}}}])
    return [(group["_id"], int(group["count"])) for group in found]


async def _by_purpose(database: Database, collection: str) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for group, count in await _counted(database, collection, {"purpose": "$purpose", "status": "$status"}):
        sums.setdefault(group["purpose"], {})[group["status"]] = count
    return sums


async def _seats(database: Database) -> dict[str, int]:
    found = await database.aggregate(
        "Task",
        [
            {"$match": {"status": {"$in": list(SEATED)}}},
            _attempts({"held": {"$in": ["$$attempt.status", list(_HOLDS)]}}),
            {
                "$group": {
                    "_id": None,
                    "wanted": {"$sum": "$n"},
                    "held": {"$sum": {"$size": {"$filter": {"input": "$attempts", "cond": "$$this.held"}}}},
                }
            },
        ],
    )
    wanted, held = (int(found[0]["wanted"]), int(found[0]["held"])) if found else (0, 0)
    return {"wanted": wanted, "held": held, "empty": wanted - held}


async def _trained_records(database: Database) -> int:
    committed = {"$match": {"status": StepStatus.COMMITTED}}
    found = await database.aggregate(
        "Step", [committed, {"$group": {"_id": None, "count": {"$sum": {"$size": "$records"}}}}]
    )
    return int(found[0]["count"]) if found else 0


# ---- what must hold ----

_HOLDS = ("open", "running", "finished", "unscored", "scored")


def _attempts(fields: Mapping[str, Any]) -> Plain:
    """A stage that brings in what the records of the present round say."""
    return {
        "$lookup": {
            "from": "Record",
            "let": {"round": "$round"},
            "localField": "_id",
            "foreignField": "task",
            "pipeline": [
                {"$match": {"$expr": {"$eq": ["$round", "$$round"]}}},
                {"$project": _renamed(fields)},
            ],
            "as": "attempts",
        }
    }


def _renamed(fields: Mapping[str, Any]) -> Any:
    """Expressions are written over `$$attempt` so that one sees whose field is meant."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("$$attempt.", "$")
        if isinstance(value, Mapping):
            return {key: walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    return walk(dict(fields))


async def _found(database: Database, collection: str, stages: list[Plain], what: str) -> Problem | None:
    """A problem if the stages leave anything."""
    rest = {"count": {"$sum": 1}, "examples": {"$firstN": {"input": "$_id", "n": SHOWN}}}
    found = await database.aggregate(collection, [*stages, {"$group": {"_id": None, **rest}}])
    if not found:
        return None
    return Problem(what, int(found[0]["count"]), tuple(str(name) for name in found[0]["examples"]))


def _unknown_statuses(table: Table) -> Check:
    known = [status.value for status in table.statuses]

    async def check(database: Database) -> Problem | None:
        unknown: list[Plain] = [{"$match": {"status": {"$nin": known}}}]
        return await _found(database, table.name, unknown, f"documents of {table.name} with an unknown status")

    return check


async def _records_without_task(database: Database) -> Problem | None:
    joined: Plain = {"$lookup": {"from": "Task", "localField": "task", "foreignField": "_id", "as": "of"}}
    stages = [joined, {"$match": {"of": []}}]
    return await _found(database, "Record", stages, "records whose task does not exist")


async def _tasks_without_all_seats(database: Database) -> Problem | None:
    stages: list[Plain] = [
        {"$match": {"status": {"$in": list(SEATED)}, "seating": False}},
        _attempts({"seat": 1}),
        {"$match": {"$expr": {"$ne": [{"$size": {"$setUnion": ["$attempts.seat", []]}}, "$n"]}}},
    ]
    return await _found(database, "Task", stages, "tasks that do not have all their seats")


async def _seats_held_twice(database: Database) -> Problem | None:
    stages: list[Plain] = [
        {"$match": {"status": {"$in": list(_HOLDS)}}},
        {"$group": {"_id": {"task": "$task", "round": "$round", "seat": "$seat"}, "holders": {"$sum": 1}}},
        {"$match": {"holders": {"$gt": 1}}},
    ]
    return await _found(database, "Record", stages, "seats that are held by more than one record")


async def _records_of_the_dead(database: Database) -> Problem | None:
    """A sampler that died is noticed within seconds or a lease; longer than that nobody cared."""
    running = {"status": RecordStatus.RUNNING}
    names = await database.distinct("Record", "owner", running)
    dead = await owners.dead_among(database, names)
    stages: list[Plain] = [{"$match": {**running, "owner": {"$in": sorted(dead)}}}]
    return await _found(database, "Record", stages, "running records whose owner is dead") if dead else None


async def _leases_that_disagree(database: Database) -> Problem | None:
    """A leased Task is in the leased Step that it names."""
    stages: list[Plain] = [
        {"$match": {"status": TaskStatus.LEASED}},
        {
            "$lookup": {
                "from": "Step",
                "let": {"task": "$_id", "lineage": "$lineage", "step": "$step"},
                "pipeline": [
                    {"$match": {"status": StepStatus.LEASED, "$expr": {"$eq": ["$step", "$$step"]}}},
                    {"$match": {"$expr": {"$eq": ["$lineage", "$$lineage"]}}},
                    {"$match": {"$expr": {"$in": ["$$task", {"$concatArrays": ["$tasks", "$filtered"]}]}}},
                ],
                "as": "by",
            }
        },
        {"$match": {"by": []}},
    ]
    return await _found(database, "Task", stages, "leased tasks that no leased step has")


_STANDING: list[Plain] = [
    {
        "$lookup": {
            "from": "Step",
            "localField": "_id",
            "foreignField": "tasks",
            "pipeline": [{"$match": {"status": StepStatus.COMMITTED}}, {"$project": {"_id": 1}}],
            "as": "standing",
        }
    }
]


async def _wrong_trained_counts(database: Database) -> Problem | None:
    stages = [
        *_STANDING,
        {"$match": {"$expr": {"$ne": [{"$size": "$standing"}, "$trained_count"]}}},
    ]
    return await _found(database, "Task", stages, "tasks whose trained count is not that of their committed steps")


def _trained_too_often(most: int) -> Check:
    async def check(database: Database) -> Problem | None:
        stages: list[Plain] = [
            {"$match": {"status": StepStatus.COMMITTED}},
            {"$unwind": "$records"},
            {"$group": {"_id": "$records", "times": {"$sum": 1}}},
            {"$match": {"times": {"$gt": most}}},
        ]
        return await _found(database, "Step", stages, f"records that trained more than {most} times")

    return check


async def _baselines_that_do_not_agree(database: Database) -> Problem | None:
    """A baseline is made of validly scored members, and of nothing that failed for other reasons."""
    valid = {"$and": [{"$in": ["$$attempt.outcome_class", ["policy", "limit"]]}, {"$ne": ["$$attempt.late", True]}]}
    stages: list[Plain] = [
        {"$match": {"baseline.valid": {"$gt": 0}}},
        _attempts({"valid": {"$and": [valid, {"$in": ["$$attempt.status", ["scored", "excluded"]]}]}}),
        {"$set": {"counted": {"$size": {"$filter": {"input": "$attempts", "cond": "$$this.valid"}}}}},
        {"$match": {"$expr": {"$lt": ["$counted", "$baseline.valid"]}}},
    ]
    return await _found(database, "Task", stages, "baselines over more members than are valid")


async def _trained_without_share(database: Database) -> Problem | None:
    """What trained is scored, of the policy's doing, and has a structure."""
    stages: list[Plain] = [
        {"$match": {"status": StepStatus.COMMITTED}},
        {"$unwind": "$records"},
        {"$lookup": {"from": "Record", "localField": "records", "foreignField": "_id", "as": "of"}},
        {"$lookup": {"from": "DBRecordData", "localField": "records", "foreignField": "_id", "as": "data"}},
        {
            "$match": {
                "$or": [
                    {"of": []},
                    {"data": []},
                    {"of.outcome_class": {"$nin": ["policy", "limit"]}},
                    {"of.status": {"$nin": ["scored", "excluded"]}},
                ]
            }
        },
        {"$project": {"_id": "$records"}},
    ]
    return await _found(database, "Step", stages, "trained records that should not have trained")
