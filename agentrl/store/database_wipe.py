"""Deletes all data of a run. Only an explicit command does it, never a start.

Invariants: nothing is deleted while an owner may still write, unless the caller forces it; `preview` counts what would
be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import RefusedError
from agentrl.store import schema
from agentrl.store.database import Database
from agentrl.store.update_expressions import NOW


@dataclass(frozen=True, slots=True)
class Loss:
    """What a wipe would delete."""

    documents: dict[str, int]
    bytes: int
    alive: tuple[str, ...]
    """Incarnations that still hold a lease."""


async def preview(database: Database) -> Loss:
    names = [name for name in await database.collections() if name != schema.COLLECTION]
    documents = {name: await database.count(name, {}) for name in names}
    holding = {"expired": False, "$expr": {"$gt": ["$expires_at", NOW]}}
    alive = sorted(owner["_id"] for owner in await database.find("Owner", holding, projection=["_id"]))
    return Loss(documents, await database.size_bytes(), tuple(alive))


async def wipe(database: Database, *, force: bool = False) -> Loss:
    """Delete everything, for good. Raises RefusedError while an incarnation holds a lease."""
    loss = await preview(database)
    if loss.alive and not force:
        raise RefusedError(
            f"{database.name} is in use by {', '.join(loss.alive)}.", hint="Take the run down, then wipe it."
        )
    await database.drop()
    return loss
