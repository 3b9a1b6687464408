"""Draws a histogram of ready records by staleness, with the bound.

Invariants:
- The histogram shows the counts of the steward.
- The cost of another bound comes from the preview of the knob, never from the histogram.
"""

from __future__ import annotations

from agentrl.protocol.data_commands import StalenessReport
from tui.model.styled_text import Line, Span, Tone, filled

BARS = 2
"""Lines of the bars."""
_WIDEST = 7
_TITLE = 11


def dropped(report: StalenessReport) -> Line:
    """The shares of short and of long records that were too old for recent steps; empty if none was."""
    if not any(part.dropped for part in report.dropped):
        return ()
    shares = " · ".join(f"≤{part.to_s:.2g} s {part.dropped / part.records:.0%}" for part in report.dropped)
    return (Span("too old to train, by how long they took: ", Tone.DIM), Span(shares, Tone.WARN))


def histogram(report: StalenessReport, mark: int, width: int) -> list[Line]:
    """Bars of the ready records by age, their numbers, and the bound as a line behind the last age that may train.
    Ages that do not fit on the right are counted together."""
    ages = max([report.bound + 1, mark, *report.ready, *report.under_way])
    digits = len(str(sum(report.ready.values()) + sum(report.under_way.values())))
    cell = max(digits + 2, len(f"{ages}+") + 1, min(_WIDEST, (width - _TITLE) // (ages + 1)))
    last = max(0, min(ages, (width - _TITLE) // cell - 1))
    ready, flying = (_counted(counts, last) for counts in (report.ready, report.under_way))
    lines: list[Line] = []
    highest = max([1, *ready])
    for level in reversed(range(BARS)):
        bars = [filled(count / highest * BARS - level) * (cell - 2) for count in ready]
        lines.append(_row("", bars, cell, report.bound, mark, Tone.ACCENT))
    lines.append(_row("ready", [f"{count or ''}" for count in ready], cell, report.bound, mark, Tone.STRONG))
    lines.append(_row("under way", [f"{count or ''}" for count in flying], cell, report.bound, mark, Tone.DIM))
    names = [f"{age}{'+' if age == last < ages else ''}" for age in range(last + 1)]
    lines.append(_row("age", names, cell, report.bound, mark, Tone.PLAIN))
    return lines


def _counted(counts: dict[int, int], last: int) -> list[int]:
    made = [0] * (last + 1)
    for age, count in counts.items():
        made[min(age, last)] += count
    return made


def _row(title: str, cells: list[str], cell: int, bound: int, mark: int, tone: Tone) -> Line:
    spans = [Span(f"{title:<{_TITLE}}", Tone.DIM)]
    for age, text in enumerate(cells):
        too_old = age > mark
        spans.append(Span(text.rjust(cell - 1), Tone.DIM if too_old else tone))
        edge = "│" if age == bound else "◆" if age == mark else " "
        spans.append(Span(edge, Tone.BAD if age == bound else Tone.WARN))
    return tuple(spans)
