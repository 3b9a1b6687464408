"""Predicts when the disks of the hosts will be full.

Invariants:
- A forecast needs evidence: a long enough window, a line that fits the samples, and recent growth.
- A forecast never reaches further than a week.
"""

from __future__ import annotations

from agentrl.control.state.trends import Series, TrendSeries

FIT = 0.8
RECENT = 0.5
"""The slope of the last third must be at least this share of the whole slope."""
FARTHEST_S = 7 * 86_400.0
SAMPLES = 60
"""The number of samples in one window; two windows are kept."""


class DiskForecast:
    def __init__(self, window_s: float = 1800.0) -> None:
        self._window_s = window_s
        self._hosts: dict[str, Series] = {}
        self._full_in_s: dict[str, float | None] = {}
        """The forecast by host; only a new sample changes it."""

    def watch(self, window_s: float) -> None:
        """Sets the window of the forecast. A changed window discards all samples."""
        if window_s != self._window_s:
            self._window_s = window_s
            self._hosts.clear()
            self._full_in_s.clear()

    def add(self, host: str, free_bytes: int, now: float) -> None:
        if free_bytes > 0:
            series = self._hosts.setdefault(host, Series(2 * SAMPLES, self._window_s / SAMPLES))
            if series.add(now, float(free_bytes)):
                self._full_in_s[host] = self._forecast(series, now)

    def full_in_s(self, host: str) -> float | None:
        """The time until the disk is full; None if it does not fill up or the evidence is too small."""
        return self._full_in_s.get(host)

    def _forecast(self, series: Series, now: float) -> float | None:
        recent = TrendSeries(2 * SAMPLES, 0.0, now - 2 * self._window_s)
        for time, value in zip(series.times, series.values, strict=True):
            recent.add(time, value)
        found = recent.trend(self._window_s)
        if found is None or found.slope_per_h >= 0 or found.fit < FIT:
            return None
        if found.recent_slope_per_h > RECENT * found.slope_per_h:
            return None
        left_s = 3600 * found.last / -found.slope_per_h
        return left_s if left_s <= FARTHEST_S else None
