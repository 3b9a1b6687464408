"""Shows the training demo: a live picture in a terminal, otherwise a line every few seconds.

Invariants:
- The picture fits into 80 columns and a few lines.
- Text of units is never parsed as markup and has no control codes.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from agentrl.cli.output import cell, sanitise
from agentrl.protocol.rows import UnitRow
from assets.training_state import Figures, sparkline

PRINT_EVERY_S = 10.0
"""Seconds between two lines without a terminal."""
RATE_OVER_S = 2.0
RECENT = 5
"""Steps of the mean reward."""
BAR_WIDTH = 60
PRINTED = ("version", "reward", "held out", "tool errors", "trainer")
"""Columns without a terminal. The status of the trainer may be long, so it comes last."""
LINE_CHARS = 120
"""Length of a line without a terminal."""
_WARM_UP = re.compile(r"warm-up: step (\d+) of (\d+)")

Show = Callable[[UnitRow | None, Figures], None]
Lines = list[tuple[str, str]]


class Screen:
    """Shows the row of the trainer and the state of the store."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._began = time.monotonic()
        self._counted_at, self._tokens, self._rate = 0.0, 0, 0.0
        self._printed_at = float("-inf")

    @contextmanager
    def shown(self) -> Iterator[Show]:
        if not self._console.is_terminal:
            yield self._print
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            yield lambda trainer, now: live.update(self.picture(trainer, now))

    def picture(self, trainer: UnitRow | None, now: Figures) -> Group:
        what, done, total = self._progress(trainer, now)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, value in self._lines(trainer, now):
            table.add_row(name, cell(value))
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=total, completed=done, width=BAR_WIDTH), cell(f"{what} {done} of {total}"))
        return Group(bar, table)

    def _progress(self, trainer: UnitRow | None, now: Figures) -> tuple[str, int, int]:
        printed = _WARM_UP.match(trainer.status) if trainer is not None and now.version is None else None
        return ("warm-up", int(printed[1]), int(printed[2])) if printed else ("step", now.committed, self._steps)

    def _print(self, trainer: UnitRow | None, now: Figures) -> None:
        if time.monotonic() - self._printed_at < PRINT_EVERY_S:
            return
        self._printed_at = time.monotonic()
        what, done, total = self._progress(trainer, now)
        newest = dataclasses.replace(now, held_out=dict(list(now.held_out.items())[-1:]))
        lines = dict(self._lines(trainer, newest, curve=False))
        printed = "; ".join(f"{name} {lines[name]}" for name in PRINTED if lines[name])
        seconds = time.monotonic() - self._began
        line = f"  {seconds:4.0f} s  {what} {done} of {total}; {sanitise(printed)}"
        self._console.print(
            line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _lines(self, trainer: UnitRow | None, now: Figures, *, curve: bool = True) -> Lines:
        recent = now.rewards[-RECENT:]
        reward = f"{sum(recent) / len(recent):.2f}" if recent else ""
        reward += f" {sparkline(now.rewards)}" if recent and curve else ""
        return [
            ("trainer", "" if trainer is None else trainer.status or trainer.state),
            ("version", "" if now.version is None else str(now.version)),
            ("reward", reward),
            ("held out", ", ".join(f"v{version} {mean:.2f}" for version, mean in now.held_out.items())),
            ("staleness", "" if now.staleness is None else f"{now.staleness:.2f} publications"),
            ("tokens/s", f"{self._tokens_per_s(now):.0f}" if now.tokens else ""),
            ("tool errors", f"{now.tool_errors} of {now.tool_calls}" if now.tool_calls else ""),
        ]

    def _tokens_per_s(self, now: Figures) -> float:
        at = time.monotonic()
        if at - self._counted_at >= RATE_OVER_S:
            if self._counted_at:
                self._rate = (now.tokens - self._tokens) / (at - self._counted_at)
            self._counted_at, self._tokens = at, now.tokens
        return self._rate
