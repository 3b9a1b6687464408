"""Removes the model calls, with their texts and tool calls, of consumed Tasks.

Invariants: a Task of a Step that a restart may roll back is not consumed; if an operator rolls back to an older
checkpoint, pruned Tasks are sampled again; nothing is removed that another record builds on; Task, Record, DBRecordData
and Step stay. An interrupted removal is completed by repeating it.
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
"""The reason of a round after pruning."""
_OVER = (S.TRAINED, S.FILTERED, S.DEAD, S.DONE)


async def consumed(database: Database, *, older_than_s: float, max_trained_count: int, limit: int) -> list[str]:
    """The ids of consumed Tasks, first admitted first."""
    # Ignores checkpoints that are kept for an operator: they may be very old, and would keep the details of all later
    # records.
    usual = {"status": CheckpointStatus.COMPLETE, "kept_for": {"$in": ["", None]}}
    kept = await database.find_one("Checkpoint", usual, sort=[("step", 1)])
    covered = {"step": {"$lte": int(kept["step"]) if kept else 0}}
    over: list[dict[str, Any]] = [
        {"status": S.TRAINED, "trained_count": {"$gte": max_trained_count}, **covered},
        {"status": S.FILTERED, **covered},
        {"status": {"$in": [S.DEAD, S.DONE]}},
    ]
    # The first condition lets the query use the index on statuses.
    prunable: dict[str, Any] = {"status": {"$in": list(_OVER)}, "pruned": {"$ne": True}, "$or": over}
    # Bases are excluded in the query: otherwise many bases in a row could fill the limit and hide later Tasks.
    prunable["_id"] = {"$nin": sorted(await _bases_of_the_living(database))}
    documents = await database.find(
        "Task",
        prunable | is_older("admitted_at", older_than_s),
        sort=[("admitted_order", 1)],
        limit=limit,
        projection=["_id"],
    )
    return [task["_id"] for task in documents]


async def remove_details(database: Database, names: Sequence[str]) -> None:
    for task in names:
        for collection in ("Chunk", "DispatchedSamplingTask"):
            await database.delete_many(collection, {"_id": within(task, "#")})
    await database.update_many("Task", {"_id": {"$in": list(names)}}, {"$set": {"pruned": True}})


async def sample_again(database: Database) -> int:
    """Sample Tasks again that a rollback has freed and that cannot train because their details were removed. The next
    trainer calls it. Returns their number."""
    freed = {"status": S.READY, "pruned": True, "purpose": {"$in": list(TRAINS)}}
    found = [load(Task, document) for document in await database.find("Task", freed)]
    for task in found:
        await tasks.next_round(database, task, Actor.TRAINER, PRUNED, final_reason=PRUNED)
    return len(found)


async def _bases_of_the_living(database: Database) -> set[str]:
    """Tasks that have a base of a fork that is not over."""
    forks = {"purpose": {"$in": ["branch", "probe"]}, "status": {"$nin": list(_OVER)}}
    living = await database.find("Task", forks, projection=["fork"])
    return {task["fork"]["base"].partition("#")[0] for task in living if task.get("fork")}
