"""The waits of the trainer: for a batch, MongoDB, or room on the disk.

Invariants:
- a wait for a batch lasts from the first look that found none to the look that finds one;
- the run's own pace and the longest time of a group decide when a wait for a batch is late, so a slow run is not
  reported;
- the trainer does not wait for MongoDB with an expired lease: another trainer may have taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from statistics import median
from typing import NamedTuple, TypeVar

from agentrl.errors import DiskError
from agentrl.store.database import StoreUnavailableError
from agentrl.store.owners import Lease, OwnerLostError
from agentrl.training.trainer_knobs import Plan
from agentrl.unit import Unit

log = logging.getLogger("trainer")
LATE_AFTER_S = 600.0
LATE_FACTOR = 10
"""A wait this many times longer than usual is late, but none that is shorter than LATE_AFTER_S or the time of a
group."""
WAITS_REMEMBERED = 20
STORE_AGAIN_S = 1.0
DISK_AGAIN_S = 5.0

T = TypeVar("T")


def late_after_s(waits_s: Collection[float], group_s: float) -> float:
    """`waits_s`: the waits before this one; `group_s`: how long a group may take."""
    usual_s = median(waits_s) if waits_s else 0.0
    return max(LATE_AFTER_S, group_s, LATE_FACTOR * usual_s)


class NoBatch(NamedTuple):
    """A look that found no batch."""

    plan: Plan
    hold: str
    ready: int
    looked_at: float
    why: str


class BatchWait:
    """Reports to the unit that the trainer waits for a batch."""

    def __init__(self, unit: Unit, group_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._group_s = group_s
        self._clock = clock
        self._waits_s: deque[float] = deque(maxlen=WAITS_REMEMBERED)
        self._since: float | None = None
        self._open = contextlib.ExitStack()

    def begin(self) -> bool:
        """Begins a wait; returns False if it has already begun."""
        if self._since is not None:
            return False
        self._since = self._clock()
        at_most_s = late_after_s(self._waits_s, self._group_s)
        self._open.enter_context(self._unit.wait("batch", on="batch", at_most_s=at_most_s))
        return True

    def end(self) -> None:
        if self._since is not None:
            self._waits_s.append(self._clock() - self._since)
        self._since = None
        self._open.close()


class Retrying:
    """Repeats acts that fail because MongoDB is away or a disk is full. After `at_most_s` the wait counts as late, but
    continues."""

    def __init__(self, unit: Unit, lease: Lease, *, at_most_s: float) -> None:
        self._unit = unit
        self._lease = lease
        self._at_most_s = at_most_s

    async def until_done(self, act: Callable[[], Awaitable[T]]) -> T:
        """`act` must be harmless to repeat."""
        while True:
            try:
                return await act()
            except StoreUnavailableError as away:
                await self._wait_for_store(away)
            except DiskError as full:
                await self._wait_for_space(full)
            self._unit.tick()

    async def _wait_for_store(self, away: StoreUnavailableError) -> None:
        log.warning("%s", away.message)
        self._unit.status(f"waits for MongoDB: {away.message}")
        if not self._lease.valid:
            raise OwnerLostError("The lease has expired and MongoDB does not answer: another trainer may run.")
        with self._unit.wait("MongoDB", on="mongo-0", at_most_s=self._at_most_s):
            await asyncio.sleep(STORE_AGAIN_S)

    async def _wait_for_space(self, full: DiskError) -> None:
        """Waits for room on the disk. No step begins before the due output is written, because its weights could not be
        published."""
        log.error("%s", full.message)
        self._unit.status(f"waits for room: {full.message}")
        with self._unit.wait("room on the disk", on="disk", at_most_s=self._at_most_s):
            await asyncio.sleep(DISK_AGAIN_S)
