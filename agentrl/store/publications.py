"""Publications: versions of the weights, from taking a number until no engine needs the version.

Invariants: a number is taken by an insert and never used twice, also after a resume, because documents outlive files;
only the lineage that took a number announces it; engines make it current (`agentrl.engines.publication_store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from agentrl.files.pieces import Content
from agentrl.policies.status_tables import PUBLICATION, Actor, PublicationStatus, check
from agentrl.store.database import AlreadyThereError, Database
from agentrl.store.documents import load, load_if, to_bson
from agentrl.store.service_registry import PRESENT
from agentrl.store.update_expressions import NOW, is_older, setting
from agentrl.store.weight_documents import CanaryReading, Publication

S = PublicationStatus


def path_of(version: int) -> str:
    """The path of a version, relative to the run's directory."""
    return f"weights/v{version:06d}"


def tokenizer_files(publication: Publication) -> dict[str, Content]:
    """All files except the weights, in the form in which hosts request them from each other."""
    files = msgspec.convert(publication.manifest.get("files", {}), dict[str, Content])
    return {name: content for name, content in files.items() if not name.endswith(".safetensors")}


async def take_number(database: Database, *, parent: int | None, lineage: str, step: int) -> Publication:
    """Take the number of the next version, before its files are written."""
    check(PUBLICATION, "", S.WRITING, Actor.TRAINER)
    while True:
        newest = await database.find_one("Publication", {}, sort=[("_id", -1)], projection=["_id"])
        version = int(newest["_id"]) + 1 if newest else 1
        publication = Publication(id=version, parent=parent, lineage=lineage, step=step, path=path_of(version))
        try:
            await database.insert_many("Publication", [to_bson(publication)])
        except AlreadyThereError:
            continue
        return publication


async def announce(database: Database, version: int, lineage: str, manifest: Mapping[str, Any]) -> bool:
    """Announce a version whose manifest and weights are complete, so engines may fetch it. Earlier versions that no
    engine has taken are skipped."""
    check(PUBLICATION, S.WRITING, S.ANNOUNCED, Actor.TRAINER, str(version))
    writing = {"_id": version, "status": S.WRITING, "lineage": lineage}
    fields = {"status": S.ANNOUNCED, "manifest": dict(manifest)}
    if not await database.update_one("Publication", writing, setting(fields, announced_at=NOW)):
        # If the answer to the announcement was lost, the repetition counts as a success.
        usable = {
            "_id": version,
            "lineage": lineage,
            "status": {"$in": [S.ANNOUNCED, S.CURRENT, S.RETAINED, S.REJECTED]},
        }
        if await database.find_one("Publication", usable, projection=["_id"]) is None:
            return False
    check(PUBLICATION, S.ANNOUNCED, S.SKIPPED, Actor.TRAINER, str(version))
    overtaken = {"_id": {"$lt": version}, "status": {"$in": [S.WRITING, S.ANNOUNCED]}}
    await database.update_many("Publication", overtaken, {"$set": {"status": S.SKIPPED}})
    return True


class PassedCanary(NamedTuple):
    """The canary that an engine passed last."""

    engine: str
    version: int
    at: datetime


async def last_canary(database: Database, engine: Mapping[str, Any]) -> PassedCanary | None:
    """The last canary of all engines whose name `engine` matches. None if none passed one."""
    documents = await database.aggregate(
        "Publication",
        [
            {"$match": {"canary.engine": engine}},
            {"$project": {"canary": 1}},
            {"$unwind": "$canary"},
            {"$match": {"canary.engine": engine, "canary.at": {"$type": "date"}}},
            {"$sort": {"canary.at": -1}},
            {"$limit": 1},
        ],
    )
    return (
        PassedCanary(documents[0]["canary"]["engine"], documents[0]["_id"], documents[0]["canary"]["at"])
        if documents
        else None
    )


async def first_canary(database: Database) -> CanaryReading | None:
    """The difference of engines at the first publication that they served: the reading with the largest mean."""
    there = {"canary.0": {"$exists": True}}
    publication = load_if(Publication, await database.find_one("Publication", there, sort=[("_id", 1)]))
    return None if publication is None else max(publication.canary, key=lambda reading: reading.mean)


