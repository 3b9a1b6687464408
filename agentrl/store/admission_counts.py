"""The numbers that admission needs, counted by queries; nothing here is ever accumulated.

Invariants: Tasks are read before Records, so a Task that is already admitted counts with its seats or with its Records;
a Task whose Records are not all inserted yet counts as if they were. If another steward opens a failed seat again
between the second query and the third, no query counts that seat: then one group too many may be admitted, which does
no harm.

It runs several times a second, so the server must be able to plan each query once and answer it from an index: an `$or`
of both queries on Records takes three times as long as the two queries.
"""

from __future__ import annotations

from typing import NamedTuple

from agentrl.policies.admission_capacity import Counts
from agentrl.policies.status_tables import IN_FLIGHT, RecordStatus, TaskStatus
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS
from agentrl.store.indexes import UNFOLLOWED

_TRAINING = {"$in": list(TRAINS)}


async def of_admission(database: Database) -> Counts:
    groups = await _groups(database)
    flying = await _flying(database)
    landed = await _landed(database, groups.unclosed) if groups.unclosed else _Landed(0, 0)
    return Counts(
        # Counts some records twice while seats are being opened, which admits less for a moment.
        open=flying.get(RecordStatus.OPEN, 0) + groups.opening + landed.unfollowed,
        running=flying.get(RecordStatus.RUNNING, 0),
        finished=flying.get(RecordStatus.FINISHED, 0),
        unscored=flying.get(RecordStatus.UNSCORED, 0),
        ready=groups.ready + landed.scored,
        leased=groups.leased,
    )


class _Groups(NamedTuple):
    unclosed: list[str]
    """The Tasks that are admitted."""
    opening: int
    """Seats that are being opened."""
    ready: int
    """Records of closed groups with signal."""
    leased: int


async def _groups(database: Database) -> _Groups:
    statuses = [TaskStatus.ADMITTED, TaskStatus.READY, TaskStatus.LEASED]
    sums: Plain = {
        "_id": "$status",
        "unclosed": {"$push": {"$cond": [{"$eq": ["$status", TaskStatus.ADMITTED]}, "$_id", "$$REMOVE"]}},
        "opening": {"$sum": {"$cond": ["$seating", "$n", 0]}},
        "members": {"$sum": {"$cond": ["$signal", "$members", 0]}},
        "n": {"$sum": "$n"},
    }
    stages = [{"$match": {"status": {"$in": statuses}, "purpose": _TRAINING}}, {"$group": sums}]
    found = {group["_id"]: group for group in await database.aggregate("Task", stages)}
    admitted = found.get(TaskStatus.ADMITTED, {"unclosed": [], "opening": 0})
    ready, leased = found.get(TaskStatus.READY, {}), found.get(TaskStatus.LEASED, {})
    return _Groups(
        admitted["unclosed"], int(admitted["opening"]), int(ready.get("members", 0)), int(leased.get("n", 0))
    )


async def _flying(database: Database) -> dict[str, int]:
    """Records that are under way, by status."""
    wanted = {"status": {"$in": sorted(IN_FLIGHT)}, "purpose": _TRAINING}
    stages: list[Plain] = [{"$match": wanted}, {"$group": {"_id": "$status", "n": {"$sum": 1}}}]
    return {group["_id"]: int(group["n"]) for group in await database.aggregate("Record", stages)}


class _Landed(NamedTuple):
    """Records of groups that are not closed."""

    scored: int
    unfollowed: int
    """Failed records whose seats are not open again yet. They count, so that another group does not take their
    place."""


async def _landed(database: Database, unclosed: list[str]) -> _Landed:
    wanted = {"task": {"$in": unclosed}, "status": {"$in": [RecordStatus.SCORED, *UNFOLLOWED]}}
    kinds = {"scored": {"$eq": ["$status", RecordStatus.SCORED]}, "followed": "$followed"}
    stages: list[Plain] = [{"$match": wanted}, {"$group": {"_id": kinds, "n": {"$sum": 1}}}]
    scored = unfollowed = 0
    for group in await database.aggregate("Record", stages):
        if group["_id"]["scored"]:
            scored += int(group["n"])
        elif not group["_id"]["followed"]:
            unfollowed += int(group["n"])
    return _Landed(scored, unfollowed)
