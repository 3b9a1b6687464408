"""Steps as a recording tells them.

No row of a feed is a Step: its trainer reports the numbers of the newest one, and they stand in the trainer's row until
there is another. So the Steps of a moment are those that this row has told of up to then.

Invariants: what a frame tells follows from that frame alone; the Steps of a moment are the newest `most` that were told
of until then, whichever way one came there, and while frames are still unread they end where the unread ones begin; a
Step is as it was told first, because later its row says also what came after it; a Step that a later life of its
trainer took again was rolled back; what was not told is missing, never 0, and where the numbers of Steps leave a gap
(a feed tells of a row at most twice a second, and a coordinator may have been away), the next one says so.
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
from agentrl.telemetry.learning import OF_STEPS, RECORDS, STEP_SECONDS
from agentrl.telemetry.services import BASE_VERSION, STEP
from tui.model.step_cache import MOST

Row = Mapping[str, Any]
BATCH = 20
"""Frames that are read before anything of them is shown."""
_KEPT = 4
"""So many times the Steps of a moment are remembered, for those who go back and forth."""


@dataclass(frozen=True, slots=True)
class Telling:
    """What a trainer told of its newest Step, and when."""

    at: float
    trainer: str
    life: int
    step: int
    numbers: Mapping[str, float]

    @property
    def key(self) -> tuple[str, int, int]:
        return self.trainer, self.life, self.step


@dataclass(frozen=True, slots=True)
class Told:
    """The Steps of a moment."""

    rows: Sequence[Row] = ()
    """As lists of Steps have them, the newest first."""
    more: bool = False
    """There are older ones."""
    untold: int = 0
    """Steps between them that nobody told of."""
    unread: Sequence[int] = field(default=(), compare=False)
    """The frames that have to be read next for what is missing; none where nothing is."""


def tellings(changes: Iterable[Change]) -> list[Telling]:
    """The Steps that a frame tells of, each once, in the order of their times."""
    found: dict[tuple[str, int, int], Telling] = {}
    others: set[str] = set()
    for change in changes:
        if not change.key.startswith("unit/") or change.key in others or change.gone:
            continue
        try:
            row = decode_row(change.value)
        except ProtocolError:
            # The player tells of it.
            continue
        if isinstance(row, UnitRow) and row.role == Role.TRAINER:
            step = row.metrics.get(STEP.name)
            if step is not None and math.isfinite(step):
                telling = Telling(change.at, row.unit, row.incarnation, int(step), row.metrics)
                found.setdefault(telling.key, telling)
        else:
            others.add(change.key)
    return list(found.values())


class Retelling:
    """The frames of a recording that were read for their Steps."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._frames: dict[int, list[Telling]] = {}
        self._known = 0
        """Raised with every frame that is read."""
        self._last: tuple[object, Told] = (None, Told())

    def keep(self, index: int, found: list[Telling]) -> None:
        """A frame was read."""
        if index not in self._frames:
            self._known += 1
            self._frames[index] = found

    def told(self, index: int, at: float) -> Told:
        """The Steps of a moment, which lies in this frame; the same object as long as there is no news."""
        present = [telling for telling in self._frames.get(index, ()) if telling.at <= at]
        moment = (index, len(present), self._known)
        if self._last[0] != moment:
            self._last = moment, self._gathered(index, present)
        return self._last[1]

    def _gathered(self, index: int, present: list[Telling]) -> Told:
        first = index
        known = {telling.key: telling for telling in present}
        while first > 0 and len(known) <= self.most and (found := self._frames.get(first - 1)) is not None:
            first -= 1
            known |= {telling.key: telling for telling in found}
        whole = first <= 0 or len(known) > self.most
        rows = rows_of(sorted(known.values(), key=lambda telling: (telling.at, telling.life, telling.step)))
        self._forget(first, index)
        unread = () if whole else tuple(range(first - 1, max(-1, first - 1 - BATCH), -1))
        shown = rows[: self.most]
        untold = sum(row.get("untold", 0) for row in shown[:-1])
        return Told(shown, not whole or len(rows) > self.most, untold, unread)

    def _forget(self, first: int, last: int) -> None:
        """What the moment does not need, where too much is remembered."""
        if sum(map(len, self._frames.values())) > _KEPT * self.most + len(self._frames):
            self._frames = {index: found for index, found in self._frames.items() if first <= index <= last}


def rows_of(told: Sequence[Telling]) -> list[Row]:
    """The newest first; `told` is in the order of time."""
    begun: dict[str, dict[int, int]] = {}
    """The first Step of each life, by trainer."""
    for telling in told:
        begun.setdefault(telling.trainer, {}).setdefault(telling.life, telling.step)
    again = {trainer: _taken_again_from(lives) for trainer, lives in begun.items()}
    rows, last = list[Row](), dict[str, int]()
    for telling in told:
        untold = telling.step - last.get(telling.trainer, telling.step) - 1
        last[telling.trainer] = telling.step
        rolled_back = telling.step >= again[telling.trainer][telling.life]
        rows.append(_row(telling, rolled_back=rolled_back, untold=max(0, untold)))
    return rows[::-1]


def _taken_again_from(begun: Mapping[int, int]) -> dict[int, float]:
    """The least Step that a later life began with, for each life."""
    found: dict[int, float] = {}
    least = math.inf
    for life in sorted(begun, reverse=True):
        found[life] = least
        least = min(least, begun[life])
    return found


def _row(telling: Telling, *, rolled_back: bool, untold: int) -> Row:
    """`untold` Steps were trained between the one that was told before and this one."""
    numbers = telling.numbers
    at = datetime.fromtimestamp(telling.at, UTC)
    row: dict[str, Any] = {
        "id": f"{telling.trainer}.{telling.life}/{telling.step:06d}",
        "step": telling.step,
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
    if (took_s := numbers.get(STEP_SECONDS.name)) is not None and 0 <= took_s <= telling.at:
        row |= {"duration_s": took_s, "leased_at": at - timedelta(seconds=took_s)}
    return row


def chosen(rows: Iterable[Row], filter: str, now: float) -> list[Row]:
    """Those that a filter wants. FilterError says where it is wrong."""
    expression, at = parse(filter, STEPS), datetime.fromtimestamp(now, UTC)
    return [row for row in rows if matches(expression, row, at)]
