"""Calls of other models in the database: their cost, their stored answers, and services that are not asked for a while.

Invariants: if the database does not answer, at most a question is asked twice, and no episode fails; rows beyond the
limit and older than `KEPT_S` are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pymongo
from pymongo import IndexModel

from agentrl.errors import AgentrlError
from agentrl.other_models.ledger import KEPT, LONGEST_KEPT, OtherModelCall
from agentrl.store.database import Database, Plain

log = logging.getLogger("other_models")
CALLS = "OtherModelCall"
MINUTES = "OtherModelMinute"
RESTING = "OtherModelRest"
"""Services whose last try failed, by sampler."""
KEPT_S = 30 * 86_400
MINUTE_KEPT_S = 600
REST_KEPT_S = 3_600
LOOK_EVERY = 1_000
"""The limit is checked after this many rows of this process."""
INDEXES: dict[str, list[IndexModel]] = {
    CALLS: [
        IndexModel([("request", 1)], name="request", partialFilterExpression={"outcome": "ok"}),
        IndexModel([("record", 1), ("at", 1)], name="record"),
        IndexModel([("at", 1)], name="at", expireAfterSeconds=KEPT_S),
    ],
    MINUTES: [IndexModel([("at", 1)], name="at", expireAfterSeconds=MINUTE_KEPT_S)],
    RESTING: [IndexModel([("at", 1)], name="at", expireAfterSeconds=REST_KEPT_S)],
}


class StoredLedger:
    """Implements `Ledger`."""

    def __init__(self, database: Database, sampler: str = "") -> None:
        """`sampler`: the name of the unit, with which it notes services that are not asked for a while."""
        self._database = database
        self._sampler = sampler
        self._since_look = 0

    async def find(self, request: str) -> str | None:
        try:
            document = await self._database.find_one(CALLS, {"request": request, "outcome": "ok"})
        except AgentrlError as away:
            log.warning("an answer cannot be looked for: %s", away)
            return None
        return None if document is None else str(document.get("answer", ""))

    async def keep(self, call: OtherModelCall) -> None:
        row = msgspec.to_builtins(call, builtin_types=(type(call.at),))
        row["answer"] = call.answer[:LONGEST_KEPT]
        try:
            await self._database.insert_new(CALLS, [row])
            self._since_look += 1
            if self._since_look >= LOOK_EVERY:
                self._since_look = 0
                await self._prune()
        except AgentrlError as away:
            log.warning("a call of the model %s is not recorded: %s", call.model, away)

    async def admitted(self, service: str, minute: int, most: int) -> bool:
        """Counted by the server, for all samplers."""
        row, counted = {"_id": f"{minute} {service}"}, {"$inc": {"calls": 1}}
        try:
            document = await self._database.find_one_and_update(MINUTES, row, counted)
            if document is None:
                new: Plain = {"$setOnInsert": {"at": datetime.now(UTC), "calls": 0}}
                await self._database.update_one(MINUTES, row, new, upsert=True)
                document = await self._database.find_one_and_update(MINUTES, row, counted)
        except AgentrlError as away:
            log.warning("a limit of calls a minute cannot be kept: %s", away)
            return False
        return document is not None and int(document["calls"]) <= most

    async def rests(self, service: str, failures: int, rest_s: float, error: str) -> None:
        now = datetime.now(UTC)
        fields = {"sampler": self._sampler, "service": service, "failures": failures, "error": error, "at": now}
        fields["until"] = now + timedelta(seconds=max(0.0, rest_s))
        await self._note(service, {"$set": fields})

    async def works(self, service: str) -> None:
        await self._note(service, None)

    async def _note(self, service: str, change: Plain | None) -> None:
        row = {"_id": f"{self._sampler} {service}"}
        try:
            if change is None:
                await self._database.delete_many(RESTING, row)
            else:
                await self._database.update_one(RESTING, row, change, upsert=True)
        except AgentrlError as away:
            log.warning("whether a service rests is not recorded: %s", away)

    async def _prune(self) -> None:
        newest_first: list[Plain] = [{"$sort": {"at": -1}}, {"$skip": KEPT}, {"$limit": 1}, {"$project": {"at": 1}}]
        oldest = await self._database.aggregate(CALLS, newest_first)
        if oldest:
            await self._database.delete_many(CALLS, {"at": {"$lte": oldest[0]["at"]}})


async def usage(database: Database) -> list[Plain]:
    """Sums by model and purpose, the most expensive first."""
    group: Mapping[str, Any] = {
        "_id": {"model": "$model", "purpose": "$purpose"},
        "calls": {"$sum": 1},
        "kept": {"$sum": {"$cond": [{"$eq": ["$outcome", "kept"]}, 1, 0]}},
        "unanswered": {"$sum": {"$cond": [{"$in": ["$outcome", ["ok", "kept"]]}, 0, 1]}},
        "tries": {"$sum": "$tries"},
        "tokens_in": {"$sum": "$tokens_in"},
        "tokens_out": {"$sum": "$tokens_out"},
        "cost": {"$sum": "$cost"},
        "latency_s": {"$avg": {"$cond": [{"$eq": ["$outcome", "ok"]}, "$latency_s", None]}},
        "last_at": {"$max": "$at"},
    }
    return await database.aggregate(CALLS, [{"$group": group}, {"$sort": {"cost": -1, "calls": -1}}])


async def resting(database: Database) -> list[Plain]:
    """Services whose last try failed, one row for each sampler."""
    return await database.find(RESTING, {}, sort=[("at", pymongo.DESCENDING)])


async def in_minute(database: Database, minute: int) -> dict[str, int]:
    """Calls of services with a limit, by service."""
    documents = await database.find(MINUTES, {"_id": {"$gte": f"{minute} ", "$lt": f"{minute}!"}})
    return {str(row["_id"]).partition(" ")[2]: int(row["calls"]) for row in documents}


async def newest(
    database: Database, *, record: str = "", failed: bool = False, model: str = "", purpose: str = "", limit: int = 50
) -> list[Plain]:
    """Calls, the newest first, without their answers."""
    named = {"record": record, "model": model, "purpose": purpose}
    wanted: Plain = {name: value for name, value in named.items() if value}
    if failed:
        wanted["error"] = {"$gt": ""}
    return await database.find(CALLS, wanted, sort=[("at", pymongo.DESCENDING)], limit=limit)
