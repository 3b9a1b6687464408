"""Formats the learning blocks of the first screen: progress, change, time left, and the work that would be lost.

Invariants:
- Numbers come from committed steps, or from the trainer row if the steps were not answered.
- An unknown number is left out, never shown as 0.
- The mean of few steps is not called a trend.
- An old answer shows its age, which is counted from its arrival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.formatting.amounts import age, counted
from agentrl.protocol.rows import UnitRow
from agentrl.telemetry import learning_metrics
from agentrl.telemetry.control_plane_metrics import Metric
from agentrl.telemetry.data_plane_metrics import STEP
from tui.model import cell_text
from tui.model.curves import LATELY, Point
from tui.model.styled_text import Line, Span, Tone, span

HOUR_S = 3600.0
_MARGIN = 1.96
_RECENT = 50
_MOST_GROUPS = 1e9
"""A larger number of groups is not plausible."""
_SHORTEST_S = 60.0
"""The shortest time over which a change or a pace is computed."""


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """Answers of the data plane, empty without an answer; in playback the recorded steps."""

    points: Sequence[Point] = ()
    published_at: float = 0.0
    finished_at: float = 0.0
    checkpoint_step: int | None = None
    checkpoint_at: float = 0.0
    evaluated: Mapping[str, float] = field(default_factory=dict)
    """Scores of the newest evaluated version, which may be newer than the last step."""
    old_s: float = 0.0
    """The age of the answers if they are too old to be current; else 0."""

    @property
    def answered(self) -> str:
        return f"answered {age(self.old_s)} ago" if self.old_s else ""


@dataclass(frozen=True, slots=True)
class Report:
    """The newest numbers of the trainer and the steps."""

    values: Mapping[str, float] = field(default_factory=dict)
    complete: str = ""
    """The reason for the end of training, as the trainer reported it."""

    def get(self, name: str) -> float | None:
        value = self.values.get(name)
        return value if value is not None and math.isfinite(value) else None


def report(units: Sequence[UnitRow], facts: TrainingFacts) -> Report:
    values: dict[str, float] = {}
    complete = ""
    for point in facts.points[-_RECENT:]:
        # A step without training data has few numbers; the numbers of the step before still describe the policy.
        values |= {**point.metrics, STEP.name: point.step}
    values |= _evaluated(facts)
    for row in units:
        if row.role == "trainer" and row.leads:
            values |= {name: value for name, value in row.metrics.items() if math.isfinite(value)}
            complete = _why(row) if row.done else complete
    return Report(values, complete)


def _evaluated(facts: TrainingFacts) -> dict[str, float]:
    names = (learning_metrics.EVALUATION.name, learning_metrics.EVALUATION_MARGIN.name)
    return {name: value for name in names if (value := facts.evaluated.get(name)) is not None}


def _why(row: UnitRow) -> str:
    """The trainer's own sentence, without the phrase that every ending unit adds."""
    return row.reason.removeprefix("done").removeprefix(": ").removeprefix("complete: ") or "the trainer is done"


# ---- completion ----


def completion(found: Report, after: Line) -> list[Line]:
    """States that training is complete, with its result and the next actions; empty before that."""
    if not found.complete:
        return []
    ended = [span(found.complete, Tone.WARN if found.get(learning_metrics.NOTHING_TRAINED.name) else Tone.GOOD)]
    score, margin = found.get(learning_metrics.EVALUATION.name), found.get(learning_metrics.EVALUATION_MARGIN.name)
    if score is not None:
        ended += [Span("; last evaluation ", Tone.DIM), Span(f"{score:.3g}", Tone.STRONG)]
        ended.append(Span(f" ± {margin:.2g}" if margin is not None else ""))
    return [line for line in (tuple(ended), after) if line]


# ---- learning ----


def learned(found: Report, facts: TrainingFacts, now: float) -> list[Line]:
    scores = list[Span]()
    for metric, title in ((learning_metrics.EVALUATION, "evaluation"), (learning_metrics.REWARD, "reward")):
        value = found.get(metric.name)
        if value is None:
            continue
        margin, many = found.get(f"{metric.name}_margin"), 1
        # The trainer row is newer than old steps.
        if (
            metric is learning_metrics.REWARD
            and not facts.old_s
            and len(lately := _numbers(facts.points[-LATELY:], metric.name)) > 1
        ):
            value, margin, many = _mean(lately), _interval(lately), LATELY
        scores += [Span(f"{title} ", Tone.DIM), Span(f"{value:.3g}", Tone.STRONG)]
        scores.append(Span(f" ± {margin:.2g}" if margin is not None else "", Tone.PLAIN))
        scores.append(Span(f"{_change(facts.points, metric.name, now, value, many)}  ", Tone.DIM))
    return [tuple(line) for line in (scores, _progress(found, facts, now)) if line]


