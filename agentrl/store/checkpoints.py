"""Checkpoints: documents that follow their files.

Invariants: `complete` is written after the files are durable and renamed, so a checkpoint whose document and files do
not agree is never started from; a pinned one is never deleted; at most one is written at a time per lineage.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.errors import UnknownNameError
from agentrl.policies.status_tables import CHECKPOINT, Actor, CheckpointStatus, check
from agentrl.store.database import Database
from agentrl.store.documents import Checkpoint, CheckpointFile, checkpoint_id, load, load_if, to_bson
from agentrl.store.update_expressions import NOW, setting

S = CheckpointStatus


async def begin(database: Database, *, step: int, lineage: str, version: int, path: str) -> Checkpoint:
    """Before its files are written."""
    check(CHECKPOINT, "", S.WRITING, Actor.TRAINER)
    checkpoint = Checkpoint(id=checkpoint_id(step, lineage), step=step, lineage=lineage, version=version, path=path)
    await database.insert_new("Checkpoint", [to_bson(checkpoint)])
    return checkpoint


async def complete(database: Database, checkpoint: str, files: Mapping[str, CheckpointFile]) -> bool:
    """Once its files are durable under their final names. False if another lineage abandoned it."""
    check(CHECKPOINT, S.WRITING, S.COMPLETE, Actor.TRAINER, checkpoint)
    # To say it again, where the answer was lost, changes nothing.
    writing = {"_id": checkpoint, "status": {"$in": [S.WRITING, S.COMPLETE]}}
    return await database.update_one(
        "Checkpoint", writing, setting({"status": S.COMPLETE, "files": dict(files)}, at=NOW)
    )


async def abandon_unfinished(database: Database, lineage: str) -> int:
    """What former lineages did not finish: by the next one at its start."""
    check(CHECKPOINT, S.WRITING, S.ABANDONED, Actor.TRAINER, lineage)
    unfinished = {"status": S.WRITING, "lineage": {"$ne": lineage}}
    return await database.update_many("Checkpoint", unfinished, {"$set": {"status": S.ABANDONED}})


async def newest_first(database: Database) -> list[Checkpoint]:
    """Complete ones, newest Step first; of two of one Step the later. Whether the files agree is for the caller."""
    found = await database.find("Checkpoint", {"status": S.COMPLETE}, sort=[("step", -1), ("at", -1)])
    return [load(Checkpoint, document) for document in found]


async def has_first(database: Database) -> bool:
    """Whether one was written before the first step, as after a warm-up; also one that was removed since."""
    written = {"step": 0, "status": {"$in": [S.COMPLETE, S.DELETED]}}
    return await database.find_one("Checkpoint", written, projection=["_id"]) is not None


async def superfluous(database: Database, *, keep: int) -> list[Checkpoint]:
    """Complete ones that are not pinned, beyond the newest `keep`."""
    free = [checkpoint for checkpoint in await newest_first(database) if not checkpoint.pinned]
    return free[keep:]


async def delete(database: Database, checkpoint: str) -> bool:
    """Before its files are removed. False if it was pinned meanwhile."""
    check(CHECKPOINT, S.COMPLETE, S.DELETED, Actor.TRAINER, checkpoint)
    free = {"_id": checkpoint, "status": S.COMPLETE, "pinned": False}
    return await database.update_one("Checkpoint", free, {"$set": {"status": S.DELETED}})


async def get(database: Database, checkpoint: str) -> Checkpoint:
    """A complete one, which can be started from."""
    there = {"_id": checkpoint, "status": S.COMPLETE}
    found = load_if(Checkpoint, await database.find_one("Checkpoint", there))
    if found is None:
        raise _unknown(checkpoint)
    return found


async def pin(database: Database, checkpoint: str, *, pinned: bool) -> Checkpoint:
    """By an operator."""
    there = {"_id": checkpoint, "status": S.COMPLETE}
    found = load_if(Checkpoint, await database.find_one_and_update("Checkpoint", there, {"$set": {"pinned": pinned}}))
    if found is None:
        raise _unknown(checkpoint)
    return found


def _unknown(checkpoint: str) -> UnknownNameError:
    return UnknownNameError(f"There is no complete checkpoint {checkpoint}.", hint="See `agentrl checkpoints list`.")
