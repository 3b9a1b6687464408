"""The metrics of a step: in its document and in the unit's status.

Invariants:
- a number has the same name everywhere;
- a number that has no meaning for a step is left out, never 0;
- if the store does not answer, numbers are left out, and no step is lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from agentrl.config.run import RunConfig
from agentrl.engines.canary import K3_OVER_SQUARE, P99_OVER_MEAN, limit_of
from agentrl.policies import step_alarms
from agentrl.store import attempt_statistics
from agentrl.store.database import Database, StoreError
from agentrl.store.documents import Step
from agentrl.telemetry import learning_metrics
from agentrl.telemetry.data_plane_metrics import BASE_VERSION, STEP
from agentrl.telemetry.learning_metrics import MISMATCH_K3_OVER_LIMIT, MISMATCH_OVER_LIMIT, MISMATCH_P99_OVER_LIMIT
from agentrl.training import weight_files
from agentrl.training.batch_assembly import Assembled
from agentrl.training.batch_selection import Selection
from agentrl.training.learner_settings import StepResult
from agentrl.training.policy_model import name_of
from agentrl.unit import Unit

log = logging.getLogger("trainer")

ON_THE_LINE = {"reward_mean": "reward", "age_mean": "staleness", "trained_tokens_per_s": "tokens_per_s"}
"""Metrics of a step that the unit's status shows, with their names there."""


def step_metrics(
    assembled: Assembled, result: StepResult, leased: Step, look: Selection, *, seconds: float, moved: bool
) -> dict[str, float]:
    """`moved`: the weights differed from the base version, so a mismatch at age 0 does not prove a fault."""
    groups = [look.ready[name].task for name in (*leased.tasks, *leased.filtered)]
    means = [group.baseline.mean for group in groups if group.baseline is not None]
    trained = assembled.batch.trained_tokens
    metrics = {
        name: value
        for name, value in result.metrics.items()
        if math.isfinite(value) and not (moved and name.startswith("mismatch_"))
    } | {
        "groups": float(len(leased.tasks)),
        "groups_without_signal": float(len(leased.filtered)),
        "records": float(len(assembled.batch.trajectories)),
        "stale_records": float(len(assembled.stale) + len(look.decision.stale_records)),
        "broken_records": float(len(assembled.broken)),
        "trained_tokens": float(trained),
        "trained_tokens_per_s": trained / seconds if seconds else 0.0,
        "seconds": seconds,
    }
    if groups:
        metrics["zero_variance_share"] = len(leased.filtered) / len(groups)
    if means:
        metrics["reward_mean"] = sum(means) / len(means)
    if assembled.batch.trajectories:
        metrics["tokens_per_record"] = trained / len(assembled.batch.trajectories)
    return metrics


def mismatch_limit(config: RunConfig) -> float:
    """The largest mean difference of log-probs between engine and trainer, whose weights are rounded for engines.
    Embedded engines compute in float32."""
    engine = "float32" if config.engines.kind == "embedded" else "auto"
    published = name_of(weight_files.published_type(config))
    return max(map(limit_of, (engine, config.training.precision, published)))


async def with_surroundings(
    database: Database, config: RunConfig, metrics: Mapping[str, float], records: Sequence[str]
) -> dict[str, float]:
    """The metrics of a step that will be committed, with the values that alarms compare them with: the limits of the
    mismatch, the attempts of the step and the steps before it."""
    known = dict(metrics)
    limit = mismatch_limit(config)
    for name, most, over_limit in (
        ("mismatch_mean", limit, MISMATCH_OVER_LIMIT),
        ("mismatch_p99", P99_OVER_MEAN * limit, MISMATCH_P99_OVER_LIMIT),
        ("mismatch_k3", K3_OVER_SQUARE * limit**2, MISMATCH_K3_OVER_LIMIT),
    ):
        if name in known:
            known[over_limit.name] = known[name] / most
    try:
        known |= await attempt_statistics.of_trained(database, records)
        known |= await attempt_statistics.since(database, await attempt_statistics.last_commit(database))
        before = await attempt_statistics.metrics_of_steps(database, step_alarms.LOOK_BACK)
    except StoreError as away:
        log.warning("the metrics of a step lack what the store knows: %s", away.message)
        return known
    return known | step_alarms.against(before, known)


def to_unit(unit: Unit, metrics: Mapping[str, float], step: Step) -> None:
    """Sets all numbers at once, so that numbers of two steps are never mixed."""
    unit.metrics(
        {STEP.name: step.step, BASE_VERSION.name: step.base_version}
        | {shown: metrics[name] for name, shown in ON_THE_LINE.items() if name in metrics}
        # A number that this step lacks is cleared: no alarm may continue because of an earlier step.
        | {metric.name: metrics.get(metric.name, math.nan) for metric in learning_metrics.OF_STEPS}
    )
