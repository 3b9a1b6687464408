"""Publications and services in MongoDB, for engines.

Invariants:
- every change is one conditional update, with times of the server;
- the first engine that serves a publication makes it `current`, and older ones `retained` or `skipped`;
- at most half of the serving engines load at the same time.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec

from agentrl.engines.canary import Agreement
from agentrl.engines.manifest import Manifest
from agentrl.engines.publication_follower import Announced
from agentrl.policies.status_tables import PUBLICATION, Actor, PublicationStatus, check
from agentrl.store import service_registry
from agentrl.store.database import Database, Plain
from agentrl.store.documents import Service, to_bson
from agentrl.store.update_expressions import NOW, from_now
from agentrl.store.weight_documents import CanaryReading

S = PublicationStatus
LOADABLE = [S.ANNOUNCED, S.CURRENT, S.RETAINED, S.SKIPPED]
"""States of publications that an evaluation can use: a skipped one keeps its files as long as an evaluation waits for
it."""


class StoredPublications:
    """Implements `Publications`."""

    def __init__(self, database: Database, *, load_within_s: float = 600.0) -> None:
        """`load_within_s`: how long a permit is valid."""
        self._database = database
        self._load_within_s = load_within_s

    async def newest(self, than: int | None, *, but: Collection[int] = ()) -> Announced | None:
        newer = {} if than is None else {"$gt": than}
        wanted = {"status": {"$in": [S.ANNOUNCED, S.CURRENT]}, "_id": {**newer, "$nin": sorted(but)}}
        return _announced(await self._database.find_one("Publication", wanted, sort=[("_id", -1)]))

    async def pinned(self) -> Announced | None:
        """The oldest version with a requested evaluation or with open evaluation tasks, even if it was overtaken before
        any engine served it."""
        loadable = {"status": {"$in": LOADABLE}}
        wanted = {**loadable, "evaluation": {"$in": ["wanted", "queued"]}}
        requested = await self._database.find_one("Publication", wanted, sort=[("_id", 1)])
        if requested is not None:
            return _announced(requested)
        open_tasks = {"purpose": "eval", "status": {"$in": ["queued", "admitted"]}, "version": {"$type": "number"}}
        task = await self._database.find_one("Task", open_tasks, sort=[("version", 1)])
        if task is None:
            return None
        return _announced(await self._database.find_one("Publication", {"_id": task["version"], **loadable}))

    async def permit(self, version: int, engine: str) -> bool:
        """At most half of the serving engines load at the same time, but always one; versions do not matter."""
        # An engine that only evaluates has no version for other calls.
        routed = {"kind": "engine", "state": "serving", "version": {"$type": "number"}}
        serving = await self._database.count("Service", routed)
        others = _valid_permits(await self._routed(but=engine))
        mine = {"engine": {"$literal": engine}, "version": version, "until": from_now(self._load_within_s)}
        return await self._database.update_one(
            "Publication",
            {"_id": await self._keeps_permits(), "$expr": {"$lt": [{"$size": others}, max(1, serving // 2)]}},
            [{"$set": {"permits": {"$concatArrays": [others, [mine]]}}}],
        )

    async def served(self, version: int, engine: str, agreement: Agreement | None, *, at: datetime) -> None:
        check(PUBLICATION, S.ANNOUNCED, S.CURRENT, Actor.ENGINE, str(version))
        change: Plain = {"$addToSet": {"served_by": engine}}
        if agreement is not None and agreement.tokens:
            reading = CanaryReading(engine, agreement.largest, agreement.mean, agreement.limit, at)
            change["$addToSet"]["canary"] = to_bson(reading)
            change["$max"] = {"canary_largest": agreement.largest}
        first = await self._database.update_one(
            "Publication", {"_id": version, "status": S.ANNOUNCED}, {"$set": {"status": S.CURRENT}, **change}
        )
        if not first:
            await self._database.update_one("Publication", {"_id": version}, change)
        # Every engine repeats this: the first one may have died before it.
        for former, overtaken in ((S.CURRENT, S.RETAINED), (S.ANNOUNCED, S.SKIPPED)):
            check(PUBLICATION, former, overtaken, Actor.ENGINE, str(version))
            older = {"_id": {"$lt": version}, "status": former}
            await self._database.update_many("Publication", older, {"$set": {"status": overtaken}})
        await self._return_permit(engine)

    async def refused(self, version: int, engine: str, why: str) -> None:
        change = {"$addToSet": {"reasons": f"{engine}: {why}"}}
        await self._database.update_one("Publication", {"_id": version}, change)
        await self._return_permit(engine)

    async def report(self, service: Service) -> None:
        await service_registry.report(self._database, service)

    async def _routed(self, *, but: str) -> list[str]:
        """The engines whose permits count. An engine that has not served yet, or is gone, is not in routing anyway."""
        there = await service_registry.seen(self._database, "engine", ["serving", "loading"])
        return [one.id for one in there if one.id != but]

    async def _keeps_permits(self) -> int | None:
        """The id of the first publication. It holds the permits of all versions, because they can be counted and taken
        in one update only within one document."""
        first = await self._database.find_one("Publication", {}, sort=[("_id", 1)], projection=["_id"])
        return None if first is None else int(first["_id"])

    async def _return_permit(self, engine: str) -> None:
        mine = {"$pull": {"permits": {"engine": engine}}}
        await self._database.update_one("Publication", {"_id": await self._keeps_permits()}, mine)


def _valid_permits(engines: list[str]) -> dict[str, Any]:
    valid = {"$and": [{"$gt": ["$$permit.until", NOW]}, {"$in": ["$$permit.engine", {"$literal": engines}]}]}
    return {"$filter": {"input": {"$ifNull": ["$permits", []]}, "as": "permit", "cond": valid}}


def _announced(document: dict[str, Any] | None) -> Announced | None:
    if document is None:
        return None
    return Announced(
        version=int(document["_id"]),
        path=str(document["path"]),
        manifest=msgspec.convert(document.get("manifest") or {"files": {}}, Manifest),
    )
