"""Draws curves of committed steps, with ticks for events under each curve.

Invariants:
- Every curve of a screen has the same Steps in the same columns, with the newest on the right.
- The curves take the whole width between axis and newest value. With few Steps a column is several cells wide; with
  many Steps a column shows the mean of several Steps.
- A tick is at the first Step that was committed after its event. Events before the run's first Step are at that Step.
- No tick hides another tick of its column.
- A Step without a number leaves a gap, never a 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agentrl.formatting.amounts import counted, moment
from agentrl.formatting.row_text import event_text
from agentrl.protocol.rows import AnyRow, IncidentRow, OperationRow, OperationState
from agentrl.telemetry.learning_metrics import LEARNING
from tui.model.line_plot import AXIS, NEWEST, Scale, plot
from tui.model.styled_text import Line, Span, Tone, span

CHOSEN = (
    "reward_mean", "evaluation", "entropy", "mismatch_mean", "weight_mean", "ess", "clipped_share", "gradient_norm",
    "tokens_per_record", "loss", "kl_behaviour", "zero_variance_share", "truncation_share", "stale_records", "age_mean",
)  # fmt: skip
"""Metrics that are drawn first, in this order; all other metrics follow."""
LEAST_LINES = 4
"""Height of a curve with its title and ticks."""
SEVERAL = "≡"
"""The sign for several kinds of events in one cell."""
_GRAVITY = "✖◆○"
_MOST_SHOWN = 3
_MARGIN = 1.96


@dataclass(frozen=True, slots=True)
class Point:
    """One committed step."""

    id: str
    step: int
    at: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """One event during training."""

    at: float
    sign: str
    tone: Tone
    what: str
    row: AnyRow
    segment: bool = False
    """Curves before and after it must not be compared."""


def points(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Committed steps, the oldest first."""
    made = [
        Point(str(row["id"]), int(row.get("step") or 0), seconds(row.get("committed_at")), row.get("metrics") or {})
        for row in rows
        if row.get("status") == "committed"
    ]
    return sorted(made, key=lambda point: (point.at, point.step))


def seconds(at: object) -> float:
    """Times of the store are in UTC, with or without a time zone."""
    if not isinstance(at, datetime):
        return 0.0
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def metrics_of(found: Sequence[Point]) -> list[str]:
    """The names of all metrics of these steps, the most important first."""
    known = {name for point in found for name in point.metrics}
    return [name for name in CHOSEN if name in known] + sorted(known - set(CHOSEN))


def ticks(happened: Iterable[AnyRow], scientific: frozenset[str]) -> list[Tick]:
    """Changes of knobs, other operations and incidents, the oldest first; `scientific` are names of knobs."""
    made = list[Tick]()
    for row in happened:
        if isinstance(row, IncidentRow):
            made.append(Tick(row.at, "✖", Tone.BAD, event_text(row), row))
        elif isinstance(row, OperationRow) and row.state in _HAD_EFFECT and row.command not in _SAYS_NOTHING:
            at, what = row.ended_at or row.accepted_at, f"{row.summary or row.command}, by {row.who}"
            if row.command in ("tune", "undo_tune"):
                segment = any(part.strip() in scientific for part in row.summary.split(":")[:2])
                made.append(Tick(at, "◆", Tone.WARN, what, row, segment))
            else:
                made.append(Tick(at, "○", Tone.BUSY, what, row))
    return sorted(made, key=lambda tick: tick.at)


_HAD_EFFECT = (OperationState.ACCEPTED, OperationState.RUNNING, OperationState.SUCCEEDED)
_SAYS_NOTHING = ("acknowledge", "silence", "test_alert", "stacks", "add_key", "revoke_key")


