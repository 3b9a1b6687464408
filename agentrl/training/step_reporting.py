"""What is told of a Step: in its document, in curves, and on the unit's line.

Invariant: names are the same everywhere; a number that means nothing for a Step is left out, never 0.
"""

from __future__ import annotations

import math

from agentrl.store.documents import Step
from agentrl.telemetry import learning
from agentrl.telemetry.services import BASE_VERSION, STEP
from agentrl.training.batch_assembly import Made
from agentrl.training.batch_selection import Look
from agentrl.training.learner import StepResult
from agentrl.unit import Unit

SHOWN = {"reward_mean": "reward", "age_mean": "staleness", "trained_tokens_per_s": "tokens_per_s"}
"""Metrics of a Step that the unit's line has, and their names there."""


def of_step(
    made: Made, result: StepResult, leased: Step, look: Look, *, seconds: float, moved: bool
) -> dict[str, float]:
    """`moved`: the step began with other weights than those of its version; age 0 is no proof of a fault then."""
    groups = [look.ready[name].task for name in (*leased.tasks, *leased.filtered)]
    means = [group.baseline.mean for group in groups if group.baseline is not None]
    trained = made.batch.trained_tokens
    metrics = {
        name: value
        for name, value in result.metrics.items()
        if math.isfinite(value) and not (moved and name.startswith("mismatch_"))
    } | {
        "groups": float(len(leased.tasks)),
        "groups_without_signal": float(len(leased.filtered)),
        "records": float(len(made.batch.trajectories)),
        "stale_records": float(len(made.stale) + len(look.decision.stale_records)),
        "broken_records": float(len(made.broken)),
        "trained_tokens": float(trained),
        "trained_tokens_per_s": trained / seconds if seconds else 0.0,
        "seconds": seconds,
    }
    if groups:
        metrics["zero_variance_share"] = len(leased.filtered) / len(groups)
    if means:
        metrics["reward_mean"] = sum(means) / len(means)
    if made.batch.trajectories:
        metrics["tokens_per_record"] = trained / len(made.batch.trajectories)
    return metrics


def to_unit(unit: Unit, metrics: dict[str, float], step: Step) -> None:
    """All at once: numbers of two Steps must not be taken for those of one."""
    unit.metrics(
        {STEP.name: step.step, BASE_VERSION.name: step.base_version}
        | {shown: metrics[name] for name, shown in SHOWN.items() if name in metrics}
        # One that a Step does not have says nothing any more: no alarm may go on because of it.
        | {metric.name: metrics.get(metric.name, math.nan) for metric in learning.OF_STEPS}
    )