async def rejected_version(database: Database) -> int:
    """The newest announced version if no engine took it, otherwise 0."""
    usable = {"status": {"$in": [S.ANNOUNCED, S.CURRENT, S.REJECTED]}}
    newest = await database.find_one("Publication", usable, sort=[("_id", -1)], projection=["status"])
    return int(newest["_id"]) if newest is not None and newest["status"] == S.REJECTED else 0


async def skip_unfinished(database: Database, lineage: str) -> int:
    """Skip publications that former lineages have not announced. The next lineage does this at its start."""
    check(PUBLICATION, S.WRITING, S.SKIPPED, Actor.TRAINER, lineage)
    unfinished = {"status": S.WRITING, "lineage": {"$ne": lineage}}
    return await database.update_many("Publication", unfinished, {"$set": {"status": S.SKIPPED}})


async def reject_overdue(database: Database, *, after_s: float) -> list[int]:
    """Reject publications past their deadline that every engine which tried them refused. A publication that no engine
    tried is kept, because an engine that starts later has nothing else."""
    check(PUBLICATION, S.ANNOUNCED, S.REJECTED, Actor.STEWARD)
    overdue = {
        "status": S.ANNOUNCED,
        "reasons.0": {"$exists": True},
        "served_by": [],
        **is_older("announced_at", after_s),
    }
    rejected = []
    for found in await database.find("Publication", overdue, projection=["_id"]):
        same = {"_id": found["_id"], "status": S.ANNOUNCED, "served_by": []}
        if await database.update_one("Publication", same, {"$set": {"status": S.REJECTED}}):
            rejected.append(int(found["_id"]))
    return rejected


async def superfluous(database: Database, *, keep: int, needed: Iterable[int] = ()) -> list[Publication]:
    """Retained publications beyond the newest `keep` that no engine serves or loads, and no checkpoint or evaluation
    needs."""
    held: set[int] = set(needed)
    alive = {"kind": "engine", "state": {"$in": PRESENT}}
    for service in await database.find("Service", alive, projection=["version", "versions_loaded"]):
        held |= {version for version in (*service["versions_loaded"], service["version"]) if version is not None}
    held |= await evaluated(database)
    kept = {"status": "complete"}
    held |= set(await database.distinct("Checkpoint", "version", kept))
    documents = await database.find("Publication", {"status": S.RETAINED}, sort=[("_id", -1)])
    return [load(Publication, document) for document in documents[keep:] if document["_id"] not in held]


async def evaluated(database: Database) -> set[int]:
    """Versions whose evaluation is requested or not complete: their files are needed, whatever their status is."""
    wanted = {"evaluation": {"$in": ["wanted", "queued"]}}
    documents = await database.find("Publication", wanted, projection=["_id"])
    open_tasks = {"version": {"$type": "number"}, "purpose": "eval", "status": {"$in": ["queued", "admitted"]}}
    return {int(one["_id"]) for one in documents} | set(await database.distinct("Task", "version", open_tasks))


async def delete(database: Database, version: int, actor: Actor = Actor.TRAINER) -> bool:
    """Mark it as deleted, before its files are removed."""
    check(PUBLICATION, S.RETAINED, S.DELETED, actor, str(version))
    return await database.update_one(
        "Publication", {"_id": version, "status": S.RETAINED}, {"$set": {"status": S.DELETED}}
    )


async def parents(database: Database) -> dict[int, int | None]:
    """The tree of versions, to compute ages."""
    documents = await database.find("Publication", {}, projection=["parent"])
    return {int(document["_id"]): document.get("parent") for document in documents}


async def ages_s(database: Database, versions: Iterable[int], at: datetime | None) -> dict[int, float]:
    """The time from the announcement of each version to that moment; 0 for a version that was never announced."""
    wanted = sorted(versions)
    documents = await database.find("Publication", {"_id": {"$in": wanted}}, projection=["announced_at"])
    announced = {int(one["_id"]): one["announced_at"] for one in documents if one["announced_at"] is not None}
    return {one: (at - announced[one]).total_seconds() if at and one in announced else 0.0 for one in wanted}


async def newest(database: Database) -> Publication | None:
    """The newest announced version, whether or not an engine serves it yet."""
    there = {"status": {"$in": [S.ANNOUNCED, S.CURRENT, S.RETAINED]}}
    return load_if(Publication, await database.find_one("Publication", there, sort=[("_id", -1)]))
