"""What the first screen says of learning: where it stands, how it changed, how long it goes on, what would be lost.

Invariants: it is read from committed Steps, and from what their trainer reports where those were not asked; a number
that nobody told is left out, never 0; a mean of few Steps is not called a trend; what was told a while ago says so, and
is counted from then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.formatting.amounts import age, counted
from agentrl.protocol.rows import UnitRow
from agentrl.telemetry import learning
from agentrl.telemetry.metrics import Metric
from agentrl.telemetry.services import STEP
from tui.model import cell_text
from tui.model.curves import LATELY, Point
from tui.model.styled_text import Line, Span, Tone, span

HOUR_S = 3600.0
_MARGIN = 1.96
_RECENT = 50
_MOST_GROUPS = 1e9
"""More is no number of groups, whoever tells it."""
_SHORTEST_S = 60.0
"""Of a time that a change or a pace is told of."""


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """What was asked of the data plane; empty where nobody answered. In a recording: the Steps that it told of."""

    points: Sequence[Point] = ()
    published_at: float = 0.0
    finished_at: float = 0.0
    checkpoint_step: int | None = None
    checkpoint_at: float = 0.0
    evaluated: Mapping[str, float] = field(default_factory=dict)
    """What the newest version came to that was evaluated: no Step tells what followed the last one."""
    old_s: float = 0.0
    """How long ago all of this was told, where that is too long to be taken for what is; else 0."""

    @property
    def told(self) -> str:
        return f"told {age(self.old_s)} ago" if self.old_s else ""


@dataclass(frozen=True, slots=True)
class Report:
    """The newest numbers of trainers and Steps."""

    values: Mapping[str, float] = field(default_factory=dict)
    complete: str = ""
    """Why training came to its end, as its trainer said."""

    def get(self, name: str) -> float | None:
        value = self.values.get(name)
        return value if value is not None and math.isfinite(value) else None


def report(units: Sequence[UnitRow], outlook: TrainingFacts) -> Report:
    values: dict[str, float] = {}
    complete = ""
    for point in outlook.points[-_RECENT:]:
        # A Step without anything to train has few numbers; those of the one before it still tell of the policy.
        values |= {**point.metrics, STEP.name: point.step}
    values |= _evaluated(outlook)
    for row in units:
        if row.role == "trainer":
            values |= {name: value for name, value in row.metrics.items() if math.isfinite(value)}
            complete = _why(row) if row.done else complete
    return Report(values, complete)


def _evaluated(outlook: TrainingFacts) -> dict[str, float]:
    names = (learning.EVALUATION.name, learning.EVALUATION_MARGIN.name)
    return {name: value for name in names if (value := outlook.evaluated.get(name)) is not None}


def _why(row: UnitRow) -> str:
    """A trainer's own sentence, without what everybody says who ends."""
    return row.reason.removeprefix("done").removeprefix(": ").removeprefix("complete: ") or "the trainer is done"


# ---- what is complete ----


def completion(found: Report, after: Line) -> list[Line]:
    """That training has come to its end, what it came to, and what one does then; nothing before that."""
    if not found.complete:
        return []
    ended = [span(found.complete, Tone.WARN if found.get(learning.NOTHING_TRAINED.name) else Tone.GOOD)]
    score, margin = found.get(learning.EVALUATION.name), found.get(learning.EVALUATION_MARGIN.name)
    if score is not None:
        ended += [Span("; last evaluation ", Tone.DIM), Span(f"{score:.3g}", Tone.STRONG)]
        ended.append(Span(f" ± {margin:.2g}" if margin is not None else ""))
    return [line for line in (tuple(ended), after) if line]


# ---- learning ----