def _change(points: Sequence[Point], name: str, now: float, value: float, many: int) -> str:
    """The change of a mean over `many` steps against the mean an hour before, or at the beginning."""
    measured = [point for point in points if name in point.metrics]
    then = [point for point in measured if point.at <= now - HOUR_S][-many:] or measured[:many]
    before = _numbers(then, name)
    if not before or measured[-1].at - then[0].at < _SHORTEST_S or len(points) < 2 * LATELY:
        return ""
    return f" ({value - _mean(before):+.2g} in {cell_text.brief(measured[-1].at - then[-1].at)})"


def _progress(found: Report, facts: TrainingFacts, now: float) -> list[Span]:
    step, wanted = found.get("step"), found.get(learning_metrics.STEPS_WANTED.name)
    if step is None:
        return []
    of = f" of {wanted:.0f}" if wanted else ""
    parts = [Span("step ", Tone.DIM), Span(f"{step:.0f}{of}", Tone.STRONG)]
    pace = 0.0 if found.complete else _pace(facts.points, now - facts.old_s)
    if pace:
        shown = f"{pace * 60:.3g} a minute" if pace * 60 >= 2 else f"one in {cell_text.brief(1 / pace)}"
        parts.append(Span(f"  {shown}", Tone.DIM))
        if wanted and wanted > step:
            parts += [Span("  time left ", Tone.DIM), Span(cell_text.brief((wanted - step) / pace), Tone.STRONG)]
    for_nothing = bool(found.get(learning_metrics.NOTHING_TRAINED.name))
    if found.complete or (wanted and step >= wanted):
        parts.append(Span("  complete", Tone.WARN if for_nothing else Tone.GOOD))
    if for_nothing:
        parts.append(Span("  nothing was trained", Tone.BAD))
    return parts


def _pace(points: Sequence[Point], now: float) -> float:
    """Steps a second over the last hour, with pauses; 0 if that is unknown.

    The pace is computed from step numbers, so that missing and rolled-back steps count correctly.
    """
    lately = [point for point in points if point.at > now - HOUR_S]
    took = now - lately[0].at if lately else 0.0
    went = lately[-1].step - lately[0].step if lately else 0
    return went / took if len(lately) > 2 and went > 0 and took > 0 else 0.0


# ---- moving ----


def moved(facts: TrainingFacts, now: float) -> Line:
    parts, then = list[Span](), now - facts.old_s
    newest = facts.points[-1].at if facts.points else 0.0
    for title, at in (("step", newest), ("publication", facts.published_at), ("record", facts.finished_at)):
        if at:
            late = then - at > 600.0
            ago = f"{cell_text.ago(at, then)} {'before' if facts.old_s else 'ago'}"
            parts += [Span(f"last {title} ", Tone.DIM), Span(ago, _well(not late))]
            parts.append(Span("  "))
    return (Span(f"{facts.answered}: ", Tone.WARN), *parts) if parts and facts.old_s else tuple(parts)


def at_risk(found: Report, facts: TrainingFacts, now: float) -> Span:
    """The work that would be lost if the trainer died now."""
    step = found.get("step")
    if step is None or facts.checkpoint_step is None:
        return Span("")
    lost = max(0, round(step) - facts.checkpoint_step)
    since = [f"{cell_text.ago(facts.checkpoint_at, now)} ago"] if facts.checkpoint_at else []
    details = ", ".join([*since, *([facts.answered] if facts.old_s else [])])
    lost_since = f"{counted(lost, 'steps')} since checkpoint {facts.checkpoint_step}"
    return Span(f"{lost_since} ({details})" if details else lost_since, Tone.WARN if facts.old_s else Tone.PLAIN)


# ---- data ----


