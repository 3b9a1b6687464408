"""Removes the model calls, with their texts and tool calls, of consumed Tasks.

Invariants: a Task of a Step that a restart may roll back is not consumed, and one that an operator rolls back to an
older checkpoint is sampled again; nothing is removed that another record
builds on; Task, Record, DBRecordData and Step stay. Removing again what is half removed ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.policies.status_tables import Actor, CheckpointStatus, TaskStatus
from agentrl.store import tasks
from agentrl.store.database import Database
from agentrl.store.document_ids import within
from agentrl.store.documents import TRAINS, Task, load
from agentrl.store.update_expressions import is_older

S = TaskStatus
PRUNED = "its details were removed"
"""The reason of a round."""
_OVER = (S.TRAINED, S.FILTERED, S.DEAD, S.DONE)


async def consumed(database: Database, *, older_than_s: float, max_trained_count: int, limit: int) -> list[str]:
    """The ids, first admitted first."""
    # What retention keeps for an operator may be very old, and would keep the details of all records since.
    usual = {"status": CheckpointStatus.COMPLETE, "kept_for": {"$in": ["", None]}}
    kept = await database.find_one("Checkpoint", usual, sort=[("step", 1)])
    covered = {"step": {"$lte": int(kept["step"]) if kept else 0}}
    over: list[dict[str, Any]] = [
        {"status": S.TRAINED, "trained_count": {"$gte": max_trained_count}, **covered},
        {"status": S.FILTERED, **covered},
        {"status": {"$in": [S.DEAD, S.DONE]}},
    ]
    # The first condition is what the index on statuses is good for.
    prunable: dict[str, Any] = {"status": {"$in": list(_OVER)}, "pruned": {"$ne": True}, "$or": over}
    # Bases are no part of what is limited: so many in a row would hide what comes after them.
    prunable["_id"] = {"$nin": sorted(await _bases_of_the_living(database))}
    found = await database.find(
        "Task",
        prunable | is_older("admitted_at", older_than_s),
        sort=[("admitted_order", 1)],
        limit=limit,
        projection=["_id"],
    )
    return [task["_id"] for task in found]


async def remove_details(database: Database, names: Sequence[str]) -> None:
    for task in names:
        for collection in ("Chunk", "DispatchedSamplingTask"):
            await database.delete_many(collection, {"_id": within(task, "#")})
    await database.update_many("Task", {"_id": {"$in": list(names)}}, {"$set": {"pruned": True}})


async def sample_again(database: Database) -> int:
    """Tasks that a rollback has freed and whose details were removed cannot train: by the next trainer. Answers how
    many there were."""
    freed = {"status": S.READY, "pruned": True, "purpose": {"$in": list(TRAINS)}}
    found = [load(Task, document) for document in await database.find("Task", freed)]
    for task in found:
        await tasks.next_round(database, task, Actor.TRAINER, PRUNED, final_reason=PRUNED)
    return len(found)


async def _bases_of_the_living(database: Database) -> set[str]:
    """Tasks from which forks go on that are not over."""
    forks = {"purpose": {"$in": ["branch", "probe"]}, "status": {"$nin": list(_OVER)}}
    living = await database.find("Task", forks, projection=["fork"])
    return {task["fork"]["base"].partition("#")[0] for task in living if task.get("fork")}
