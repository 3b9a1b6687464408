"""Shows the list of runs, and switches to another run.

Invariants:
- The target is fixed by name or key file at the key press.
- The run that the console leaves keeps running, and its screens are dropped.
- Ages are counted by the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from agentrl.client import Client
from agentrl.config import typed_paths
from agentrl.errors import AgentrlError
from tui import recording_lookup, run_list
from tui.connection import Connection
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import cell_text
from tui.model.mirror import Mirror
from tui.model.styled_text import Span, Tone, span
from tui.model.table import Column
from tui.playback_connection import PlaybackConnection
from tui.run_list import Place, RunLine
from tui.views.query_views import QueryTable

LAST = "-10m"
"""Where the recording of a run that is down begins: before its end."""


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


class Runs(QueryTable):
    name_in_registry = "runs"
    what = "runs"
    filled_by = "`agentrl up FILE` starts one, and f opens one elsewhere"
    first_sort = "state"
    filters_at_once = True

    def columns(self) -> tuple[Column[RunLine], ...]:
        return columns()

    def now(self) -> float:
        """The present time, also while a recording plays another one."""
        return super().now() if self.actions.playback is None else time.time()

    async def answered(self) -> dict[str, RunLine]:
        run = self.mirror.run if self.actions.playback is None else None
        return {
            line.key: line for line in await run_list.seen(self.actions.settings.key_files, run.uuid if run else "")
        }

    async def ask(self, client: Client) -> dict[str, RunLine]:
        return await self.answered()

    def searched_text(self, row: RunLine) -> str:
        return f"{row.name} {row.state} {row.where} {row.why}"

    def cli_line(self) -> tuple[str, ...]:
        return ("runs", "list")

    def open_row(self, row: RunLine) -> None:
        if row.here:
            self.actions.say(f"{row.name} is on the screen now.")
        elif row.up:
            self._go(row.place, row.name)
        elif row.state == "damaged":
            self.actions.say(row.why, Tone.BAD)
        else:
            self._offer_playback(row)

    def _go(self, place: Place, name: str) -> None:
        self._switch(lambda: run_list.link(place), place, name)

    def _switch(
        self, link: Callable[[], Callable[[Mirror], Connection | PlaybackConnection]], place: Place, name: str
    ) -> None:
        try:
            found = link()
        except AgentrlError as error:
            self.actions.say(str(error), Tone.WARN)
        else:
            self.actions.follow(found, place, name)

    def _offer_playback(self, row: RunLine) -> None:
        def then(values: Values | None) -> None:
            if values is not None:
                self._switch(lambda: recording_lookup.of_run(row.name, LAST), row.place, row.name)

        lines = (
            (span("Its processes have ended. Its recording can be played on these screens."),),
            (span(f"To start it again: agentrl up --run {row.name}", Tone.DIM),),
        )
        question = Question(f"{row.name} is down", lines, go_on="play its recording")
        self.app.push_screen(Form(question), then)

    def do_runs_key(self) -> None:
        def wrong(values: Values) -> str:
            if not values[0].strip():
                return "Type the path of a key file."
            return "" if typed_paths.is_file(values[0].strip()) else "There is no such file."

        def then(values: Values | None) -> None:
            if values is not None:
                path = str(typed_paths.path_of(values[0].strip()).absolute())
                self.actions.add_key_file(path)
                self._go(Place(key_file=path), Path(path).stem)

        question = Question("A run elsewhere", (), (Field("key file", hint="ann.key"),), "go there", wrong)
        self.app.push_screen(Form(question), then)
