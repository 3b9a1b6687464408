"""When the disks of the hosts will be full, by the pace of the last while.

Invariants: nothing is foretold without evidence: a window long enough, a line that explains it, and a pace that has not
ended; of what is more than a week away nothing is said.
"""

from __future__ import annotations

from agentrl.control.state.unit_metrics import LEAST_SAMPLES, Series, trend

FIT = 0.8
RECENT = 0.5
"""The last third has to go on at this share of the whole pace."""
FARTHEST_S = 7 * 86_400.0
SAMPLES = 60
"""In one window; two of them are kept."""


class DiskForecast:
    def __init__(self, window_s: float = 1800.0) -> None:
        self._window_s = window_s
        self._hosts: dict[str, Series] = {}

    def watch(self, window_s: float) -> None:
        """Another pace begins from nothing."""
        if window_s != self._window_s:
            self._window_s = window_s
            self._hosts.clear()

    def add(self, host: str, free_bytes: int, now: float) -> None:
        if free_bytes > 0:
            series = self._hosts.setdefault(host, Series(2 * SAMPLES, self._window_s / SAMPLES))
            series.add(now, float(free_bytes))

    def full_in_s(self, host: str, now: float) -> float | None:
        """None: it does not fill up, or too little is known."""
        series = self._hosts.get(host)
        if series is None:
            return None
        times, values = series.since(now - 2 * self._window_s)
        if len(times) < LEAST_SAMPLES or times[-1] - times[0] < self._window_s:
            return None
        found = trend(times, values)
        falls = found.slope_per_h < 0 and found.fit >= FIT
        if not falls or found.recent_slope_per_h > RECENT * found.slope_per_h:
            return None
        left_s = 3600 * found.last / -found.slope_per_h
        return left_s if left_s <= FARTHEST_S else None
