"""The runs of this user, and those that a key file opens: one line each, and the columns of their list.

Invariants: a run is known by its uuid, not by its name, where somebody told it; what could not be asked says why, and
nothing is invented in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentrl.protocol.rows import AlertRow, AlertState, AnyRow, RunRow
from tui.model import cell_text
from tui.model.styled_text import Span, Tone, span
from tui.model.table import Column


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is reached: by its name on this host, or by a key file."""

    run: str = ""
    key_file: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """What makes a command line reach it."""
        if self.key_file:
            return ("--key", self.key_file)
        return ("--run", self.run) if self.run else ()


@dataclass(frozen=True, slots=True)
class RunLine:
    place: Place
    name: str
    uuid: str = ""
    state: str = ""
    """As its coordinator says; `down` where there is none, `silent` where it does not answer, `damaged`."""
    began_at: float = 0.0
    step: int | None = None
    alerts: int = 0
    where: str = ""
    why: str = ""
    """Why nobody was asked."""
    here: bool = False
    """The console shows it now."""

    @property
    def key(self) -> str:
        return f"key/{self.place.key_file}" if self.place.key_file else f"run/{self.name}"

    @property
    def up(self) -> bool:
        return self.state not in ("down", "damaged")


def told(place: Place, rows: Iterable[AnyRow], step: int | None, where: str) -> RunLine | None:
    """Of a run whose coordinator answered."""
    found = list(rows)
    run = next((row for row in found if isinstance(row, RunRow)), None)
    if run is None:
        return None
    firing = sum(isinstance(row, AlertRow) and row.state is AlertState.FIRING for row in found)
    return RunLine(place, run.name, run.uuid, run.state, run.started_at, step, firing, where, run.reason)


def columns() -> tuple[Column[RunLine], ...]:
    return (
        Column("run", "RUN", 18, _name, lambda row: row.name),
        Column("state", "STATE", 11, lambda row, now: _state(row), lambda row: (not row.up, row.state)),
        Column(
            "age", "AGE", 5, lambda row, now: Span(cell_text.ago(row.began_at, now)), lambda row: -row.began_at, True
        ),
        Column("step", "STEP", 6, _step, lambda row: -1 if row.step is None else row.step, True, 1),
        Column("alerts", "ALERTS", 6, _alerts, lambda row: row.alerts, True, 2),
        Column("where", "WHERE", 24, lambda row, now: span(row.where, Tone.DIM), lambda row: row.where, rank=3),
        Column("why", "", 8, lambda row, now: span(row.why, Tone.DIM), lambda row: row.why, rank=4, stretches=True),
    )


def _name(row: RunLine, now: float) -> Span:
    return span(f"{row.name}{' ← here' if row.here else ''}", Tone.STRONG)


def _state(row: RunLine) -> Span:
    return span("○ down", Tone.DIM) if row.state == "down" else cell_text.state(row.state)


def _step(row: RunLine, now: float) -> Span:
    return Span("" if row.step is None else f"{row.step}")


def _alerts(row: RunLine, now: float) -> Span:
    return Span(f"! {row.alerts}" if row.alerts else "", Tone.WARN)


def keeps(words: frozenset[str], row: RunLine) -> bool:
    shown = f"{row.name} {row.state} {row.where} {row.why}".casefold()
    return all(word in shown for word in words)


def by_key(lines: Iterable[RunLine]) -> Mapping[str, RunLine]:
    return {line.key: line for line in lines}
