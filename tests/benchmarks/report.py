"""Represents the result of a benchmark and prints it as table, JSON and Markdown.

Invariant: a line with an aim shows whether it was reached; a line without one is for orientation only.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass
class Line:
    """One figure in `unit`, and the figure of its peer."""

    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    aim: str = ""
    reached: bool | None = None


@dataclass
class Outcome:
    """All figures of one benchmark."""

    title: str
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def faster(self, what: str, value: float, unit: str, peer: str, peer_value: float, by: float = 0.0) -> None:
        """Less is better. The ratio is how many times longer the peer takes; `by=0` sets no aim."""
        ratio = peer_value / value
        aim = f"{by:g}× faster" if by > 1 else "faster" if by else ""
        self.lines.append(Line(what, value, unit, peer, peer_value, ratio, aim, ratio >= by if by else None))

    def smaller(self, what: str, value: float, unit: str, peer: str, peer_value: float, by: float) -> None:
        """Less is better. The ratio is how many times larger the peer's figure is."""
        ratio = peer_value / value
        self.lines.append(Line(what, value, unit, peer, peer_value, ratio, f"{by:g}× smaller", ratio >= by))

    def within(self, what: str, value: float, unit: str, peer: str, peer_value: float, factor: float) -> None:
        """Less is better: at most `factor` times the peer's figure."""
        ratio = value / peer_value
        self.lines.append(Line(what, value, unit, peer, peer_value, ratio, f"≤ {factor:g}×", ratio <= factor))

    def share(self, what: str, value: float, unit: str, peer: str, peer_value: float, least: float) -> None:
        """More is better: at least this share of the peer's figure; `least=0` sets no aim."""
        ratio = value / peer_value
        aim, reached = (f"≥ {least:g}", ratio >= least) if least else ("", None)
        self.lines.append(Line(what, value, unit, peer, peer_value, ratio, aim, reached))

    def at_most(self, what: str, value: float, unit: str, limit: float) -> None:
        self.lines.append(Line(what, value, unit, aim=f"≤ {limit:g} {unit}", reached=value <= limit))

    def plain(self, what: str, value: float, unit: str) -> None:
        self.lines.append(Line(what, value, unit))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]


COLUMNS = ("", "value", "peer", "its value", "ratio", "aim", "reached")


def show(outcome: Outcome, console: Console) -> None:
    table = Table(title=outcome.title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("", "peer", "aim", "reached") else "right")
    for line in outcome.lines:
        table.add_row(*_cells(line))
    console.print(table)
    for note in outcome.notes:
        console.print(f"  {note}", style="dim", highlight=False)


def as_markdown(outcomes: dict[str, Outcome]) -> str:
    """The section of figures in docs/benchmarks.md."""
    parts = [", ".join(f"{key} {value}" for key, value in machine().items()) + "."]
    for name, outcome in outcomes.items():
        rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_cells, outcome.lines)]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
        parts += [f"### {name}: {outcome.title}", table, *outcome.notes]
    return "\n\n".join(parts)


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.what,
        f"{_short(line.value)} {line.unit}".strip(),
        line.peer,
        "" if line.peer_value is None else f"{_short(line.peer_value)} {line.unit}",
        "" if line.ratio is None else _short(line.ratio),
        line.aim,
        "" if line.reached is None else "yes" if line.reached else "NO",
    )


def as_json(outcomes: dict[str, Outcome], failed: dict[str, str]) -> str:
    benchmarks = {name: asdict(outcome) for name, outcome in outcomes.items()}
    return json.dumps({"machine": machine(), "benchmarks": benchmarks, "failed": failed}, indent=1)


def machine() -> dict[str, Any]:
    """The machine, and its load."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
