"""Prints the tables of docs/questions/metrics.md: `python -m agentrl.telemetry.metric_table`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agentrl.telemetry import data_plane_metrics, learning_metrics
from agentrl.telemetry.control_plane_metrics import Metric

_COLUMNS = ("metric", "unit", "what", "healthy")


def tables() -> str:
    """In Markdown: metrics of steps, of the trainer between steps, and of other units."""
    of_units = [value for value in vars(data_plane_metrics).values() if isinstance(value, Metric)]
    parts = (
        ("Of a step", learning_metrics.OF_STEPS),
        ("Of the trainer", learning_metrics.OF_THE_TRAINER),
        ("Of other units", of_units),
    )
    return "\n".join(f"## {title}\n\n{_table(metrics)}" for title, metrics in parts)


def _table(metrics: Iterable[Metric]) -> str:
    lines = [_line(_COLUMNS), _line(("---",) * len(_COLUMNS))]
    lines += [_line((f"`{one.name}`", one.unit, one.help, _healthy(one))) for one in metrics]
    return "\n".join(lines) + "\n"


def _healthy(metric: Metric) -> str:
    if metric.normal is None:
        return ""
    low, high = metric.normal
    if low == high:
        return f"{low:g}"
    if math.isinf(high):
        return f"at least {low:g}"
    return f"at most {high:g}" if math.isinf(low) or low == 0 else f"{low:g} to {high:g}"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(tables(), end="")
