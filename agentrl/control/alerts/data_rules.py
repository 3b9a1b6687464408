"""Alert rules about versions, checkpoints, datasets and curves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from agentrl.control.alerts.rule_types import Condition, Finding, Measured, OutOfBand, RunSnapshot, Threshold, trainers
from agentrl.control.alerts.subjects import Reported, reported, units_at_work
from agentrl.telemetry.data_plane_metrics import (
    CANARY_LARGEST,
    CANARY_OVER_LIMIT,
    CHECKPOINTS_DAMAGED,
    CURVES_DROPPED,
    CURVES_FAILING,
    CURVES_WAITING,
    HELD_OUT_TRAINED,
    REJECTED,
    WARMUP_UNUSED,
    named,
)

ENGINE_LAG = 3


def engine_lags(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    newest = max((unit.weights or 0 for unit in trainers(snapshot).values()), default=0)
    for name, unit in units_at_work("engine")(snapshot).items():
        if unit.weights is not None and newest - unit.weights >= ENGINE_LAG:
            yield Finding(
                name,
                f"{name} serves version {unit.weights}, but version {newest} is published.",
                (f"its status: {unit.status or '(none)'}", f"alert from {ENGINE_LAG} versions on"),
                f"agentrl restart {name}",
            )


def version_rejected(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for steward in units_at_work("steward")(snapshot):
        version = snapshot.metrics.values(steward).get(REJECTED.name, 0.0)
        if version > 0:
            engines = units_at_work("engine")(snapshot).items()
            yield Finding(
                f"v{version:.0f}",
                f"No engine accepts version {version:.0f}, so engines still serve the version before it.",
                tuple(f"{name}: {unit.status}" for name, unit in engines if unit.status) or ("no engine is ready",),
                "agentrl logs engine-0",
            )


def _lost_points(found: Measured[Reported]) -> Iterator[str]:
    numbers = found.snapshot.metrics.values(found.row.unit)
    waiting, dropped = (numbers.get(named(metric, found.row.part), 0.0) for metric in (CURVES_WAITING, CURVES_DROPPED))
    yield f"Points that wait: {waiting:.0f}; dropped since the process began: {dropped:.0f}."
    yield "It is tried again at least once a minute. The metrics of all steps are in the store."


def _held_out_environments(snapshot: RunSnapshot) -> Mapping[str, Reported]:
    """By environment. The part names the environment and an example."""
    rows = reported("steward", HELD_OUT_TRAINED)(snapshot).values()
    return {row.part.partition("/")[0]: row for row in rows if row.value > 0}


DATA_RULES = (
    Condition("engine-lags", engine_lags, hold_s=60.0),
    Condition("version-rejected", version_rejected),
    OutOfBand(
        "canary-differs",
        (CANARY_OVER_LIMIT,),
        "{unit} serves version {weights}, but its canary differs from the trainer's by {canary_largest} at one token. "
        "The mean difference is within the limit, so the version was not refused.",
        "agentrl versions list",
        (CANARY_LARGEST,),
        subjects=units_at_work("engine"),
    ),
    Threshold(
        "curves-not-written",
        subjects=reported("trainer", CURVES_FAILING),
        value=lambda reported: reported.value,
        sentence="{part} takes no points of curves from {unit}; training itself is not affected.",
        evidence=_lost_points,
        cure="agentrl logs {unit}",
        hold_s=30.0,
    ),
    Threshold(
        "held-out-trained",
        subjects=_held_out_environments,
        value=lambda reported: reported.value,
        sentence="{value} held-out prompts of {subject} are trained on too, so its evaluation scores are too high.",
        evidence=lambda found: (
            found.row.part.partition("/")[2],
            "The alert ends when the datasets share no prompt.",
        ),
        cure=lambda found: f"agentrl logs {found.row.unit} --grep 'is held out' --lines 0",
    ),
    Threshold(
        "warm-up-unused",
        subjects=trainers,
        metric=WARMUP_UNUSED.name,
        sentence="The run began without the warm-up of its run file, and continues from its checkpoint.",
        evidence=lambda found: (
            "A run of another name, or one that was wiped, starts with the warm-up.",
            "To end this alert, remove `training.warmup` from the run file.",
        ),
        cure="agentrl checkpoints list",
    ),
    Threshold(
        "checkpoint-damaged",
        subjects=trainers,
        metric=CHECKPOINTS_DAMAGED.name,
        sentence="{subject} passed over {value} damaged checkpoints and started from an older one.",
        evidence=lambda found: (
            "The files differ from what was written: the disk may be faulty. Steps since then are trained again.",
            "`agentrl checkpoints list` shows what is damaged. The alert ends when the trainer starts without damage.",
        ),
        cure="agentrl checkpoints list",
    ),
)
