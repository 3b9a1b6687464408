"""Shows where the suite is: a line every few seconds in a log, one part of the screen on a terminal.

The time left is what the remaining files took when they were recorded, corrected by how much longer those before took.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from tests.suite.lanes import Lane
from tests.suite.results import Results
from tests.suite.schedule import Batch

LOG_EVERY_S = 10.0
SCREEN_EVERY_S = 0.5
TRUSTED_AFTER_S = 60.0
"""Before this much is done, the recorded times count as they are."""


class Progress:
    def __init__(self, lanes: int, results: Results, *, out: TextIO = sys.stdout) -> None:
        self._lanes = lanes
        self._results = results
        self._out = out
        self._live = out.isatty()
        self._begun_at = time.monotonic()
        self._shown_at = 0.0
        self._height = 0

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._out, flush=True)

    def show(self, running: Sequence[Lane], waiting: Sequence[Batch], *, now: float) -> None:
        if now - self._shown_at < (SCREEN_EVERY_S if self._live else LOG_EVERY_S):
            return
        self._shown_at = now
        line = self._line(running, waiting, now)
        if not self._live:
            names = ", ".join(lane.batch.name for lane in running)
            print(f"{line} · {names}", file=self._out, flush=True)
            return
        self._clear()
        width = shutil.get_terminal_size().columns
        lines = [line, *(f"  {now - lane.begun_at:4.0f} s  {lane.now or lane.batch.name}" for lane in running)]
        print(*(text[: width - 1] for text in lines), sep="\n", file=self._out, flush=True)
        self._height = len(lines)

    def end(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._height:
            print(f"\033[{self._height}F\033[J", end="", file=self._out, flush=True)
            self._height = 0

    def _line(self, running: Sequence[Lane], waiting: Sequence[Batch], now: float) -> str:
        counts = self._results
        expected = counts.done + sum(batch.tests for batch in waiting)
        expected += sum(max(0, lane.tests - len(lane.results)) for lane in running)
        left_s = self._left_s(running, waiting, now)
        return (
            f"{clock(now - self._begun_at)}  {counts.done:,} of about {expected:,} tests: {counts.passed:,} passed, "
            f"{counts.failed} failed, {counts.skipped} skipped · about {clock(left_s)} left"
        )

    def _left_s(self, running: Sequence[Lane], waiting: Sequence[Batch], now: float) -> float:
        done_s, expected_s = self._results.lane_s, self._results.expected_lane_s
        slower = done_s / expected_s if expected_s > TRUSTED_AFTER_S else 1.0
        begun = [lane.batch.wall_s * slower - (now - lane.begun_at) for lane in running]
        whole_s = sum(max(0.0, left_s) for left_s in begun) + slower * sum(batch.wall_s for batch in waiting)
        longest_s = max([*begun, 0.0])
        return max(whole_s / self._lanes, longest_s)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
