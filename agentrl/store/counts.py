"""What admission counts, by query; nothing here is ever accumulated.

Invariants: Tasks are read before Records, so a Task that was admitted before the look counts with its seats or with its
Records; one of which the Records are not all there yet counts as if they were, so two stewards that count one after the
other never admit into the same capacity. Two commands say it all: it is asked several times a second.
"""

from __future__ import annotations

from typing import NamedTuple

from agentrl.policies.admission import Counts
from agentrl.policies.states import IN_FLIGHT, RecordStatus, TaskStatus
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS
from agentrl.store.indexes import UNFOLLOWED

_TRAINING = {"$in": list(TRAINS)}


async def of_admission(database: Database) -> Counts:
    groups = await _groups(database)
    records = await _records(database, groups.unclosed)
    # Counted twice while seats are being opened: a little too cautious, for a moment.
    opening = groups.opening + sum(records.get(status, 0) for status in UNFOLLOWED)
    return Counts(
        open=records.get(RecordStatus.OPEN, 0) + opening,
        running=records.get(RecordStatus.RUNNING, 0),
        finished=records.get(RecordStatus.FINISHED, 0),
        unscored=records.get(RecordStatus.UNSCORED, 0),
        ready=groups.ready + records.get(RecordStatus.SCORED, 0),
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
    asked = [{"$match": {"status": {"$in": statuses}, "purpose": _TRAINING}}, {"$group": sums}]
    found = {group["_id"]: group for group in await database.aggregate("Task", asked)}
    admitted = found.get(TaskStatus.ADMITTED, {"unclosed": [], "opening": 0})
    ready, leased = found.get(TaskStatus.READY, {}), found.get(TaskStatus.LEASED, {})
    return _Groups(
        admitted["unclosed"], int(admitted["opening"]), int(ready.get("members", 0)), int(leased.get("n", 0))
    )


async def _records(database: Database, unclosed: list[str]) -> dict[str, int]:
    """By status: those under way, and of groups that are not closed those that are scored, and those that failed and
    whose seat nobody has opened again yet: another group must not take their place."""
    among = {"task": {"$in": unclosed}}
    wanted: list[Plain] = [{"status": {"$in": sorted(IN_FLIGHT)}, "purpose": _TRAINING}]
    if unclosed:
        wanted.append(among | {"status": RecordStatus.SCORED})
        wanted.append(among | {"status": {"$in": UNFOLLOWED}, "followed": False})
    asked: list[Plain] = [{"$match": {"$or": wanted}}, {"$group": {"_id": "$status", "n": {"$sum": 1}}}]
    return {group["_id"]: int(group["n"]) for group in await database.aggregate("Record", asked)}
