"""Follows whether trainers take steps, and finds those that stand still for longer than their pace explains.

Invariants:
- Time in which a trainer cannot take steps by order (paused, not ready, only evaluations left) never counts.
- The pace is that of the trainer itself, also over its incarnations.
- Times are monotonic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

LEAST_S = 60.0
PACES = 10
"""A step is late after this many times the usual time between two steps, if that is longer than `LEAST_S`."""
UNKNOWN_S = 900.0
"""The limit until the pace is known."""
REMEMBERED = 20
NEEDED = 3


@dataclass(frozen=True, slots=True)
class StandingStill:
    """A trainer without a step for too long."""

    unit: str
    for_s: float
    usual_s: float
    """The usual time between two steps; 0 if it is not known."""
    step: float | None
    """The last one."""


@dataclass(slots=True)
class _Trainer:
    since: float
    """The last step, or when it could take steps again."""
    step: float | None = None
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    works: bool = False
    whole: bool = False
    """The present gap began with a step."""

    @property
    def usual_s(self) -> float:
        return median(self.gaps_s) if len(self.gaps_s) >= NEEDED else 0.0


class ProgressTracker:
    def __init__(self) -> None:
        self._trainers: dict[str, _Trainer] = {}

    def observe(self, unit: str, step: float | None, now: float, *, works: bool) -> None:
        """`works`: nothing but data and time is missing for the next step."""
        known = self._trainers.setdefault(unit, _Trainer(now))
        if not works or not known.works:
            known.since, known.works, known.whole = now, works, False
        if step is not None and step != known.step:
            if known.step is not None and known.whole:
                # A coordinator that was busy sees several steps at once.
                known.gaps_s.append((now - known.since) / max(1.0, step - known.step))
            known.since, known.step, known.whole = now, step, True

    def standing_still(self, now: float) -> Iterator[StandingStill]:
        for unit, known in self._trainers.items():
            limit_s = max(LEAST_S, PACES * known.usual_s) if known.usual_s else UNKNOWN_S
            if known.works and now - known.since > limit_s:
                yield StandingStill(unit, now - known.since, known.usual_s, known.step)

    def keep(self, units: set[str]) -> None:
        """Forgets all other trainers."""
        self._trainers = {name: known for name, known in self._trainers.items() if name in units}
