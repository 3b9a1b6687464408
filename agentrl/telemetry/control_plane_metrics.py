"""The metrics that the control plane measures.

Invariant: each name is declared once, and code that measures it imports it from here. Units may report metrics of
other names, which only alert rules use.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that is measured repeatedly."""

    name: str
    unit: str
    """%, B, B/h, s, ms, 1/s; empty for counts."""
    help: str
    normal: tuple[float, float] | None = None
    """The band of a healthy run; None if it depends on the run."""

    def in_words(self, value: float) -> str:
        """The value with its unit: `1.4 GiB`, `93 %`, `12 ms`."""
        if self.unit in ("B", "B/h"):
            return _in_bytes(value) + self.unit.removeprefix("B")
        number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return f"{number} {self.unit}".strip()

    def band_in_words(self) -> str:
        """`0.5 to 2`, `at most 10`; empty if there is no band."""
        if self.normal is None:
            return ""
        low, high = self.normal
        if low == high:
            return f"{low:g}"
        if high == float("inf"):
            return f"at least {low:g}"
        return f"at most {high:g}" if low in (0, float("-inf")) else f"{low:g} to {high:g}"

    def is_normal(self, value: float) -> bool:
        return self.normal is None or self.normal[0] <= value <= self.normal[1]


CPU = Metric("cpu_percent", "%", "Processor time of the unit's process tree; 100 is one core.")
RSS = Metric("rss_bytes", "B", "Memory of the unit's process tree.")
RSS_SLOPE = Metric("rss_slope_bytes_per_h", "B/h", "How fast the memory grows, over the last hours.")
PROCESSES = Metric("processes", "", "Processes in the unit's tree.")
RESTARTS = Metric("restarts", "", "Unplanned deaths since it was brought up, restarted by a person, or changed.")
RECENT_DEATHS = Metric("deaths_in_window", "", "Unplanned deaths in the restart window.", (0, 1))
PROGRESS = Metric("progress", "", "The unit's own counter of work done.")

LOOP_LAG = Metric(
    "loop_lag_ms", "ms", "How late the coordinator's loop turned, at worst, in the last second.", (0, 250)
)
FEED_ROWS = Metric("feed_rows_per_s", "1/s", "Rows published on the feed.", (0, 1000))
JOURNAL_COMMIT = Metric(
    "journal_commit_ms", "ms", "The slowest durable write of the journal in the last second.", (0, 200)
)
PEERS = Metric("peers", "", "Units, host agents and clients that are connected.")

UNIT_METRICS = (CPU, RSS, RSS_SLOPE, PROCESSES, RESTARTS, RECENT_DEATHS, PROGRESS)
"""Measured for every unit, even if it reports nothing."""
COORDINATOR_METRICS = (LOOP_LAG, FEED_ROWS, JOURNAL_COMMIT, PEERS)
"""Measured for the coordinator, and published as metrics of the unit `coordinator`."""

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*UNIT_METRICS, *COORDINATOR_METRICS)}


def _in_bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
