"""Coordinator time: one clock for leases, deadlines and what people are shown.

Invariant: it never goes back and never jumps while a coordinator lives, whatever is done to the wall clock; it starts
at the wall clock's reading, so that what is written down still means something to the next coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Seconds since 1970 at the coordinator's start, continued by the monotonic clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset
