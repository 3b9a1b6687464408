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

BLOCKED = Metric(
    "blocked_s", "s", "Seconds in which code of an environment held up all episodes of a sampler, since it began."
)
LEFT_BEHIND = Metric(
    "left_behind", "", "Tasks that agent loops had not ended with their episodes, since the process began."
)

RUNNING = Metric("running", "", "Episodes of a sampler, requests of an engine, or calls of a toolbox at this moment.")
TOKENS_PER_S = Metric("tokens_per_s", "1/s", "Tokens that an engine generates.")
UNDER_WAY = Metric("in_flight", "", "Admitted records that are not done.")
READY = Metric("ready", "", "Records that are done and not trained.")

STAGE = Metric("curriculum_stage", "", "The stage of the curriculum, from 1.")
OTHER_MODEL_CALLS = Metric("other_model_calls", "", "Questions to other models, since the process began.")
OTHER_MODEL_FAILURES = Metric("other_model_failures", "", "Tries that a service failed, since the process began.")
OTHER_MODEL_UNANSWERED = Metric(
    "other_model_unanswered", "", "Questions that no service answered in time, since the process began."
)
OTHER_MODEL_KEPT = Metric("other_model_kept", "", "Questions that an earlier answer answered, since the process began.")
OTHER_MODEL_WAITING = Metric("other_model_waiting", "", "Questions to other models that have no answer yet.")
OTHER_MODEL_COST = Metric("other_model_cost", "", "What other models cost, since the process began.")

STEP = Metric("step", "", "Number of the trainer's last step.")
BASE_VERSION = Metric("base_version", "", "Version of the weights that the trainer's last step began with.")
REJECTED = Metric("rejected_version", "", "The newest version, if no engine accepts it; otherwise 0.", (0, 0))

HELD_OUT_TRAINED = Metric(
    "held_out_trained", "", "Held-out prompts of an environment that are also trained on.", (0, 0)
)
WARMUP_UNUSED = Metric(
    "warmup_unused", "", "Whether the run file has a warm-up that was not done, because the run had begun.", (0, 0)
)

WATCHED_RECORDS = Metric("watched_records", "", "Records of an environment that the watch over its reward has read.")
REWARD_BY_LENGTH = Metric(
    "reward_by_length", "", "Rank correlation of length and score inside groups, of the newest records."
)
ANSWER_GROWTH = Metric("answer_growth", "", "Tokens of the newer half of those records against the older half.")
REWARD_BY_LENGTH_OVER = Metric(
    "reward_by_length_over_limit", "", "reward_by_length against its limit, if answers grow.", (0.0, 1.0)
)
REPEATS_WITHIN = Metric("repeats_within", "", "Share of answers with nearly the same answer in their own group.")
REPEATS_WITHIN_SCORE = Metric("repeats_within_score", "", "Mean score of such answers.")
REPEATS_WITHIN_OVER = Metric(
    "repeats_within_over_limit", "", "repeats_within against its limit, if such answers score at most 0.5.", (0.0, 1.0)
)
REPEATS_ACROSS = Metric("repeats_across", "", "Share of answers with nearly the same answer to another task.")
REPEATS_GAIN = Metric("repeats_gain", "", "How much more such answers to several tasks score than the others.")
REPEATS_OVER = Metric(
    "repeats_over_limit", "", "repeats_across against its limit, if such answers score more.", (0.0, 1.0)
)
VOTES_SPLIT = Metric("votes_split", "", "Share of records on which a judge contradicts itself.")
VOTES_SPLIT_OVER = Metric("votes_split_over_limit", "", "votes_split against its limit.", (0.0, 1.0))
WATCHER_BEFORE = Metric("watcher_before", "", "Mean of a watcher over the older half of the newest records.")
WATCHER_NOW = Metric("watcher_now", "", "The same over the newer half.")
WATCHED_SCORE_BEFORE = Metric("watched_score_before", "", "Mean score of the older half of the same records.")
WATCHED_SCORE_NOW = Metric("watched_score_now", "", "The same of the newer half.")
WATCHER_OVER = Metric(
    "watcher_over_limit", "", "How surely the score rises while a watcher falls, against its limit.", (0.0, 1.0)
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
    """The names after the slash, and the values, of all metrics of this kind."""
    prefix = f"{metric.name}/"
    return ((name.removeprefix(prefix), value) for name, value in values.items() if name.startswith(prefix))


class Meter:
    """Adds up the slots in use over time. The caller gives the time."""

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
