"""Checkpoints: documents that follow their files.

Invariants: `complete` is written after the files are durable and renamed, so no trainer starts from a checkpoint whose
document and files do not agree; retention never deletes a pinned checkpoint, the one with the best evaluation, or the
one before a scientific change or a rollback; a lineage writes at most one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from agentrl.errors import UnknownNameError
from agentrl.files.pieces import Content
from agentrl.policies import learning_collapse
from agentrl.policies.status_tables import CHECKPOINT, Actor, CheckpointStatus, check
from agentrl.protocol.knob import KnobValue
from agentrl.store import evaluations, history, publications
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import checkpoint_id
from agentrl.store.documents import load, load_if, to_bson
from agentrl.store.update_expressions import NOW, setting
from agentrl.store.weight_documents import OPENED, Checkpoint, CheckpointFile, Lineage

S = CheckpointStatus
BEST_EVALUATION = "best evaluation"
REFERENCE = "reference/initial"
"""The directory of the model that losses compare with, in the run's directory."""
_FREE: Plain = {"pinned": False, "kept_for": {"$in": ["", None]}}


async def begin(
    database: Database,
    *,
    step: int,
    lineage: str,
    version: int,
    path: str,
    settings: Mapping[str, KnobValue] | None = None,
) -> Checkpoint:
    """Insert the document, before the files are written."""
    check(CHECKPOINT, "", S.WRITING, Actor.TRAINER)
    checkpoint = Checkpoint(
        id=checkpoint_id(step, lineage),
        step=step,
        lineage=lineage,
        version=version,
        path=path,
        settings=dict(settings or {}),
    )
    await database.insert_new("Checkpoint", [to_bson(checkpoint)])
    return checkpoint


async def complete(
    database: Database,
    checkpoint: str,
    files: Mapping[str, CheckpointFile],
    reference: Mapping[str, CheckpointFile] | None = None,
) -> bool:
    """Note that the files are durable under their final names. Returns False if another lineage abandoned the
    checkpoint."""
    check(CHECKPOINT, S.WRITING, S.COMPLETE, Actor.TRAINER, checkpoint)
    # Repeating this after a lost answer changes nothing.
    writing = {"_id": checkpoint, "status": {"$in": [S.WRITING, S.COMPLETE]}}
    return await database.update_one(
        "Checkpoint",
        writing,
        setting({"status": S.COMPLETE, "files": dict(files), "reference": dict(reference or {})}, at=NOW),
    )


def contents_of(files: Mapping[str, CheckpointFile]) -> dict[str, Content]:
    """The files in the form in which hosts request them from each other."""
    return {name: Content(file.bytes, file.hash, tuple(file.pieces)) for name, file in files.items()}


async def abandon_unfinished(database: Database, lineage: str) -> int:
    """Abandon what former lineages did not finish. The next lineage does this at its start."""
    check(CHECKPOINT, S.WRITING, S.ABANDONED, Actor.TRAINER, lineage)
    unfinished = {"status": S.WRITING, "lineage": {"$ne": lineage}}
    return await database.update_many("Checkpoint", unfinished, {"$set": {"status": S.ABANDONED}})


async def newest_first(database: Database) -> list[Checkpoint]:
    """Complete checkpoints, newest Step first, and of two at the same Step the later one first. The caller checks the
    files."""
    documents = await database.find("Checkpoint", {"status": S.COMPLETE}, sort=[("step", -1), ("at", -1)])
    return [load(Checkpoint, document) for document in documents]


async def newest(database: Database) -> Checkpoint | None:
    """The complete checkpoint that was written last."""
    return load_if(Checkpoint, await database.find_one("Checkpoint", {"status": S.COMPLETE}, sort=[("at", -1)]))


async def incomplete_paths(database: Database) -> list[str]:
    """Paths that may have files of checkpoints that were abandoned or deleted."""
    left = {"status": {"$in": [S.ABANDONED, S.DELETED]}, "path": {"$ne": ""}}
    return [one["path"] for one in await database.find("Checkpoint", left, projection=["path"])]


async def has_first(database: Database) -> bool:
    """Whether a checkpoint was ever written before the first step, as after a warm-up, even if it was removed since."""
    written = {"step": 0, "status": {"$in": [S.COMPLETE, S.DELETED]}}
    return await database.find_one("Checkpoint", written, projection=["_id"]) is not None


