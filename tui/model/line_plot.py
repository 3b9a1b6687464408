"""Draws one curve as a line of dots between the labels of its axis. Pure.

Invariants:
- The axis ends at 0 or at the limits of the normal band, or beyond them at a round number, so small changes look small.
- Gaps stay gaps: the line connects only neighbours that have a value. A value without neighbours is a sign of its own.
- A limit inside the axis is a dotted line, and the curve outside the band has the tone of a warning.
- The newest value is at the right edge, at its height.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from tui.model.styled_text import Line, Span, Tone

AXIS, NEWEST = 8, 8
"""Cells to the left of a curve for the labels of its axis, and to the right for its newest value."""
_LEAST_WITH_MIDDLE = 5
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ROUND = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_ALONE, _LIMIT, _SEGMENT = "●", "┄", "│"


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    band: tuple[float, float] = (-math.inf, math.inf)
    """Values of a healthy run."""

    @classmethod
    def of(cls, values: Sequence[float | None], band: tuple[float, float] | None) -> Scale:
        known = [value for value in values if value is not None]
        band = band or (-math.inf, math.inf)
        limits = tuple(end for end in band if math.isfinite(end))
        ends = limits if len(limits) == 2 else (0.0, *limits)
        low, high = min((*ends, *known)), max((*ends, *known))
        low = low if low in ends else _rounded(low, up=False)
        high = high if high in ends else _rounded(high, up=True)
        return cls(low, high if high > low else low + 1.0, band)

    def share(self, value: float) -> float:
        """From 0 at the bottom to 1 at the top."""
        # Halved, because the difference of two large numbers may be infinite.
        reach = self.high / 2 - self.low / 2
        share = (value / 2 - self.low / 2) / reach if reach > 0 else 0.5
        return max(0.0, min(1.0, share))

    def middle(self) -> float:
        return self.low / 2 + self.high / 2


def _rounded(value: float, *, up: bool) -> float:
    """The next round number above or below."""
    if value == 0 or not math.isfinite(value):
        return value
    away = (value > 0) == up
    power = 10.0 ** math.floor(math.log10(abs(value)))
    share = abs(value) / power if power else math.inf
    steps = [step for step in _ROUND if (step >= share * (1 - 1e-9) if away else step <= share * (1 + 1e-9))]
    made = math.copysign((min(steps) if away else max(steps)) * power, value) if steps else value
    return made if math.isfinite(made) else value


def label(value: float, width: int) -> str:
    """A number of at most this width: `0.5`, `-1.2e-9`, `250`."""
    text = ""
    for digits in (4, 3, 2, 1):
        text = f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        if len(text) <= width:
            break
    return text[:width]


def plot(
    values: Sequence[float | None],
    edges: Sequence[int],
    scale: Scale,
    height: int,
    cursor: int | None,
    segments: Collection[int],
) -> list[Line]:
    """`edges` are the first cells of the columns and the end of the last one; `segments` are columns that begin one."""
    width = edges[-1] if edges else 0
    dots = _dots(values, edges, scale, height)
    of_cell = [column for column in range(len(values)) for _ in range(edges[column + 1] - edges[column])]
    normal_from, normal_to = scale.band
    outside = {n for n, value in enumerate(values) if value is not None and not normal_from <= value <= normal_to}
    limits = {_row(scale, limit, height) for limit in scale.band if scale.low < limit < scale.high}
    begins = {edges[column] for column in segments if column < len(values)}
    newest = next((value for value in reversed(values) if value is not None), None)
    lines = list[Line]()
    for row in range(height):
        cells = list[Span]()
        for x in range(width):
            column, sign = of_cell[x], dots.get((row, x), "")
            if sign:
                tone = Tone.WARN if column in outside else Tone.STRONG if column == cursor else Tone.ACCENT
                cells.append(Span(sign, tone))
            elif x in begins:
                cells.append(Span(_SEGMENT, Tone.WARN))
            else:
                cells.append(Span(_LIMIT if row in limits else " ", Tone.DIM))
        runs = (Span("".join(s.text for s in run), tone) for tone, run in groupby(cells, key=lambda cell: cell.tone))
        here = newest is not None and _row(scale, newest, height) == row
        right = label(newest, NEWEST - 1) if here and newest is not None else ""
        lines.append((_axis(scale, row, height), *runs, Span(f" {right}".ljust(NEWEST), Tone.STRONG)))
    return lines


def _axis(scale: Scale, row: int, height: int) -> Span:
    shown: float | None = None
    if row == 0:
        shown = scale.high
    elif row == height - 1:
        shown = scale.low
    elif height >= _LEAST_WITH_MIDDLE and height % 2 and row == height // 2:
        shown = scale.middle()
    text = "" if shown is None else label(shown, AXIS - 1)
    return Span(f"{text:>{AXIS - 1}}{'┤' if text else '│'}", Tone.DIM)


def _level(scale: Scale, value: float, height: int) -> int:
    """The row of dots, from the top."""
    return round((1 - scale.share(value)) * (4 * height - 1))


def _row(scale: Scale, value: float, height: int) -> int:
    return _level(scale, value, height) // 4


def _dots(
    values: Sequence[float | None], edges: Sequence[int], scale: Scale, height: int
) -> dict[tuple[int, int], str]:
    """The signs of the line by row and cell."""
    bits = dict[tuple[int, int], int]()
    alone = list[tuple[int, int]]()
    before: tuple[int, int] | None = None
    for column, value in enumerate(values):
        if value is None:
            before = None
            continue
        x, y = edges[column] + edges[column + 1], _level(scale, value, height)
        x -= (edges[column + 1] - edges[column]) % 2
        follows = column + 1 < len(values) and values[column + 1] is not None
        if before is None and not follows:
            alone.append((y // 4, x // 2))
        for at, top, bottom in _path(before or (x, y), (x, y)):
            for level in range(top, bottom + 1):
                cell = level // 4, at // 2
                bits[cell] = bits.get(cell, 0) | _DOTS[at % 2][level % 4]
        before = x, y
    return {cell: chr(_BRAILLE + found) for cell, found in bits.items()} | dict.fromkeys(alone, _ALONE)


def _path(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int, int]]:
    """The columns of dots from one point to another, each with its first and last row."""
    (x0, y0), (x1, y1) = begin, end
    made, last = list[tuple[int, int, int]](), y0
    for x in range(x0, x1 + 1):
        y = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0)) if x1 > x0 else y1
        made.append((x, min(last, y), max(last, y)))
        last = y
    return made
