"""Decides how many processes of a tool server are ready before sessions need them.

Sessions that arrive while a process starts should find one that is ready: their rate times the start time, with a
margin for chance. The rate decays, so an idle pool shrinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_S = 120.0
"""Older sessions hardly count."""
LEAST = 4
"""How many are ready without any demand, because the sessions of a group arrive together."""
_MARGIN = 2.0
"""Standard deviations of the number that arrives."""
_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Demand:
    """The rate of sessions, which decays."""

    per_s: float
    at: float

    @staticmethod
    def at_start(size: int, now: float) -> Demand:
        """A run begins with all its sessions at once, so the whole pool is started, about one second for each
        process."""
        return Demand(float(size), now)

    def rate(self, now: float) -> float:
        return self.per_s * math.exp(-max(0.0, now - self.at) / WINDOW_S)

    def arrived(self, now: float) -> Demand:
        return Demand(self.rate(now) + 1.0 / WINDOW_S, max(now, self.at))


def wanted_ready(rate: float, start_s: float, *, waiting: int, size: int, process_bytes: int, free_bytes: int) -> int:
    """How many processes should be ready or starting. Those for waiting sessions are started whatever the memory is."""
    arriving = rate * start_s
    ready = max(LEAST, math.ceil(arriving + _MARGIN * math.sqrt(arriving)))
    if process_bytes > 0:
        ready = min(ready, int(_MEMORY_SHARE * free_bytes / process_bytes))
    return min(size, max(1, ready, waiting))