def learned(found: Report, outlook: TrainingFacts, now: float) -> list[Line]:
    scores = list[Span]()
    for metric, title in ((learning.EVALUATION, "evaluation"), (learning.REWARD, "reward")):
        value = found.get(metric.name)
        if value is None:
            continue
        margin, many = found.get(f"{metric.name}_margin"), 1
        # Of old Steps the trainer's own newest number is the better one.
        if (
            metric is learning.REWARD
            and not outlook.old_s
            and len(lately := _numbers(outlook.points[-LATELY:], metric.name)) > 1
        ):
            value, margin, many = _mean(lately), _interval(lately), LATELY
        scores += [Span(f"{title} ", Tone.DIM), Span(f"{value:.3g}", Tone.STRONG)]
        scores.append(Span(f" ± {margin:.2g}" if margin is not None else "", Tone.PLAIN))
        scores.append(Span(f"{_change(outlook.points, metric.name, now, value, many)}  ", Tone.DIM))
    return [tuple(line) for line in (scores, _progress(found, outlook, now)) if line]


def _change(points: Sequence[Point], name: str, now: float, value: float, many: int) -> str:
    """Of a value that is told of so many Steps, against that of as many an hour before, or at the beginning."""
    told = [point for point in points if name in point.metrics]
    then = [point for point in told if point.at <= now - HOUR_S][-many:] or told[:many]
    before = _numbers(then, name)
    if not before or told[-1].at - then[0].at < _SHORTEST_S or len(points) < 2 * LATELY:
        return ""
    return f" ({value - _mean(before):+.2g} in {cell_text.brief(told[-1].at - then[-1].at)})"


def _progress(found: Report, outlook: TrainingFacts, now: float) -> list[Span]:
    step, wanted = found.get("step"), found.get(learning.STEPS_WANTED.name)
    if step is None:
        return []
    of = f" of {wanted:.0f}" if wanted else ""
    parts = [Span("step ", Tone.DIM), Span(f"{step:.0f}{of}", Tone.STRONG)]
    pace = 0.0 if found.complete else _pace(outlook.points, now - outlook.old_s)
    if pace:
        shown = f"{pace * 60:.3g} a minute" if pace * 60 >= 2 else f"one in {cell_text.brief(1 / pace)}"
        parts.append(Span(f"  {shown}", Tone.DIM))
        if wanted and wanted > step:
            parts += [Span("  time left ", Tone.DIM), Span(cell_text.brief((wanted - step) / pace), Tone.STRONG)]
    for_nothing = bool(found.get(learning.NOTHING_TRAINED.name))
    if found.complete or (wanted and step >= wanted):
        parts.append(Span("  complete", Tone.WARN if for_nothing else Tone.GOOD))
    if for_nothing:
        parts.append(Span("  nothing was trained", Tone.BAD))
    return parts


def _pace(points: Sequence[Point], now: float) -> float:
    """Steps a second over the last hour, standstills among them; 0 where that is not known.

    By their numbers, so that what was not seen or was rolled back counts as what it is.
    """
    lately = [point for point in points if point.at > now - HOUR_S]
    took = now - lately[0].at if lately else 0.0
    went = lately[-1].step - lately[0].step if lately else 0
    return went / took if len(lately) > 2 and went > 0 and took > 0 else 0.0


# ---- moving ----


def moved(outlook: TrainingFacts, now: float) -> Line:
    parts, then = list[Span](), now - outlook.old_s
    newest = outlook.points[-1].at if outlook.points else 0.0
    for title, at in (("step", newest), ("publication", outlook.published_at), ("record", outlook.finished_at)):
        if at:
            late = then - at > 600.0
            ago = f"{cell_text.ago(at, then)} {'before' if outlook.old_s else 'ago'}"
            parts += [Span(f"last {title} ", Tone.DIM), Span(ago, _well(not late))]
            parts.append(Span("  "))
    return (Span(f"{outlook.told}: ", Tone.WARN), *parts) if parts and outlook.old_s else tuple(parts)


