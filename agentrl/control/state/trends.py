"""Keeps bounded series of samples, and fits straight lines to them.

A trend is computed at every measurement of every unit, so each sample updates it in constant time.

Invariants:
- An updated line equals least squares over the same samples.
- The memory of a series is bounded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass

LEAST_SAMPLES = 9
"""With fewer samples there is no trend."""


class Series:
    """A bounded ring of (time, value) with a least distance between two samples."""

    __slots__ = ("_length", "_min_gap_s", "times", "values")

    def __init__(self, length: int, min_gap_s: float) -> None:
        self.times = array("d")
        self.values = array("d")
        self._length = length
        self._min_gap_s = min_gap_s

    def add(self, now: float, value: float) -> bool:
        """Returns False if the sample comes too soon after the last one."""
        if self.times and now - self.times[-1] < self._min_gap_s:
            return False
        self.times.append(now)
        self.values.append(value)
        # Cut an eighth at a time: moving the rest for every sample would cost more.
        if len(self.times) > self._length + self._length // 8:
            del self.times[: -self._length]
            del self.values[: -self._length]
        return True

    def since(self, begin: float) -> tuple[list[float], list[float]]:
        first = bisect_left(self.times, begin)
        return list(self.times[first:]), list(self.values[first:])


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a series."""

    slope_per_h: float
    window_s: float
    first: float
    last: float
    fit: float
    """How much of the variation the line explains, 0 to 1."""
    recent_slope_per_h: float
    """The slope of the last third alone; a warm-up has levelled off by then."""


class Line:
    """Least squares over a set of samples to which samples are added and removed."""

    __slots__ = ("_both", "_mean_t", "_mean_v", "_spread_t", "_spread_v", "count")

    def __init__(self) -> None:
        self.count = 0
        self._mean_t = self._mean_v = 0.0
        self._spread_t = self._spread_v = self._both = 0.0

    def add(self, time: float, value: float) -> None:
        self.count += 1
        from_t, from_v = time - self._mean_t, value - self._mean_v
        self._mean_t += from_t / self.count
        self._mean_v += from_v / self.count
        self._spread_t += from_t * (time - self._mean_t)
        self._spread_v += from_v * (value - self._mean_v)
        self._both += from_t * (value - self._mean_v)

    def remove(self, time: float, value: float) -> None:
        self.count -= 1
        from_t, from_v = time - self._mean_t, value - self._mean_v
        self._mean_t -= from_t / self.count
        self._mean_v -= from_v / self.count
        self._spread_t -= from_t * (time - self._mean_t)
        self._spread_v -= from_v * (value - self._mean_v)
        self._both -= from_t * (value - self._mean_v)

    def slope_and_fit(self) -> tuple[float, float]:
        if self._spread_t <= 0 or self._spread_v <= 0:
            return 0.0, 0.0
        return self._both / self._spread_t, min(1.0, self._both**2 / (self._spread_t * self._spread_v))


class TrendSeries(Series):
    """A series that knows the trend of its samples since `begin`."""

    __slots__ = ("_begin", "_first", "_late", "_recent", "_whole")

    def __init__(self, length: int, min_gap_s: float, begin: float) -> None:
        super().__init__(length, min_gap_s)
        self._begin = begin
        self._rebuild()

    def add(self, now: float, value: float) -> bool:
        before = len(self.times)
        if not super().add(now, value):
            return False
        if len(self.times) <= before:
            # The ring was cut, so the line is computed again; this also discards the rounding errors of earlier
            # removals.
            self._rebuild()
        elif now >= self._begin:
            self._include(len(self.times) - 1)
        else:
            self._first = self._late = len(self.times)
        return True

    def trend(self, least_window_s: float) -> Trend | None:
        """The trend; None while there is too little evidence."""
        if self._whole.count < LEAST_SAMPLES:
            return None
        window_s = self.times[-1] - self.times[self._first]
        if window_s < least_window_s:
            return None
        slope, fit = self._whole.slope_and_fit()
        recent, _ = self._recent.slope_and_fit()
        return Trend(slope * 3600, window_s, self.values[self._first], self.values[-1], fit, recent * 3600)

    def _rebuild(self) -> None:
        self._whole, self._recent = Line(), Line()
        self._first = self._late = bisect_left(self.times, self._begin)
        for place in range(self._first, len(self.times)):
            self._include(place)

    def _include(self, place: int) -> None:
        time, value = self.times[place], self.values[place]
        self._whole.add(time, value)
        self._recent.add(time, value)
        third = self.times[self._first] + (time - self.times[self._first]) * 2 / 3
        while self.times[self._late] < third:
            self._recent.remove(self.times[self._late], self.values[self._late])
            self._late += 1