def data(found: Report, facts: TrainingFacts, bound: float | None) -> list[Line]:
    shares = (
        (learning_metrics.VALID, "valid"),
        (learning_metrics.INFRASTRUCTURE, "infrastructure"),
        (learning_metrics.TRUNCATION, "truncated"),
        (learning_metrics.ZERO_VARIANCE_LATELY, "zero variance"),
    )
    first = list[Span]()
    valid = found.get(learning_metrics.VALID.name)
    for metric, title in shares:
        value = found.get(metric.name)
        if metric is learning_metrics.INFRASTRUCTURE and valid is not None:
            # It counts the same attempts as `valid`, because a share since the last step would contradict it.
            value = 1.0 - valid
        if value is not None:
            first += _measured(metric, title, f"{value:.0%}", value)
    second = list[Span]()
    behind = found.get("staleness")
    behind = found.get("age_mean") if behind is None else behind
    if behind is not None:
        against = f" of {bound:g}" if bound is not None else ""
        second += [Span("age ", Tone.DIM), Span(f"{behind:.2g}{against}  ", _well(bound is None or behind <= bound))]
    second += _dropped(facts)
    return [tuple(line) for line in (first, second) if line]


def _dropped(facts: TrainingFacts) -> list[Span]:
    """Records of the last steps that were not trained, by reason; groups without a learning signal."""
    points = [point for point in facts.points[-LATELY:] if learning_metrics.STALE.name in point.metrics]
    if not points:
        return []
    reasons = ((learning_metrics.STALE.name, "too old"), (learning_metrics.BROKEN.name, "broken"))
    counts = [(title, sum(_numbers(points, name))) for name, title in reasons]
    dropped = ", ".join(f"{count:.0f} {title}" for title, count in counts if count)
    silent = round(max(0.0, min(sum(_numbers(points, learning_metrics.WITHOUT_SIGNAL.name)), _MOST_GROUPS)))
    dropped += f"{', ' if dropped else ''}{counted(silent, 'groups without signal')}" if silent else ""
    tone = Tone.WARN if any(count for _, count in counts) else Tone.PLAIN
    old = [Span(f", {facts.answered}", Tone.WARN)] if facts.old_s else []
    return [Span(f"dropped in {counted(len(points), 'steps')} ", Tone.DIM), Span(dropped or "none", tone), *old]


# ---- the policy ----

_POLICY: tuple[tuple[tuple[str, str, str | None], ...], ...] = (
    (
        ("entropy", learning_metrics.ENTROPY.name, learning_metrics.ENTROPY_KEPT.name),
        ("mismatch", learning_metrics.MISMATCH_OVER_LIMIT.name, None),
        ("drift", learning_metrics.WEIGHT_MEAN.name, None),
    ),
    (
        ("accepted", learning_metrics.ACCEPTED.name, None),
        ("gradient", learning_metrics.GRADIENT.name, learning_metrics.GRADIENT_OVER_MEDIAN.name),
        ("length", learning_metrics.LENGTH.name, learning_metrics.LENGTH_JUMP.name),
    ),
)
"""Title, the number, and the ratio whose band is shown if the number has none."""


def policy(found: Report) -> list[Line]:
    made = list[Line]()
    for row in _POLICY:
        parts = list[Span]()
        for title, name, ratio in row:
            value, banded = found.get(name), found.get(ratio or name)
            if value is None and banded is None:
                continue
            shown = "" if value is None else f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
            shown += f" ×{banded:.2g}" if ratio and banded is not None else ""
            metric = learning_metrics.LEARNING[ratio or name]
            parts += _measured(metric, title, shown.strip(), banded)
        if parts:
            made.append(tuple(parts))
    return made


def _measured(metric: Metric, title: str, shown: str, value: float | None) -> list[Span]:
    well = value is None or metric.is_normal(value)
    # Without the ratio, its band would look like the band of the number.
    band = _band(metric) if value is not None else ""
    return [
        Span(f"{title} ", Tone.DIM),
        span(f"{shown}{'' if well else ' !'}", _well(well)),
        Span(f" {band}  " if band else "  ", Tone.DIM if well else Tone.WARN),
    ]


def _band(metric: Metric) -> str:
    if metric.normal is None:
        return ""
    low, high = metric.normal
    if math.isfinite(low) and math.isfinite(high) and low != 0:
        return f"{low:g}–{high:g}"
    return f"≤{high:g}" if math.isfinite(high) else f"≥{low:g}"


def _well(well: bool) -> Tone:
    return Tone.STRONG if well else Tone.WARN


def _numbers(points: Sequence[Point], name: str) -> list[float]:
    found = (point.metrics.get(name) for point in points)
    return [value for value in found if value is not None and math.isfinite(value)]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _interval(numbers: Sequence[float]) -> float:
    """Half of the 95 % interval of their mean."""
    mean = _mean(numbers)
    # A product may become infinite; a power would raise.
    variance = sum((value - mean) * (value - mean) for value in numbers) / (len(numbers) - 1)
    return _MARGIN * math.sqrt(variance / len(numbers))
