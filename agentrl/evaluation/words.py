"""Figures of evaluations as text, for the command line and the console."""

from __future__ import annotations

from agentrl.evaluation.summaries import Compared
from agentrl.formatting.amounts import counted

BAR = 20


def with_margin(value: float | None, margin: float | None, *, sign: str = "") -> str:
    if value is None:
        return ""
    return f"{value:{sign}.3f}" + (f" ± {margin:.3f}" if margin is not None else "")


def bar(value: float | None, cells: int = BAR) -> str:
    """A bar for a share between 0 and 1; empty for any other number."""
    if value is None or not 0 <= value <= 1:
        return ""
    full = round(cells * value)
    return "█" * full + "·" * (cells - full)


def sentence(part: Compared, first: str, second: str) -> str:
    """Whether the second differs from the first."""
    amount = with_margin(part.difference, part.margin, sign="+")
    verdict = "is " + ("better" if part.difference > 0 else "worse") if part.shown else "is not shown to differ"
    return (
        f"{part.part}: {second} {verdict}: {amount} ({part.first:.3f} → {part.second:.3f}) on "
        f"{counted(part.tasks, 'tasks')}, {part.better} better and {part.worse} worse; by chance with {part.chance:.2g}"
    )