async def superfluous(database: Database, *, keep: int) -> list[Checkpoint]:
    """Complete checkpoints that nothing keeps, beyond the newest `keep`. Those of the present history are kept before
    others, because after a crash a run continues only from one of them. They are ordered by time, because a lineage
    that was rolled back has steps with greater numbers."""
    evaluated = await publications.evaluated(database)
    documents = await database.find("Checkpoint", {"status": S.COMPLETE, **_FREE}, sort=[("at", -1), ("step", -1)])
    free = [load(Checkpoint, document) for document in documents]
    lineages = [load(Lineage, document) for document in await database.find("Lineage", OPENED, projection={"plan": 0})]
    valid = {valid_checkpoint.id for valid_checkpoint in history.valid_checkpoints(lineages, free)}
    free.sort(key=lambda one: one.id not in valid)
    return [one for one in free[keep:] if one.version not in evaluated]


async def best(database: Database) -> Checkpoint | None:
    """The checkpoint whose version has the best evaluation on the present held-out tasks, or, without one, on earlier
    tasks."""
    return next(iter(await _bests(database)), None)


async def _bests(database: Database) -> list[Checkpoint]:
    """The best checkpoint for each set of held-out tasks, the present set first. If several have the same version it is
    the earliest, because later ones contain further steps."""
    earliest = {one.version: one for one in await newest_first(database)}
    intact = {version for version, one in earliest.items() if not one.damage}
    sets = await evaluations.measured_by_tasks(database)
    found = (learning_collapse.best_of([result for result in results if result.of in intact]) for results in sets)
    return [earliest[one.of] for one in found if one is not None]


async def newest_before(database: Database, at: datetime) -> Checkpoint | None:
    """The last checkpoint that was complete at that time."""
    complete = {"status": S.COMPLETE, "damage": {"$in": ["", None]}, "at": {"$lt": at}}
    return load_if(Checkpoint, await database.find_one("Checkpoint", complete, sort=[("at", -1)]))


async def keep_best(database: Database) -> None:
    """Call this after an evaluation: retention then keeps the best checkpoint for each set of held-out tasks, and no
    longer the former best ones."""
    if found := [one.id for one in await _bests(database)]:
        former = {"kept_for": BEST_EVALUATION, "_id": {"$nin": found}}
        await database.update_many("Checkpoint", former, {"$set": {"kept_for": ""}})
        for checkpoint in found:
            await keep(database, checkpoint, BEST_EVALUATION)


async def keep(database: Database, checkpoint: str, why: str) -> None:
    """Exempt a checkpoint from retention. If it already has a reason, that reason stays."""
    await database.update_one(
        "Checkpoint", {"_id": checkpoint, "kept_for": {"$in": ["", BEST_EVALUATION, None]}}, {"$set": {"kept_for": why}}
    )


async def note_damage(database: Database, checkpoint: str, problem: str) -> None:
    await database.update_one("Checkpoint", {"_id": checkpoint}, {"$set": {"damage": problem}})


async def delete(database: Database, checkpoint: str) -> bool:
    """Mark it as deleted, before its files are removed. Returns False if it must be kept now."""
    check(CHECKPOINT, S.COMPLETE, S.DELETED, Actor.TRAINER, checkpoint)
    free = {"_id": checkpoint, "status": S.COMPLETE, **_FREE}
    return await database.update_one("Checkpoint", free, {"$set": {"status": S.DELETED}})


async def get(database: Database, checkpoint: str) -> Checkpoint:
    """A complete checkpoint, from which a trainer can start."""
    there = {"_id": checkpoint, "status": S.COMPLETE}
    found = load_if(Checkpoint, await database.find_one("Checkpoint", there))
    if found is None:
        raise _unknown(checkpoint)
    return found


async def is_complete(database: Database, checkpoint: str) -> bool:
    there = {"_id": checkpoint, "status": S.COMPLETE}
    return await database.find_one("Checkpoint", there, projection=["_id"]) is not None


async def pin(database: Database, checkpoint: str, *, pinned: bool) -> Checkpoint:
    """An operator pins or unpins it. Unpinning also removes any other reason to keep it, except the best evaluation."""
    there = {"_id": checkpoint, "status": S.COMPLETE}
    fields: Plain = {"pinned": pinned}
    if not pinned:
        best_one = await best(database)
        fields["kept_for"] = BEST_EVALUATION if best_one is not None and best_one.id == checkpoint else ""
    found = load_if(Checkpoint, await database.find_one_and_update("Checkpoint", there, {"$set": fields}))
    if found is None:
        raise _unknown(checkpoint)
    return found


def _unknown(checkpoint: str) -> UnknownNameError:
    return UnknownNameError(f"There is no complete checkpoint {checkpoint}.", hint="See `agentrl checkpoints list`.")
