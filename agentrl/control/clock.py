"""Provides coordinator time: one clock for leases, deadlines and the times that people see.

Invariants:
- Coordinator time never goes back and never jumps during a lifetime, even if the wall clock is set.
- Coordinator time starts at the time of the wall clock. `recovery` corrects the times of the last coordinator if the
  wall clock was set since.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Seconds since 1970 at the coordinator's start, continued by the monotonic clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self.offset = wall() - monotonic()
        """Coordinator time minus the monotonic clock, which counts from the boot of the host."""

    def now(self) -> float:
        return self._monotonic() + self.offset
