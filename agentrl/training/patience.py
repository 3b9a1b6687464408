"""What the trainer does while MongoDB is away or a disk is full: it waits, says so, and tries again.

Invariant: nobody waits on with a lease that is past: others may have taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentrl.errors import DiskError
from agentrl.store.database import StoreUnavailableError
from agentrl.store.owners import Lease, OwnerLostError
from agentrl.unit import Unit

log = logging.getLogger("trainer")
STORE_AGAIN_S = 1.0
DISK_AGAIN_S = 5.0

T = TypeVar("T")


class Patience:
    """`at_most_s`: a longer wait is worth a question; it goes on nevertheless."""

    def __init__(self, unit: Unit, lease: Lease, *, at_most_s: float) -> None:
        self._unit = unit
        self._lease = lease
        self._at_most_s = at_most_s

    async def lasting(self, act: Callable[[], Awaitable[T]]) -> T:
        """Again until it is done. To be given what may be done again."""
        while True:
            try:
                return await act()
            except StoreUnavailableError as away:
                await self._store_is_away(away)
            except DiskError as full:
                await self._disk_is_full(full)
            self._unit.tick()

    async def _store_is_away(self, away: StoreUnavailableError) -> None:
        log.warning("%s", away.message)
        self._unit.status(f"waits for MongoDB: {away.message}")
        if not self._lease.valid:
            raise OwnerLostError("The lease is past and MongoDB does not answer: others may have taken over.")
        with self._unit.wait("MongoDB", on="mongo-0", at_most_s=self._at_most_s):
            await asyncio.sleep(STORE_AGAIN_S)

    async def _disk_is_full(self, full: DiskError) -> None:
        """No Step is taken before what is due could be written: its weights would be published by nobody."""
        log.error("%s", full.message)
        self._unit.status(f"waits for room: {full.message}")
        with self._unit.wait("room on the disk", on="disk", at_most_s=self._at_most_s):
            await asyncio.sleep(DISK_AGAIN_S)
