"""Holds the newest metrics of every unit, and the history that alert rules read.

Invariants:
- The memory per unit is bounded for any report.
- A value that is not finite removes the previous value.
- A trend needs a long enough window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentrl.control.state.trends import Series, Trend, TrendSeries

MOST_METRICS = 4_000
"""The most metrics per unit; further ones are dropped. A steward has a dozen for each environment."""
HISTORY_LENGTH = 600
SAMPLES = 60
"""Number of memory samples in one window."""
POINTS = 24
"""Number of points of memory over time in a row."""


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """How memory is watched: six windows are kept, with sixty samples each."""

    window_s: float = 3600.0
    """The shortest time over which a trend is computed."""

    def series(self, began: float) -> TrendSeries:
        """Skips the first minutes of an incarnation, in which all memory grows."""
        return TrendSeries(6 * SAMPLES, self.window_s / SAMPLES, began + self.window_s / 6)


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """The memory of one incarnation, as its row shows it."""

    slope_per_h: float = 0.0
    """0 while there is too little evidence."""
    points: tuple[int, ...] = ()
    over_s: float = 0.0


class _Unit:
    __slots__ = ("began", "history", "incarnation", "memory", "updated", "values")

    def __init__(self, incarnation: int, now: float, watch: MemoryWatch) -> None:
        self.incarnation = incarnation
        self.began = now
        self.updated = now
        self.values: dict[str, float] = {}
        self.history: dict[str, Series] = {}
        self.memory = watch.series(now)


class MetricStore:
    """Metrics by unit. A new incarnation starts without any."""

    def __init__(self, named: Iterable[str] = (), watch: MemoryWatch | None = None) -> None:
        self.watch = watch or MemoryWatch()
        self._named = frozenset(named)
        self._units: dict[str, _Unit] = {}

    def name(self, named: Iterable[str]) -> None:
        """Set the metrics that rules read: rows show them, and their history is kept."""
        self._named = frozenset(named)
        for unit in self._units.values():
            for metric in unit.history.keys() - self._named:
                del unit.history[metric]

    def update(self, unit: str, incarnation: int, values: Mapping[str, float], now: float) -> None:
        """Take in what a unit reported."""
        known = self._unit(unit, incarnation, now)
        if known is None:
            return
        known.updated = now
        for metric, value in values.items():
            if not math.isfinite(value):
                known.values.pop(metric, None)
                continue
            if metric not in known.values and len(known.values) >= MOST_METRICS:
                continue
            known.values[metric] = value
            if metric in self._named:
                known.history.setdefault(metric, Series(HISTORY_LENGTH, 1.0)).add(now, value)

    def watch_memory(self, watch: MemoryWatch) -> None:
        """Set how memory is watched; a change discards all samples."""
        if watch != self.watch:
            self.watch = watch
            for unit in self._units.values():
                unit.memory = watch.series(unit.began)

    def memory(self, unit: str, incarnation: int, rss_bytes: int, now: float) -> None:
        """Take in what the host agent measured."""
        known = self._unit(unit, incarnation, now)
        if known is not None and rss_bytes > 0:
            known.memory.add(now, float(rss_bytes))

    def forget(self, unit: str) -> None:
        self._units.pop(unit, None)

    def values(self, unit: str, now: float | None = None, stale_s: float = math.inf) -> dict[str, float]:
        """The newest values; empty if the unit has reported nothing for `stale_s`."""
        known = self._units.get(unit)
        if known is None or (now is not None and now - known.updated > stale_s):
            return {}
        return dict(known.values)

    def shown(self, unit: str) -> dict[str, float]:
        """The values in the row of the unit: those that rules read."""
        known = self._units.get(unit)
        return {} if known is None else {name: known.values[name] for name in known.values.keys() & self._named}

    def history(self, unit: str, metric: str, begin: float = -math.inf) -> tuple[list[float], list[float]]:
        """Times and values of a metric that rules read, oldest first."""
        known = self._units.get(unit)
        series = None if known is None else known.history.get(metric)
        return ([], []) if series is None else series.since(begin)

    def memory_trend(self, unit: str) -> Trend | None:
        """The trend of memory since the warm-up; None while there are too few samples."""
        known = self._units.get(unit)
        return None if known is None else known.memory.trend(self.watch.window_s)

    def memory_history(self, unit: str) -> MemoryHistory:
        """The memory history for the row of a unit."""
        known, found = self._units.get(unit), self.memory_trend(unit)
        if known is None or not known.memory.times:
            return MemoryHistory()
        times, values = known.memory.times, known.memory.values
        last = len(times) - 1
        chosen = sorted({round(place * last / (POINTS - 1)) for place in range(POINTS)})
        return MemoryHistory(
            slope_per_h=0.0 if found is None else round(found.slope_per_h),
            points=tuple(round(values[place]) for place in chosen),
            over_s=round(times[last] - times[0], 1),
        )

    def _unit(self, unit: str, incarnation: int, now: float) -> _Unit | None:
        known = self._units.get(unit)
        if known is None or incarnation > known.incarnation:
            known = self._units[unit] = _Unit(incarnation, now, self.watch)
        return known if incarnation == known.incarnation else None  # a late message of an earlier incarnation
