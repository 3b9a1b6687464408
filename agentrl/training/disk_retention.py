"""Removes old checkpoints and versions from the disk.

Invariants: a document is `deleted` before its files are removed, so no process starts from half a directory; pinned
checkpoints, versions that engines hold, and versions of checkpoints and open evaluations stay; files that the database
does not know stay too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl.policies.status_tables import PublicationStatus
from agentrl.store import checkpoints as stored_checkpoints
from agentrl.store import publications
from agentrl.store.database import Database
from agentrl.training import checkpoints, weight_files

_UNWANTED = [PublicationStatus.SKIPPED, PublicationStatus.REJECTED, PublicationStatus.DELETED]


async def tidy_weights(database: Database, run_dir: Path, newest: int, *, keep: int) -> None:
    for one in await publications.superfluous(database, keep=keep):
        await publications.delete(database, one.id)
    there = await asyncio.to_thread(_versions_on_disk, run_dir)
    evaluated = await publications.evaluated(database)
    old = [version for version in there if version <= newest - keep and version not in evaluated]
    unwanted = {"_id": {"$in": old}, "status": {"$in": _UNWANTED}}
    for document in await database.find("Publication", unwanted, projection=["_id"]) if old else ():
        await asyncio.to_thread(weight_files.remove_weights, run_dir, int(document["_id"]))


async def tidy_checkpoints(database: Database, run_dir: Path, *, keep: int) -> None:
    for one in await stored_checkpoints.superfluous(database, keep=keep):
        if await stored_checkpoints.delete(database, one.id):
            await asyncio.to_thread(checkpoints.remove, run_dir / one.path)


async def remove_incomplete_checkpoints(database: Database, run_dir: Path) -> None:
    """Removes what a trainer left that died between the rename of a directory and its document, or before a removal.
    Only the trainer that has taken over may call it, because another one may be writing. A directory without a document
    stays, because the database may be empty, restored or that of another run."""
    for path in await stored_checkpoints.incomplete_paths(database):
        if await asyncio.to_thread((run_dir / path).is_dir):
            await asyncio.to_thread(checkpoints.remove, run_dir / path)


def _versions_on_disk(run_dir: Path) -> list[int]:
    names = [entry.name.removeprefix("v") for entry in (run_dir / "weights").glob("v*")]
    return sorted(int(name) for name in names if name.isdecimal())
