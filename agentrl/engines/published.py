"""Publications and services in MongoDB, as an engine sees them.

Invariants: every change is one conditional update; a publication becomes `current` by the first engine that serves it,
and what it overtook becomes `retained` or `skipped` in the same act's wake; times are the server's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from agentrl.engines.manifest import Manifest
from agentrl.engines.puller import Announced, ServiceReport

PERMIT_S = 60
"""An engine that dies in an update blocks the others no longer than this."""
Plain = Mapping[str, Any]
Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Documents(Protocol):
    """What is needed of `agentrl.store.database.Database`."""

    async def find_one(
        self, collection: str, filter: Plain, *, sort: Sequence[tuple[str, int]] | None = None
    ) -> dict[str, Any] | None: ...

    async def update_one(self, collection: str, filter: Plain, update: Update, *, upsert: bool = False) -> bool:
        """True if a document matched."""
        ...

    async def update_many(self, collection: str, filter: Plain, update: Update) -> int: ...

    async def count(self, collection: str, filter: Plain) -> int: ...


class StoredPublications:
    """Implements `Publications`."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def newest(self, than: int | None, *, but: Collection[int] = ()) -> Announced | None:
        newer = {} if than is None else {"$gt": than}
        wanted = {"status": {"$in": ["announced", "current"]}, "_id": {**newer, "$nin": sorted(but)}}
        return _announced(await self._documents.find_one("Publication", wanted, sort=[("_id", -1)]))

    async def pinned(self) -> Announced | None:
        """A version whose evaluation is wanted, or that open evaluation tasks name; the oldest, asked for first.
        Also one that was overtaken before an engine served it."""
        loadable = {"status": {"$in": ["announced", "current", "retained", "skipped"]}}
        wanted = {**loadable, "evaluation": {"$in": ["wanted", "queued"]}}
        asked = await self._documents.find_one("Publication", wanted, sort=[("_id", 1)])
        if asked is not None:
            return _announced(asked)
        open_tasks = {"purpose": "eval", "status": {"$in": ["queued", "admitted"]}, "version": {"$type": "number"}}
        task = await self._documents.find_one("Task", open_tasks, sort=[("version", 1)])
        if task is None:
            return None
        return _announced(await self._documents.find_one("Publication", {"_id": task["version"], **loadable}))

    async def permit(self, version: int, engine: str) -> bool:
        """At most half of the serving engines load at once, but always one."""
        serving = await self._documents.count("Service", {"kind": "engine", "state": "serving"})
        others = _valid_permits_except(engine)
        return await self._documents.update_one(
            "Publication",
            {"_id": version, "$expr": {"$lt": [{"$size": others}, max(1, serving // 2)]}},
            [
                {
                    "$set": {
                        "permits": {
                            "$concatArrays": [
                                others,
                                [{"engine": {"$literal": engine}, "until": {"$add": ["$$NOW", PERMIT_S * 1000]}}],
                            ]
                        }
                    }
                }
            ],
        )

    async def served(self, version: int, engine: str) -> None:
        told = {"$addToSet": {"served_by": engine}, "$pull": {"permits": {"engine": engine}}}
        first = await self._documents.update_one(
            "Publication", {"_id": version, "status": "announced"}, {"$set": {"status": "current"}, **told}
        )
        if not first:
            await self._documents.update_one("Publication", {"_id": version}, told)
        # Repeated by every engine: the first may have died right here.
        for former, overtaken in (("current", "retained"), ("announced", "skipped")):
            older = {"_id": {"$lt": version}, "status": former}
            await self._documents.update_many("Publication", older, {"$set": {"status": overtaken}})

    async def refused(self, version: int, engine: str, why: str) -> None:
        await self._documents.update_one(
            "Publication",
            {"_id": version},
            {"$addToSet": {"reasons": f"{engine}: {why}"}, "$pull": {"permits": {"engine": engine}}},
        )

    async def report(self, service: ServiceReport) -> None:
        fields = msgspec.to_builtins(service)
        del fields["id"]
        written = {name: {"$literal": value} for name, value in fields.items()}
        await self._documents.update_one(
            "Service", {"_id": service.id}, [{"$set": {**written, "seen_at": "$$NOW"}}], upsert=True
        )


def _valid_permits_except(engine: str) -> dict[str, Any]:
    others = {
        "$and": [{"$gt": ["$$permit.until", "$$NOW"]}, {"$ne": ["$$permit.engine", {"$literal": engine}]}],
    }
    return {"$filter": {"input": {"$ifNull": ["$permits", []]}, "as": "permit", "cond": others}}


def _announced(document: dict[str, Any] | None) -> Announced | None:
    if document is None:
        return None
    return Announced(
        version=int(document["_id"]),
        path=str(document["path"]),
        manifest=msgspec.convert(document.get("manifest") or {"files": {}}, Manifest),
    )
