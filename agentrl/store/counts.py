"""What admission counts, by query; nothing here is ever accumulated.

Invariant: a Task that was admitted and whose Records are not all there yet counts as if they were, so two stewards that
count one after the other never admit into the same capacity.
"""

from __future__ import annotations

from agentrl.policies.admission import Counts
from agentrl.policies.states import IN_FLIGHT, RecordStatus, TaskStatus
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS
from agentrl.store.indexes import UNFOLLOWED


async def of_admission(database: Database) -> Counts:
    by_status = await _by_status(database)
    unclosed = {"status": TaskStatus.ADMITTED, "purpose": {"$in": list(TRAINS)}}
    tasks = await database.find("Task", unclosed, projection=["n", "seating"])
    scored = {"task": {"$in": [task["_id"] for task in tasks]}, "status": RecordStatus.SCORED}
    ready, leased = await _closed(database)
    # Counted twice while seats are being opened: a little too cautious, for a moment.
    opening = sum(task["n"] for task in tasks if task["seating"]) + await _between_attempts(database, tasks)
    return Counts(
        open=by_status.get(RecordStatus.OPEN, 0) + opening,
        running=by_status.get(RecordStatus.RUNNING, 0),
        finished=by_status.get(RecordStatus.FINISHED, 0),
        unscored=by_status.get(RecordStatus.UNSCORED, 0),
        ready=ready + (await database.count("Record", scored) if tasks else 0),
        leased=leased,
    )


async def _by_status(database: Database) -> dict[str, int]:
    flying = {"status": {"$in": sorted(IN_FLIGHT)}, "purpose": {"$in": list(TRAINS)}}
    found = await database.aggregate("Record", [{"$match": flying}, {"$group": {"_id": "$status", "n": {"$sum": 1}}}])
    return {group["_id"]: int(group["n"]) for group in found}


async def _between_attempts(database: Database, tasks: list[Plain]) -> int:
    """Seats whose attempt has failed and which nobody has opened again yet: another group must not take their place."""
    failed = {"status": {"$in": UNFOLLOWED}, "followed": False, "task": {"$in": [task["_id"] for task in tasks]}}
    return await database.count("Record", failed) if tasks else 0


async def _closed(database: Database) -> tuple[int, int]:
    """Records of groups that are ready and have signal, and of those that are leased."""
    closed = {"status": {"$in": [TaskStatus.READY, TaskStatus.LEASED]}, "purpose": {"$in": list(TRAINS)}}
    members = {"$sum": {"$cond": ["$signal", "$members", 0]}}
    sums = {"$group": {"_id": "$status", "members": members, "n": {"$sum": "$n"}}}
    found = {group["_id"]: group for group in await database.aggregate("Task", [{"$match": closed}, sums])}
    ready, leased = found.get(TaskStatus.READY), found.get(TaskStatus.LEASED)
    return int(ready["members"]) if ready else 0, int(leased["n"]) if leased else 0
