"""Owners: each incarnation has one lease on everything that it claimed.

Invariants: an expired Owner never becomes valid again, so its writes stay fenced; only the server's clock decides
whether a lease is past; only the newest incarnation of a unit holds a lease, whichever incarnation opens first; a
holder that cannot renew stops by its own clock, before the server's clock ends the lease. Runs number their
incarnations independently: an Owner of the same name from an earlier run on this database stays unchanged. A holder
that was stopped for a while cannot know whether its lease is still valid, and asks (`certain`) before it claims or
writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from agentrl.errors import ConflictError
from agentrl.store import schema
from agentrl.store.database import AlreadyThereError, Database, StoreUnavailableError
from agentrl.store.update_expressions import NOW, from_now, is_past, setting

log = logging.getLogger("owner")

LEASE_S = 60.0
RENEW_EVERY_S = 10.0
CERTAIN_S = 0.5
"""A younger answer is used again."""
MARGIN_S = 5.0
"""A holder counts its lease as past this much earlier than the server does."""


class OwnerLostError(ConflictError):
    """This incarnation was declared dead. What it claimed belongs to others now."""


class Lease:
    """The lease of an incarnation: its own Owner document."""

    def __init__(
        self,
        database: Database,
        incarnation: str,
        *,
        unit: str,
        role: str,
        run: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.incarnation = incarnation
        """The id of its Owner, once that is open."""
        self._database = database
        self._unit = unit
        self._role = role
        self.run = run
        self._number = _number(incarnation)
        self._clock = clock
        self._renewed_at = float("-inf")
        self._received_at = float("-inf")
        """When it was last certain that it was not declared dead."""

    @property
    def valid(self) -> bool:
        """Whether this incarnation may still write. It becomes False well before others may take over."""
        return self._clock() < self._renewed_at + LEASE_S - MARGIN_S

    async def open(self) -> None:
        """The first act of an incarnation. Raises OwnerLostError if it was already declared dead, or a newer one is
        alive; ConfigError if the documents are of another version."""
        await schema.ensure(self._database)
        self.incarnation = await _id_of(self._database, self.incarnation, self.run)
        asked_at = self._clock()
        document = {"unit": self._unit, "role": self._role, "run": self.run, "number": self._number}
        document |= {"expired": False, "why": ""}
        alive = {"_id": self.incarnation, "expired": {"$ne": True}}
        try:
            await self._database.update_one(
                "Owner", alive, setting(document, expires_at=from_now(LEASE_S)), upsert=True
            )
        except AlreadyThereError:
            raise self._lost() from None
        living = {"unit": self._unit, "_id": {"$ne": self.incarnation}, "expired": False}
        newer = living | {"run": self.run, "number": {"$gt": self._number}}
        if (found := await self._database.find_one("Owner", newer, projection=["_id"])) is not None:
            await expire(self._database, self.incarnation, f"{found['_id']} lives already", run=self.run)
            raise self._lost()
        self._renewed_at = asked_at
        # A slot has one incarnation at a time, so earlier ones are over, or must be expired, now that this one has
        # begun.
        former = living | {"$nor": [{"run": self.run, "number": {"$gt": self._number}}]}
        update = {"$set": {"expired": True, "why": f"{self.incarnation} took its place"}}
        await self._database.update_many("Owner", former, update)

    async def renew(self) -> None:
        asked_at = self._clock()
        alive = {"_id": self.incarnation, "expired": False}
        if not await self._database.update_one("Owner", alive, setting(expires_at=from_now(LEASE_S))):
            raise self._lost()
        self._renewed_at = self._received_at = asked_at

    async def certain(self) -> None:
        """Raises OwnerLostError if this incarnation was declared dead, which a process that was stopped for a while
        cannot know from its clock. It reads the store at most twice a second."""
        asked_at = self._clock()
        if asked_at < self._received_at + CERTAIN_S:
            return
        dead = {"_id": self.incarnation, "expired": True}
        if await self._database.find_one("Owner", dead, projection=["_id"]) is not None:
            raise self._lost()
        self._received_at = asked_at

    async def keep(self) -> None:
        """Renew until cancelled. Raises OwnerLostError when the lease is lost: then nothing may be written any more."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await self.renew()
            except StoreUnavailableError as away:
                log.warning("%s cannot renew its lease: %s", self.incarnation, away.message)

    async def close(self) -> None:
        """Give everything back at once instead of when the lease is past."""
        await expire(self._database, self.incarnation, "it ended", run=self.run)

    def _lost(self) -> OwnerLostError:
        return OwnerLostError(
            f"{self.incarnation} was declared dead.", hint="It has to end; its replacement has a number of its own."
        )


async def expire(database: Database, incarnation: str, why: str, *, run: str = "") -> bool:
    """Declare an incarnation dead now, because its death was confirmed. Returns False if it was already declared dead.
    If it has not opened its Owner yet, it never can."""
    name = await _id_of(database, incarnation, run)
    dead = {"unit": incarnation.rpartition(".")[0], "run": run, "number": _number(incarnation)}
    dead |= {"expired": True, "why": why}
    try:
        return await database.update_one("Owner", {"_id": name, "expired": {"$ne": True}}, {"$set": dead}, upsert=True)
    except AlreadyThereError:
        return False


def _number(incarnation: str) -> int:
    return int(incarnation.partition("~")[0].rpartition(".")[2])


async def _id_of(database: Database, incarnation: str, run: str) -> str:
    """The id of its Owner: the name of the incarnation, unless an earlier run used that id. An Owner without a run
    counts as one of this run."""
    document = await database.find_one("Owner", {"_id": incarnation}, projection=["run"])
    return incarnation if document is None or document.get("run", "") in ("", run) else f"{incarnation}~{run[:8]}"


async def reap(database: Database) -> list[str]:
    """Declare all owners dead whose lease is past, and return them."""
    past = {"expired": False, **is_past("expires_at")}
    lapsed = [owner["_id"] for owner in await database.find("Owner", past, projection=["_id"])]
    dead = []
    for incarnation in lapsed:
        update = {"$set": {"expired": True, "why": "its lease was past"}}
        if await database.update_one("Owner", {"_id": incarnation, **past}, update):
            dead.append(incarnation)
    return dead


async def extend_all(database: Database) -> int:
    """Give every living owner a full lease, because none could renew while the store was away."""
    longer = {"$max": ["$expires_at", from_now(LEASE_S)]}
    return await database.update_many("Owner", {"expired": False}, setting(expires_at=longer))


async def silence_s(database: Database, role: str) -> float | None:
    """How long ago an incarnation of this role last renewed its lease; None if there never was one."""
    documents = await database.aggregate(
        "Owner",
        [
            {"$match": {"role": role}},
            {"$sort": {"expires_at": -1}},
            {"$limit": 1},
            {"$set": {"silent": {"$add": [{"$divide": [{"$subtract": [NOW, "$expires_at"]}, 1000.0]}, LEASE_S]}}},
        ],
    )
    return float(documents[0]["silent"]) if documents else None


async def count_alive(database: Database, role: str) -> int:
    """The number of incarnations of this role that have not ended and were not declared dead."""
    return await database.count("Owner", {"role": role, "expired": False})


async def dead_among(database: Database, incarnations: Iterable[str]) -> set[str]:
    """Which of these incarnations are dead. An incarnation that never opened an Owner counts as dead."""
    names = set(incarnations) - {""}
    if not names:
        return set()
    alive = await database.find("Owner", {"_id": {"$in": sorted(names)}, "expired": False}, projection=["_id"])
    return names - {owner["_id"] for owner in alive}
