"""What admission counts, by query; nothing here is ever accumulated.

Invariants: Tasks are read before Records, so a Task that was admitted before the look counts with its seats or with its
Records; one of which the Records are not all there yet counts as if they were. A seat that had failed, and that another
steward opens again between the second look and the third, is in none of them: then there may be a group too many, and
nothing is lost.

It runs several times a second, so every query is one that the server plans once and answers from an index: an
`$or` over both of those about Records takes it three times as long as they do.
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
        # Counted twice while seats are being opened: a little too cautious, for a moment.
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
    """They failed, and their seats are not open again yet: another group must not take their place."""


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
