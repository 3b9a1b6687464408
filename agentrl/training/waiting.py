"""The trainer's wait for a batch: one wait from the first look that found none to the one that does.

Invariant: a wait is late by the run's own pace, and by how long a group may take; a slow run is not an unwell one.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection
from statistics import median

from agentrl.unit import Unit

LATE_AFTER_S = 600.0
LATE = 10
"""So many times the usual wait is late, where that is more."""
REMEMBERED = 20


def late_after_s(took: Collection[float], group_s: float) -> float:
    """`took`: the waits before this one; `group_s`: how long a group may take."""
    usual_s = median(took) if took else 0.0
    return max(LATE_AFTER_S, group_s, LATE * usual_s)


class BatchWait:
    def __init__(self, unit: Unit, group_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._group_s = group_s
        self._clock = clock
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._since: float | None = None
        self._open = contextlib.ExitStack()

    def begin(self) -> bool:
        """False if it lasts already."""
        if self._since is not None:
            return False
        self._since = self._clock()
        at_most_s = late_after_s(self._took, self._group_s)
        self._open.enter_context(self._unit.wait("batch", on="batch", at_most_s=at_most_s))
        return True

    def end(self) -> None:
        if self._since is not None:
            self._took.append(self._clock() - self._since)
        self._since = None
        self._open.close()
