"""The four operations on MongoDB that an engine unit needs, on PyMongo's asynchronous client.

Invariant: every operation has a deadline; what the driver raises goes through, and the puller tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymongo
from pymongo import AsyncMongoClient

from agentrl.engines.published import Plain, Update

OPERATION_WITHIN_S = 20.0


class MongoDocuments:
    """Implements `Documents` for one database."""

    def __init__(self, url: str, name: str) -> None:
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            url, tz_aware=True, appname="agentrl-engine", serverSelectionTimeoutMS=10_000
        )
        self._database = self._client[name]

    async def close(self) -> None:
        await self._client.close()

    async def find_one(
        self, collection: str, filter: Plain, *, sort: Sequence[tuple[str, int]] | None = None
    ) -> dict[str, Any] | None:
        with pymongo.timeout(OPERATION_WITHIN_S):
            return await self._database[collection].find_one(filter, sort=sort)

    async def update_one(self, collection: str, filter: Plain, update: Update, *, upsert: bool = False) -> bool:
        with pymongo.timeout(OPERATION_WITHIN_S):
            done = await self._database[collection].update_one(filter, update, upsert=upsert)
        return done.matched_count > 0

    async def update_many(self, collection: str, filter: Plain, update: Update) -> int:
        with pymongo.timeout(OPERATION_WITHIN_S):
            return (await self._database[collection].update_many(filter, update)).modified_count

    async def count(self, collection: str, filter: Plain) -> int:
        with pymongo.timeout(OPERATION_WITHIN_S):
            return await self._database[collection].count_documents(filter)
