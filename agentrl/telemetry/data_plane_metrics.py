"""The metrics of the data plane: how busy its processes are, and how its tools work. Pure.

Invariants: busy time is counted in seconds of slots since the process began (`*_s`), so a share is the difference of
two reports; metrics of one tool or server have its name after a slash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentrl.telemetry.control_plane_metrics import Metric

BUSY = Metric("busy_s", "s", "Seconds of slots that were in use, since the process began.")
OFFERED = Metric("offered_s", "s", "Seconds of all slots, since the process began.")
IN_TOOLS = Metric("in_tools_s", "s", "Seconds that episodes spent in tool calls, since the process began.")
IN_MODEL = Metric("in_model_s", "s", "Seconds that episodes spent in model calls, since the process began.")

RUNNING = Metric("running", "", "Episodes of a sampler, requests of an engine, or calls of a toolbox at this moment.")
TOKENS_PER_S = Metric("tokens_per_s", "1/s", "Tokens that an engine generates.")
UNDER_WAY = Metric("in_flight", "", "Admitted records that are not done.")
READY = Metric("ready", "", "Records that are done and not trained.")

STEP = Metric("step", "", "Number of the trainer's last step.")
BASE_VERSION = Metric("base_version", "", "Version of the weights that the trainer's last step began with.")
REJECTED = Metric("rejected_version", "", "The newest version, if no engine accepts it; otherwise 0.", (0, 0))

HELD_OUT_TRAINED = Metric(
    "held_out_trained", "", "Held-out prompts of an environment that are also trained on.", (0, 0)
)
WARMUP_UNUSED = Metric(
    "warmup_unused", "", "Whether the run file has a warm-up that was not done, because the run had begun.", (0, 0)
)

CHECKPOINTS_DAMAGED = Metric(
    "checkpoints_damaged",
    "",
    "Damaged checkpoints that the trainer passed over at its start.",
    (0, 0),
)

CURVES_WAITING = Metric("curves_waiting", "", "Points of curves that wait for a program such as MLflow.")
CURVES_DROPPED = Metric("curves_dropped", "", "Points of curves that no queue had room for, since the process began.")
CURVES_FAILING = Metric("curves_failing", "", "Whether a program takes no points of curves now.", (0, 0))

CANARY_LARGEST = Metric(
    "canary_largest", "nat", "Largest |Δ log-prob| of the canary between engine and trainer, of the version served."
)
CANARY_AT = Metric("canary_at", "", "When the engine passed its last canary, in seconds since 1970.")
CANARY_OVER_LIMIT = Metric(
    "canary_over_limit", "", "canary_largest against 20 times the limit of the canary's mean.", (0.0, 1.0)
)

BREAKER_OPEN = Metric("breaker_open", "", "Whether the circuit breaker of a tool server is open.", (0, 0))
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
    """Adds up the slots in use over time. The caller has the clock."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._active = self._slots = 0.0
        self.busy_s = self.offered_s = 0.0

    def set(self, active: float, slots: float, now: float) -> None:
        """Sets the slots in use and all slots from now on."""
        passed = max(0.0, now - self._at)
        self.busy_s += passed * min(self._active, self._slots)
        self.offered_s += passed * self._slots
        self._at, self._active, self._slots = now, active, slots

    def read(self, now: float) -> dict[str, float]:
        self.set(self._active, self._slots, now)
        return {BUSY.name: self.busy_s, OFFERED.name: self.offered_s}
