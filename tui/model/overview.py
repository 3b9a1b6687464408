"""The first screen: what one person wants to know first, in the order in which it matters.

Invariants: at most three lines for what needs somebody and two for each other block, so everything fits 80×24; a block
without data is not shown; lines are cut, never wrapped; what is cut first stands last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from agentrl.protocol.commands import WhyReport
from agentrl.protocol.rows import AlertRow, AlertState, IncidentRow, KnobRow, OperationRow, PulseRow, UnitRow, UnitState
from agentrl.telemetry.learning import (
    ACCEPTED,
    ENTROPY_KEPT,
    ESS,
    EVALUATION,
    GRADIENT_OVER_MEDIAN,
    INFRASTRUCTURE,
    LENGTH_JUMP,
    MISMATCH_OVER_LIMIT,
    REWARD,
    TRUNCATION,
    TRUNCATION_RISE,
    VALID,
    WEIGHT_STD,
    ZERO_VARIANCE_LATELY,
)
from agentrl.telemetry.metrics import Metric
from agentrl.words.amounts import age
from agentrl.words.rows import plain_value, sentence, when
from tui.model import fleet, wording
from tui.model.ink import Line, Span, Tone, cut, span, trend
from tui.model.mirror import Mirror

CURE_KEYS = ("a", "b", "c")
MOST_LINES = 2
_TITLE = 12
_STEP = Metric("step", "", "Steps of the trainer.")
_CURVE_FROM = 110
"""Columns from which there is room for curves."""
RECENT_S = 3600.0


def blocks(mirror: Mirror, why: WhyReport | None, now: float, width: int) -> list[Line]:
    """The blocks from top to bottom, each line of exactly that width."""
    made = list[Line]()
    for title, lines in (
        ("Needs you", _needs_you(mirror, now)),
        ("Learning", _learning(mirror)),
        ("Moving", _moving(mirror, now)),
        ("Bottleneck", _bottleneck(mirror, why, now)),
        ("Data", _data(mirror)),
        ("Policy", _policy(mirror)),
        ("Fleet", _fleet(mirror)),
        ("Machine", _machine(mirror, width)),
        ("Under way", _under_way(mirror, now)),
        ("Last change", _last_change(mirror, now)),
    ):
        made += _block(title, lines, width)
    return made


def _block(title: str, lines: list[Line], width: int) -> Iterator[Line]:
    for number, each in enumerate(lines):
        head = Span((title if number == 0 else "").ljust(_TITLE), Tone.ACCENT)
        yield cut((head, *each), width)


def _needs_you(mirror: Mirror, now: float) -> list[Line]:
    firing = mirror.firing
    if not firing:
        state = mirror.run.state if mirror.run else ""
        calm = state in ("running", "completed", "stopped")
        return [(Span("✓ nothing", Tone.GOOD) if calm else Span("no alert yet", Tone.DIM),)]
    lines = [alert_line(row, now, key) for row, key in zip(firing, CURE_KEYS, strict=False)]
    if (more := len(firing) - len(lines)) > 0:
        lines[-1] = (*lines[-1], Span(f"  and {more} more", Tone.DIM))
    return lines


def alert_line(row: AlertRow, now: float, key: str) -> Line:
    taken = row.state is AlertState.ACKNOWLEDGED
    by = f" (acknowledged by {row.acknowledged_by})" if taken and row.acknowledged_by else ""
    quiet = " (silenced)" if row.silenced_until_at > now else ""
    return (
        Span(f"[{key}] ", Tone.ACCENT),
        Span(f"{wording.severity(row.severity).text} ", Tone.DIM if taken else wording.severity(row.severity).tone),
        Span(f"{wording.ago(row.since_at, now)} ", Tone.DIM),
        span(f"{row.sentence}{by}{quiet}", Tone.DIM if taken else Tone.PLAIN),
    )


# ---- the data plane, as far as its units report it ----


def _learning(mirror: Mirror) -> list[Line]:
    return _measured(mirror, ((EVALUATION, "evaluation"), (REWARD, "train reward"), (_STEP, "step")))


def _data(mirror: Mirror) -> list[Line]:
    shares = ((VALID, "valid"), (INFRASTRUCTURE, "infrastructure"), (TRUNCATION, "truncated"))
    return _measured(mirror, (*shares, (ZERO_VARIANCE_LATELY, "zero variance"), (TRUNCATION_RISE, "truncated more")))


def _policy(mirror: Mirror) -> list[Line]:
    drift = ((MISMATCH_OVER_LIMIT, "mismatch/limit"), (ESS, "ess"), (WEIGHT_STD, "weight std"), (ACCEPTED, "accepted"))
    shape = ((ENTROPY_KEPT, "entropy kept"), (GRADIENT_OVER_MEDIAN, "gradient/median"), (LENGTH_JUMP, "length"))
    return [*_measured(mirror, drift), *_measured(mirror, shape)]


def _measured(mirror: Mirror, chosen: Iterable[tuple[Metric, str]]) -> list[Line]:
    """What the trainer reports, with the normal band of what has left it."""
    values: dict[str, float] = {}
    for row in mirror.of(UnitRow):
        if row.role == "trainer":
            values |= row.metrics
    parts = list[Span]()
    for metric, title in chosen:
        value = values.get(metric.name)
        if value is None or not math.isfinite(value):
            continue
        well = metric.is_normal(value)
        band = f" ! normal {_band(metric)}" if not well else ""
        shown = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
        parts += [Span(f"{title} ", Tone.DIM), Span(f"{shown}{band}  ", Tone.STRONG if well else Tone.WARN)]
    return [tuple(parts)] if parts else []


def _band(metric: Metric) -> str:
    low, high = metric.normal or (-math.inf, math.inf)
    if math.isfinite(low) and math.isfinite(high):
        return f"{low:g}–{high:g}"
    return f"≥ {low:g}" if math.isfinite(low) else f"≤ {high:g}"


def _moving(mirror: Mirror, now: float) -> list[Line]:
    """When units that count their work last did some; the one that stands longest is named."""
    moving = [row for row in mirror.of(UnitRow) if row.progress and row.progress_at and row.state is UnitState.READY]
    if not moving:
        return []
    newest, oldest = max(row.progress_at for row in moving), min(moving, key=lambda row: row.progress_at)
    line = [Span("last progress ", Tone.DIM), Span(f"{wording.ago(newest, now)} ago", Tone.STRONG)]
    stands = now - oldest.progress_at
    if len(moving) > 1 and stands > 10.0:
        tone = Tone.WARN if stands > 60.0 else Tone.PLAIN
        line += [Span(" · longest without ", Tone.DIM), span(f"{oldest.unit} {wording.brief(stands)}", tone)]
    return [tuple(line)]


def _bottleneck(mirror: Mirror, why: WhyReport | None, now: float) -> list[Line]:
    """One sentence on what holds the others up; without a data plane, the chains of who waits for whom."""
    pulse = mirror.get("pulse")
    if isinstance(pulse, PulseRow) and pulse.sentence:
        since = f", for {age(now - pulse.since_at)}" if pulse.bottleneck and pulse.since_at else ""
        return [(span(pulse.sentence), Span(since, Tone.DIM)), *_tools(pulse)]
    if why is None or not why.chains:
        return []
    lines: list[Line] = [(span(chain.sentence),) for chain in why.chains[:MOST_LINES]]
    if (more := len(why.chains) - len(lines)) > 0:
        lines[-1] = (*lines[-1], Span(f" and {more} more", Tone.DIM))
    return lines


def _tools(pulse: PulseRow) -> list[Line]:
    """The tools that take most of the time."""
    parts = list[Span]()
    for tool in pulse.tools[:4]:
        failing = f" fails {tool.failures:.0%}" if tool.failures >= 0.005 else ""
        rate = f" {tool.calls_per_s:.1f}/s"
        parts.append(span(f"{tool.name}{rate} p95 {tool.p95_s:.2g} s", Tone.PLAIN))
        parts.append(Span(f"{failing}  ", Tone.WARN if failing else Tone.DIM))
    return [tuple(parts)] if parts else []


# ---- the fleet ----


def _fleet(mirror: Mirror) -> list[Line]:
    strengths = fleet.strengths(mirror)
    bad = [row for row in mirror.of(UnitRow) if row.desired and not row.done and row.state in _TROUBLED]
    if not bad:
        return [strengths] if strengths else []
    worst = min(bad, key=lambda row: (_TROUBLED.index(row.state), row.since_at))
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    why = f": {worst.reason}" if worst.reason else ""
    line = (span(f"{worst.unit} is {worst.state.value}{more}{why}", wording.state(worst.state.value).tone),)
    return [strengths, line]


_TROUBLED = (UnitState.FATAL, UnitState.LOST, UnitState.BACKOFF, UnitState.SUSPECT)


def _machine(mirror: Mirror, width: int) -> list[Line]:
    shown = fleet.hosts(mirror)
    if not shown:
        return []
    cpu = sum(row.cpu_percent for row in mirror.of(UnitRow))
    memory = sum(row.rss_bytes for row in mirror.of(UnitRow))
    run = [Span("units use ", Tone.DIM), Span(f"cpu {cpu:.0f}% mem {wording.small_size(memory)}", Tone.PLAIN)]
    if width >= _CURVE_FROM and mirror.load:
        run += [Span("  "), Span(trend(mirror.load, min(60, width // 4), low=0.0), Tone.ACCENT)]
    return [shown, tuple(run)]


def _under_way(mirror: Mirror, now: float) -> list[Line]:
    rows = mirror.under_way
    lines = [operation_line(row, now) for row in rows[-MOST_LINES:]]
    if (more := len(rows) - len(lines)) > 0:
        lines[-1] = (*lines[-1], Span(f" and {more} more", Tone.DIM))
    return lines


def operation_line(row: OperationRow, now: float) -> Line:
    waiting = f": waits for {', '.join(row.waiting_for[:3])}" if row.waiting_for else ""
    more = f" and {len(row.waiting_for) - 3} more" if len(row.waiting_for) > 3 else ""
    head = f"{row.summary or row.command} by {row.who}, {age(now - row.accepted_at)}"
    return (span(f"{head}{waiting}{more}", Tone.BUSY),)


def _last_change(mirror: Mirror, now: float) -> list[Line]:
    """The newest things that happened: somebody's doing, or an incident."""
    found: list[tuple[float, Line]] = []
    for kind, of in _HAPPENED.items():
        rows = [row for row in mirror.of(kind) if when(row) > 0 and of(row)]
        if rows:
            newest = max(rows, key=when)
            tone = Tone.WARN if isinstance(newest, IncidentRow) else Tone.PLAIN
            line = (Span(f"{wording.ago(when(newest), now)} ago ", Tone.DIM), span(_short(newest), tone))
            found.append((when(newest), line))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [line for _, line in found[:MOST_LINES]]


_HAPPENED: dict[type[OperationRow | KnobRow | IncidentRow], Callable[[object], bool]] = {
    OperationRow: lambda row: isinstance(row, OperationRow) and row.state.ended,
    KnobRow: lambda row: isinstance(row, KnobRow) and row.changed_at > 0,
    IncidentRow: lambda row: True,
}


def _short(row: OperationRow | KnobRow | IncidentRow) -> str:
    match row:
        case OperationRow():
            return f"{row.summary or row.command} by {row.who}: {row.state.value}"
        case KnobRow():
            return f"{row.name} = {plain_value(row.value)} by {row.changed_by or 'default'}"
        case IncidentRow():
            return sentence(row)
