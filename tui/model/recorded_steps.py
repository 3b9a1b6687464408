"""Reads the Steps that a recording contains.

The feed has no rows of Steps. The trainer's row holds the numbers of the newest Step until the next one, so the Steps
up to a time are those that this row reported.

Invariants:
- The Steps up to a time are the newest `most` that were reported, for any order of jumps. While earlier frames are
  unread, their Steps are missing.
- A Step has the numbers of its first report, because later reports also contain later events.
- A Step that a later incarnation of its trainer repeated counts as rolled back.
- Numbers that were not reported are missing, never 0. If Steps are missing between two reports (the feed publishes a
  row at most twice a second, and the coordinator may have been down), the later one has their count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from agentrl.errors import ProtocolError
from agentrl.filters.evaluate import matches
from agentrl.filters.fields import STEPS
from agentrl.filters.parser import parse
from agentrl.protocol.rows import UnitRow
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import decode_row
from agentrl.recording.file_format import Change
from agentrl.telemetry.data_plane_metrics import BASE_VERSION, STEP
from agentrl.telemetry.learning_metrics import OF_STEPS, RECORDS, STEP_SECONDS
from tui.model.step_cache import MOST

Row = Mapping[str, Any]
BATCH = 20
"""Frames that are read before the result is shown."""
_KEPT = 4
"""The Steps of this many positions stay in memory, for jumps back and forth."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """A trainer's report of its newest Step."""

    at: float
    trainer: str
    life: int
    step: int
    numbers: Mapping[str, float]

    @property
    def key(self) -> tuple[str, int, int]:
        return self.trainer, self.life, self.step


@dataclass(frozen=True, slots=True)
class ShownSteps:
    """The Steps up to a time."""

    rows: Sequence[Row] = ()
    """Rows as in lists of Steps, the newest first."""
    more: bool = False
    """There are older Steps."""
    untold: int = 0
    """Steps between them that were not reported."""
    unread: Sequence[int] = field(default=(), compare=False)
    """The frames that have to be read next; empty if the Steps are complete."""


def step_reports(changes: Iterable[Change]) -> list[StepReport]:
    """The Steps that a frame reports, each once, in order of time."""
    found: dict[tuple[str, int, int], StepReport] = {}
    others: set[str] = set()
    for change in changes:
        if not change.key.startswith("unit/") or change.key in others or change.gone:
            continue
        try:
            row = decode_row(change.value)
        except ProtocolError:
            # Playback reports the fault.
            continue
        if isinstance(row, UnitRow) and row.role == Role.TRAINER:
            step = row.metrics.get(STEP.name)
            if step is not None and math.isfinite(step):
                report = StepReport(change.at, row.unit, row.incarnation, int(step), row.metrics)
                found.setdefault(report.key, report)
        else:
            others.add(change.key)
    return list(found.values())


class RecordedSteps:
    """The Steps of the frames that were read."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._frames: dict[int, list[StepReport]] = {}
        self._known = 0
        """Count of the frames that were read."""
        self._last: tuple[object, ShownSteps] = (None, ShownSteps())

    def keep(self, index: int, found: list[StepReport]) -> None:
        """A frame was read."""
        if index not in self._frames:
            self._known += 1
            self._frames[index] = found

    def steps_at(self, index: int, at: float) -> ShownSteps:
        """The Steps up to a time in this frame. Returns the same object while nothing changes."""
        present = [report for report in self._frames.get(index, ()) if report.at <= at]
        moment = (index, len(present), self._known)
        if self._last[0] != moment:
            self._last = moment, self._gathered(index, present)
        return self._last[1]

    def _gathered(self, index: int, present: list[StepReport]) -> ShownSteps:
        first = index
        known = {report.key: report for report in present}
        while first > 0 and len(known) <= self.most and (found := self._frames.get(first - 1)) is not None:
            first -= 1
            known |= {report.key: report for report in found}
        whole = first <= 0 or len(known) > self.most
        rows = step_rows(sorted(known.values(), key=lambda report: (report.at, report.life, report.step)))
        self._forget(first, index)
        unread = () if whole else tuple(range(first - 1, max(-1, first - 1 - BATCH), -1))
        shown = rows[: self.most]
        untold = sum(row.get("untold", 0) for row in shown[:-1])
        return ShownSteps(shown, not whole or len(rows) > self.most, untold, unread)

    def _forget(self, first: int, last: int) -> None:
        """Forgets frames that are not needed now, if too many Steps are in memory."""
        if sum(map(len, self._frames.values())) > _KEPT * self.most + len(self._frames):
            self._frames = {index: found for index, found in self._frames.items() if first <= index <= last}


def step_rows(reports: Sequence[StepReport]) -> list[Row]:
    """Rows of reports, the newest first. The reports are in order of time."""
    begun: dict[str, dict[int, int]] = {}
    """The first Step of each incarnation, by trainer."""
    for report in reports:
        begun.setdefault(report.trainer, {}).setdefault(report.life, report.step)
    again = {trainer: _taken_again_from(lives) for trainer, lives in begun.items()}
    rows, last = list[Row](), dict[str, int]()
    for report in reports:
        untold = report.step - last.get(report.trainer, report.step) - 1
        last[report.trainer] = report.step
        rolled_back = report.step >= again[report.trainer][report.life]
        rows.append(_row(report, rolled_back=rolled_back, untold=max(0, untold)))
    return rows[::-1]


def _taken_again_from(begun: Mapping[int, int]) -> dict[int, float]:
    """Return for each incarnation the lowest Step with which a later incarnation began."""
    found: dict[int, float] = {}
    least = math.inf
    for life in sorted(begun, reverse=True):
        found[life] = least
        least = min(least, begun[life])
    return found


def _row(report: StepReport, *, rolled_back: bool, untold: int) -> Row:
    """`untold` Steps before this one were not reported."""
    numbers = report.numbers
    at = datetime.fromtimestamp(report.at, UTC)
    row: dict[str, Any] = {
        "id": f"{report.trainer}.{report.life}/{report.step:06d}",
        "step": report.step,
        "status": "rolled_back" if rolled_back else "committed",
        "committed_at": at,
        "metrics": {metric.name: numbers[metric.name] for metric in OF_STEPS if metric.name in numbers},
    }
    if math.isfinite(version := numbers.get(BASE_VERSION.name, math.nan)):
        row["base_version"] = int(version)
    if math.isfinite(records := numbers.get(RECORDS.name, math.nan)):
        row["counts"] = {"records": int(records)}
    if untold:
        row["untold"] = untold
    if (took_s := numbers.get(STEP_SECONDS.name)) is not None and 0 <= took_s <= report.at:
        row |= {"duration_s": took_s, "leased_at": at - timedelta(seconds=took_s)}
    return row


def chosen(rows: Iterable[Row], filter: str, now: float) -> list[Row]:
    """The rows that match a filter. Raises FilterError."""
    expression, at = parse(filter, STEPS), datetime.fromtimestamp(now, UTC)
    return [row for row in rows if matches(expression, row, at)]