def at_risk(found: Report, outlook: TrainingFacts, now: float) -> Span:
    """What a death of the trainer would cost now."""
    step = found.get("step")
    if step is None or outlook.checkpoint_step is None:
        return Span("")
    lost = max(0, round(step) - outlook.checkpoint_step)
    since = [f"{cell_text.ago(outlook.checkpoint_at, now)} ago"] if outlook.checkpoint_at else []
    said = ", ".join([*since, *([outlook.told] if outlook.old_s else [])])
    lost_since = f"{counted(lost, 'steps')} since checkpoint {outlook.checkpoint_step}"
    return Span(f"{lost_since} ({said})" if said else lost_since, Tone.WARN if outlook.old_s else Tone.PLAIN)


# ---- data ----


def data(found: Report, outlook: TrainingFacts, bound: float | None) -> list[Line]:
    shares = (
        (learning.VALID, "valid"),
        (learning.INFRASTRUCTURE, "infrastructure"),
        (learning.TRUNCATION, "truncated"),
        (learning.ZERO_VARIANCE_LATELY, "zero variance"),
    )
    first = list[Span]()
    valid = found.get(learning.VALID.name)
    for metric, title in shares:
        value = found.get(metric.name)
        if metric is learning.INFRASTRUCTURE and valid is not None:
            # Of the attempts that `valid` is of: beside it the share since the last step would contradict it.
            value = 1.0 - valid
        if value is not None:
            first += _measured(metric, title, f"{value:.0%}", value)
    second = list[Span]()
    behind = found.get("staleness")
    behind = found.get("age_mean") if behind is None else behind
    if behind is not None:
        against = f" of {bound:g}" if bound is not None else ""
        second += [Span("age ", Tone.DIM), Span(f"{behind:.2g}{against}  ", _well(bound is None or behind <= bound))]
    second += _dropped(outlook)
    return [tuple(line) for line in (first, second) if line]


def _dropped(outlook: TrainingFacts) -> list[Span]:
    """Records that the last Steps took and did not train, by reason; groups that taught nothing."""
    points = [point for point in outlook.points[-LATELY:] if learning.STALE.name in point.metrics]
    if not points:
        return []
    reasons = ((learning.STALE.name, "too old"), (learning.BROKEN.name, "broken"))
    counts = [(title, sum(_numbers(points, name))) for name, title in reasons]
    told = ", ".join(f"{count:.0f} {title}" for title, count in counts if count)
    silent = round(max(0.0, min(sum(_numbers(points, learning.WITHOUT_SIGNAL.name)), _MOST_GROUPS)))
    told += f"{', ' if told else ''}{counted(silent, 'groups without signal')}" if silent else ""
    tone = Tone.WARN if any(count for _, count in counts) else Tone.PLAIN
    old = [Span(f", {outlook.told}", Tone.WARN)] if outlook.old_s else []
    return [Span(f"dropped in {counted(len(points), 'steps')} ", Tone.DIM), Span(told or "none", tone), *old]


# ---- the policy ----

_POLICY: tuple[tuple[tuple[str, str, str | None], ...], ...] = (
    (
        ("entropy", learning.ENTROPY.name, learning.ENTROPY_KEPT.name),
        ("mismatch", learning.MISMATCH_OVER_LIMIT.name, None),
        ("drift", learning.WEIGHT_MEAN.name, None),
    ),
    (
        ("accepted", learning.ACCEPTED.name, None),
        ("gradient", learning.GRADIENT.name, learning.GRADIENT_OVER_MEDIAN.name),
        ("length", learning.LENGTH.name, learning.LENGTH_JUMP.name),
    ),
)
"""Title, the number itself, and the ratio that has a band where the number has none."""


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
            metric = learning.LEARNING[ratio or name]
            parts += _measured(metric, title, shown.strip(), banded)
        if parts:
            made.append(tuple(parts))
    return made


def _measured(metric: Metric, title: str, shown: str, value: float | None) -> list[Span]:
    well = value is None or metric.is_normal(value)
    # Beside a number without the ratio that the band is of, it would be read as the number's own.
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
    # A product may become infinite, where a power would be refused.
    variance = sum((value - mean) * (value - mean) for value in numbers) / (len(numbers) - 1)
    return _MARGIN * math.sqrt(variance / len(numbers))
