"""Lineages, publications and ages.

Invariants checked here: at most one lineage is open; versions of a later lineage are greater than all earlier ones, and
have a parent that exists; a Step begins from a version of its own lineage.
"""

from __future__ import annotations

from agentrl.policies.status_tables import StepStatus
from agentrl.store import publications
from agentrl.store.audit.problems import Problem, found, listed
from agentrl.store.database import Database, Plain


async def lineages_open_at_once(database: Database) -> Problem | None:
    names = [lineage["_id"] for lineage in await database.find("Lineage", {"closed": False}, projection=["_id"])]
    return listed(names if len(names) > 1 else [], "lineages that are open at once")


async def versions_out_of_order(database: Database) -> Problem | None:
    opened = await database.find("Lineage", {}, sort=[("opened_at", 1), ("_id", 1)], projection=["_id"])
    place = {lineage["_id"]: number for number, lineage in enumerate(opened)}
    announced = {"announced_at": {"$type": "date"}}
    documents = await database.find("Publication", announced, sort=[("_id", 1)], projection=["lineage", "parent"])
    parents = await publications.parents(database)
    wrong, latest = [], -1
    for publication in documents:
        version, of = int(publication["_id"]), place.get(publication["lineage"], -1)
        parent = publication["parent"]
        if of < latest or (parent is not None and (parent >= version or parent not in parents)):
            wrong.append(str(version))
        latest = max(latest, of)
    return listed(wrong, "versions out of order")


async def steps_from_strange_versions(database: Database) -> Problem | None:
    stages: list[Plain] = [
        {"$match": {"status": StepStatus.COMMITTED, "base_version": {"$gt": 0}}},
        {"$lookup": {"from": "Publication", "localField": "base_version", "foreignField": "_id", "as": "base"}},
        {"$match": {"$expr": {"$ne": ["$lineage", {"$ifNull": [{"$first": "$base.lineage"}, ""]}]}}},
    ]
    return await found(database, "Step", stages, "steps begun from a version of another lineage")
