"""Trained Tasks that may train once more: the steward requeues them, and the trainer waits for them.

Invariant: both use the same condition, so a trainer never waits for a Task that the steward does not requeue. A Task
stays trained if it trained as often as allowed, or if none of its records is fresh any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.policies.status_tables import TaskStatus
from agentrl.policies.version_tree import VersionTree
from agentrl.store import publications
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS, DBRecordData, load
from agentrl.store.update_expressions import is_older

MOST_AT_ONCE = 256
Bound = Callable[[str], int]
"""The greatest age that still trains, by environment."""


async def candidates(database: Database, *, most: int, bound: Bound, after_s: float = 0.0) -> list[str]:
    """The Tasks that trained fewer than `most` times, last trained at least this long ago, and have a fresh record."""
    if most < 2:
        return []
    trained: dict[str, Any] = {
        "status": TaskStatus.TRAINED,
        "purpose": {"$in": list(TRAINS)},
        "trained_count": {"$lt": most},
    }
    if after_s:
        trained |= is_older("trained_at", after_s)
    documents = await database.find(
        "Task", trained, sort=[("trained_at", -1)], limit=MOST_AT_ONCE, projection=["environment", "shares"]
    )
    newest = await publications.newest(database)
    if not documents or newest is None:
        return []
    tree = VersionTree(await publications.parents(database))
    records = {share["record"] for task in documents for share in task["shares"] if share["advantage"] is not None}
    wanted = {"_id": {"$in": sorted(records)}}
    found_data = await database.find("DBRecordData", wanted, projection=["versions", "oldest_version"])
    data = [load(DBRecordData, document) for document in found_data]
    ages = {one.id: tree.staleness(one.trained_versions, newest.id) for one in data}
    return [
        task["_id"]
        for task in documents
        if any(
            ages.get(share["record"], bound(task["environment"]) + 1) <= bound(task["environment"])
            for share in task["shares"]
        )
    ]
