"""The metrics by which the processes of the data plane tell how busy they are, and how their tools fare. Pure.

Invariants: what is busy counts seconds of slots since the process began (`*_s`), exactly, whenever it is asked; whoever
wants a share takes the difference of two reports. Metrics of one tool or server carry its name after a slash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentrl.telemetry.metrics import Metric

BUSY = Metric("busy_s", "s", "Seconds of slots that were in use, since the process began.")
OFFERED = Metric("offered_s", "s", "Seconds of slots that there were, since the process began.")
IN_TOOLS = Metric("in_tools_s", "s", "Seconds that episodes stood in tool calls, since the process began.")
IN_MODEL = Metric("in_model_s", "s", "Seconds that episodes stood in model calls, since the process began.")

STEP = Metric("step", "", "Number of the trainer's last step.")
BASE_VERSION = Metric("base_version", "", "Version of the weights that the trainer's last step began with.")
REJECTED = Metric("rejected_version", "", "The newest version, if no engine takes it; else 0.", (0, 0))

HELD_OUT_TRAINED = Metric(
    "held_out_trained", "", "Held-out prompts of an environment that are trained on as well.", (0, 0)
)
WARMUP_UNUSED = Metric(
    "warmup_unused", "", "Whether the run file asks for a warm-up that came too late: the run had begun.", (0, 0)
)

CANARY_LARGEST = Metric(
    "canary_largest", "nat", "Largest |Δ log-prob| of the canary between engine and trainer, of the version served."
)
CANARY_OVER_LIMIT = Metric(
    "canary_over_limit", "", "canary_largest against what is usual: 0.02, or 0.4 where the engine has bf16.", (0.0, 1.0)
)

BREAKER_OPEN = Metric("breaker_open", "", "Whether a tool server is left alone.", (0, 0))
TOOL_P95 = Metric("tool_p95_s", "s", "95 of 100 recent calls of a tool took less.")
TOOL_RATE = Metric("tool_calls_per_s", "1/s", "Calls of a tool in the last minute.")
TOOL_FAILURES = Metric(
    "tool_failures", "", "Share of a tool's recent calls that failed for infrastructure.", (0.0, 0.2)
)


def named(metric: Metric, name: str) -> str:
    """`tool_p95_s/shop.lookup`"""
    return f"{metric.name}/{name}"


def named_in(values: Mapping[str, float], metric: Metric) -> Iterator[tuple[str, float]]:
    """Names and values of all metrics of this kind."""
    prefix = f"{metric.name}/"
    return ((name.removeprefix(prefix), value) for name, value in values.items() if name.startswith(prefix))


class Meter:
    """Adds up how many slots were in use, over time. The clock is the caller's."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._active = self._slots = 0.0
        self.busy_s = self.offered_s = 0.0

    def set(self, active: float, slots: float, now: float) -> None:
        """From now on; up to now it was what was set before."""
        passed = max(0.0, now - self._at)
        self.busy_s += passed * min(self._active, self._slots)
        self.offered_s += passed * self._slots
        self._at, self._active, self._slots = now, active, slots

    def read(self, now: float) -> dict[str, float]:
        self.set(self._active, self._slots, now)
        return {BUSY.name: self.busy_s, OFFERED.name: self.offered_s}
