"""The runs of this user, and the way from one to another.

Invariants: what is chosen is chosen by name or key file at the key press; the run that is left goes on, and nothing of
its screens comes along; ages are counted by the clock on the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from agentrl.client import Client
from agentrl.errors import AgentrlError
from tui import recording_lookup
from tui import run_list as finding
from tui.connection import Connection
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import runs
from tui.model.mirror import Mirror
from tui.model.runs import Place, RunLine
from tui.model.styled_text import Tone, span
from tui.model.table import Column
from tui.playback_connection import Replay
from tui.views.query_views import QueryTable

LAST = "-10m"
"""Where the recording of a run that is down is entered: before its end."""


class Runs(QueryTable):
    name_in_registry = "runs"
    what = "runs"
    filled_by = "`agentrl up FILE` starts one, and f opens one elsewhere"
    first_sort = "state"
    filters_at_once = True

    def columns(self) -> tuple[Column[RunLine], ...]:
        return runs.columns()

    def now(self) -> float:
        """The runs are as they are now, also while a recording plays another time."""
        return super().now() if self.console_app.replay is None else time.time()

    async def answered(self) -> dict[str, RunLine]:
        console = self.console_app
        shown = console.mirror.run.uuid if console.mirror.run and console.replay is None else ""
        return dict(runs.by_key(await finding.seen(console.settings.key_files, shown)))

    async def ask(self, client: Client) -> dict[str, RunLine]:
        return await self.answered()

    def apply_filter(self, words: frozenset[str]) -> None:
        self.table.model.filter((lambda row: runs.keeps(words, row)) if words else None)

    def cli_line(self) -> tuple[str, ...]:
        return ("runs", "list")

    def do_drill(self) -> None:
        row: RunLine | None = self._target()
        if row is None:
            return
        if row.here:
            self.console_app.say(f"{row.name} is what you see.")
        elif row.up:
            self._go(row.place, row.name)
        elif row.state == "damaged":
            self.console_app.say(row.why, Tone.BAD)
        else:
            self._offer_replay(row)

    def _go(self, place: Place, name: str) -> None:
        self._switch(lambda: finding.link(place), place, name)

    def _switch(self, link: Callable[[], Callable[[Mirror], Connection | Replay]], place: Place, name: str) -> None:
        try:
            found = link()
        except AgentrlError as error:
            self.console_app.say(str(error), Tone.WARN)
        else:
            self.console_app.follow(found, place, name)

    def _offer_replay(self, row: RunLine) -> None:
        def then(values: Values | None) -> None:
            if values is not None:
                self._switch(lambda: recording_lookup.of_run(row.name, LAST), row.place, row.name)

        lines = (
            (span("Nobody keeps it. What was recorded of it can be played, on these screens."),),
            (span(f"To have it up again: agentrl up --run {row.name}", Tone.DIM),),
        )
        question = Question(f"{row.name} is down", lines, go_on="play its recording")
        self.console_app.push_screen(Form(question), then)

    def do_runs_key(self) -> None:
        def wrong(values: Values) -> str:
            if not values[0].strip():
                return "Type the path of a key file."
            return "" if Path(values[0].strip()).expanduser().is_file() else "There is no such file."

        def then(values: Values | None) -> None:
            if values is not None:
                path = str(Path(values[0].strip()).expanduser().absolute())
                self.console_app.add_key_file(path)
                self._go(Place(key_file=path), Path(path).stem)

        question = Question("A run elsewhere", (), (Field("key file", hint="ann.key"),), "go there", wrong)
        self.console_app.push_screen(Form(question), then)