class Chart:
    """Steps and ticks in the columns of a given width."""

    def __init__(
        self, found: Sequence[Point], happened: Sequence[Tick], width: int, *, from_the_first: bool = True
    ) -> None:
        """`from_the_first`: no steps exist before these, so older events belong to the first one."""
        self.points = found
        self.width = max(1, width)
        self.columns = min(len(found), self.width)
        self.ticks: dict[int, list[Tick]] = {}
        starts = [point.at for point in found]
        for tick in happened:
            place = _first_after(starts, tick.at)
            if place is not None and (from_the_first or tick.at >= starts[0]):
                self.ticks.setdefault(self._column(place), []).append(tick)

    def column_of(self, id: str) -> int | None:
        place = next((place for place, point in enumerate(self.points) if point.id == id), None)
        return None if place is None else self._column(place)

    def last_of(self, column: int) -> Point | None:
        """The newest step of a column."""
        part = self._part(column)
        return part[-1] if part else None

    def neighbour(self, column: int, by: int) -> int | None:
        """The next column with a tick, to the left or to the right."""
        beyond = [each for each in self.ticks if (each - column) * by > 0]
        return (min(beyond) if by > 0 else max(beyond)) if beyond else None

    def _part(self, column: int) -> Sequence[Point]:
        """The steps of a column: those whose share of the width begins in it."""
        begin, end = (math.ceil(edge * len(self.points) / self.columns) for edge in (column, column + 1))
        return self.points[begin:end] if 0 <= column < self.columns else ()

    def _column(self, place: int) -> int:
        return place * self.columns // len(self.points)

    def _cells(self, column: int) -> int:
        """The width of a column in cells."""
        return (column + 1) * self.width // self.columns - column * self.width // self.columns

    def values(self, metric: str) -> list[float | None]:
        """One for each column."""
        made = list[float | None]()
        for column in range(self.columns):
            numbers = [value for point in self._part(column) if (value := _number(point, metric)) is not None]
            made.append(sum(numbers) / len(numbers) if numbers else None)
        return made

    def curve(self, metric: str, height: int, cursor: int | None) -> list[Line]:
        """A title, the curve of `height` lines between its axis and its newest value, and the ticks."""
        values = self.values(metric)
        declared = LEARNING.get(metric)
        scale = Scale.of(values, declared.normal if declared else None)
        segments = {column for column, found in self.ticks.items() if any(tick.segment for tick in found)}
        edges = [column * self.width // self.columns for column in range(self.columns + 1)] if self.columns else [0]
        lines = [self._title(metric, values, cursor), *plot(values, edges, scale, height, cursor, segments)]
        ticks = (part for column in range(self.columns) for part in self._tick(column, cursor))
        first, last = (f"{self.points[place].step}" for place in (0, -1))
        first = f"step {first}" if len(first) < AXIS - 5 else first
        lines.append((Span(f"{first:>{AXIS - 1}}└", Tone.DIM), *ticks, Span(f" {last}".ljust(NEWEST), Tone.DIM)))
        return lines

    def _tick(self, column: int, cursor: int | None) -> Line:
        """One sign for every kind of event, the most severe first; one sign for all of them where they do not fit."""
        found, cells, here = self.ticks.get(column), self._cells(column), column == cursor
        if not found:
            return self._signs([("▲", Tone.STRONG) if here else ("─", Tone.DIM)], cells)
        kinds = sorted({(_GRAVITY.index(tick.sign), tick.tone) for tick in found})
        signs = [(_GRAVITY[place], Tone.STRONG if here else tone) for place, tone in kinds]
        return self._signs(signs if len(signs) <= cells else [(SEVERAL, signs[0][1])], cells)

    @staticmethod
    def _signs(signs: Sequence[tuple[str, Tone]], cells: int) -> Line:
        rest = Span("─" * (cells - len(signs)), Tone.DIM)
        return (*(Span(sign, tone) for sign, tone in signs), rest)

    def _title(self, metric: str, values: Sequence[float | None], cursor: int | None) -> Line:
        part = self._part(self.columns - 1 if cursor is None else cursor)
        numbers = [value for point in part if (value := _number(point, metric)) is not None]
        declared = LEARNING.get(metric)
        unit = f" {declared.unit}" if declared and declared.unit and numbers else ""
        here = f"{sum(numbers) / len(numbers):.4g}{unit}" if numbers else "–"
        band = declared.band_in_words() if declared else ""
        well = not numbers or declared is None or declared.is_normal(numbers[-1])
        normal = f" · normal {band}" if band else ""
        known = [value for value in values if value is not None]
        reach = f" · {min(known):.4g} to {max(known):.4g}" if known else ""
        return (
            span(f"{metric} ", Tone.STRONG),
            Span(f"{here}{'' if well else ' !'}", Tone.PLAIN if well else Tone.WARN),
            Span(f"{interval(self.points, metric, part)}{reach}{normal}", Tone.DIM),
        )

    def caption(self, cursor: int | None) -> Line:
        """The step under the cursor and its events."""
        point = self.last_of(cursor) if cursor is not None else None
        if cursor is None or point is None:
            return (Span("no step of the curves is under the cursor", Tone.DIM),)
        parts = [Span(f"step {point.step}", Tone.STRONG), Span(f" · {moment(point.at)[-8:]}", Tone.DIM)]
        found = self.ticks.get(cursor, [])
        if (earlier := len(found) - _MOST_SHOWN) > 0:
            parts.append(Span(f"  {earlier} more before these, e lists all", Tone.ACCENT))
        for tick in found[-_MOST_SHOWN:]:
            parts += [
                Span(f"  {tick.sign} ", tick.tone),
                span(f"{moment(tick.at)[-8:]} {tick.what}"),
                Span(" · a new segment" if tick.segment else "", Tone.WARN),
            ]
        return tuple(parts)


LATELY = 10
_WITH_INTERVAL = ("reward_mean", "evaluation")


def interval(found: Sequence[Point], metric: str, part: Sequence[Point]) -> str:
    """The 95 % interval of a mean score: the one of the evaluation if it has one, otherwise of the last ten steps."""
    if metric not in _WITH_INTERVAL or not part:
        return ""
    margin = part[-1].metrics.get(f"{metric}_margin")
    if margin is not None:
        return f" ± {margin:.2g}"
    if metric == "evaluation":
        return ""
    end = next(place for place, point in enumerate(found) if point is part[-1]) + 1
    numbers = [value for point in found[max(0, end - LATELY) : end] if (value := _number(point, metric)) is not None]
    if len(numbers) < 2:
        return ""
    mean = sum(numbers) / len(numbers)
    # A product may become infinite; a power would raise.
    spread = math.sqrt(sum((value - mean) * (value - mean) for value in numbers) / (len(numbers) - 1))
    return f" · last {counted(len(numbers), 'steps')} {mean:.3g} ± {_MARGIN * spread / math.sqrt(len(numbers)):.2g}"


def _number(point: Point, metric: str) -> float | None:
    value = point.metrics.get(metric)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _first_after(starts: Sequence[float], at: float) -> int | None:
    """The index of the first step committed at that time or later, else of the last step."""
    if not starts:
        return None
    return min(bisect_left(starts, at), len(starts) - 1)
