"""What admission counts, by query; nothing here is ever accumulated.

Invariant: a Task that was admitted and whose Records are not all there yet counts as if they were, so two stewards that
count one after the other never admit into the same capacity.
"""

from __future__ import annotations

from typing import Any

from agentrl.policies.admission import Counts
from agentrl.policies.states import IN_FLIGHT, RecordStatus, TaskStatus
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS


async def of_admission(database: Database) -> Counts:
    by_status = await _by_status(database)
    unclosed = {"status": TaskStatus.ADMITTED, "purpose": {"$in": list(TRAINS)}}
    tasks = await database.find("Task", unclosed, projection=["n", "seating"])
    scored = {"task": {"$in": [task["_id"] for task in tasks]}, "status": RecordStatus.SCORED}
    return Counts(
        # Counted twice while seats are being opened: a little too cautious, for a moment.
        open=by_status.get(RecordStatus.OPEN, 0) + sum(task["n"] for task in tasks if task["seating"]),
        running=by_status.get(RecordStatus.RUNNING, 0),
        finished=by_status.get(RecordStatus.FINISHED, 0),
        unscored=by_status.get(RecordStatus.UNSCORED, 0),
        ready=await _sum(database, {"status": TaskStatus.READY, "signal": True}, "$members")
        + (await database.count("Record", scored) if tasks else 0),
        leased=await _sum(database, {"status": TaskStatus.LEASED}, "$n"),
    )


async def _by_status(database: Database) -> dict[str, int]:
    flying = {"status": {"$in": sorted(IN_FLIGHT)}, "purpose": {"$in": list(TRAINS)}}
    found = await database.aggregate("Record", [{"$match": flying}, {"$group": {"_id": "$status", "n": {"$sum": 1}}}])
    return {group["_id"]: int(group["n"]) for group in found}


async def _sum(database: Database, filter: dict[str, Any], field: str) -> int:
    trains = {**filter, "purpose": {"$in": list(TRAINS)}}
    found = await database.aggregate("Task", [{"$match": trains}, {"$group": {"_id": None, "n": {"$sum": field}}}])
    return int(found[0]["n"]) if found else 0
