"""Shows the list of steps, the newest first, below their curves; in playback the steps recorded up to the moment shown.

Invariants:
- Table and curves share one cursor, which follows the newest step until a person moves it.
- A tick leads to its event and a step to its records.
- A new event is queried until it is answered.
- In playback everything belongs to the moment shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.errors import AgentrlError
from agentrl.protocol.rows import AnyRow, IncidentRow, OperationRow
from tui.dialogs.palette import Choice, Palette
from tui.model import curves, data_tables, recorded_steps
from tui.model.curves import Chart, Tick
from tui.model.line_plot import AXIS, NEWEST
from tui.model.mirror import Changes
from tui.model.playback import Playback
from tui.model.recorded_steps import ShownSteps
from tui.model.step_cache import NEWEST_FIRST
from tui.model.styled_text import Line, Span, Tone, cut
from tui.model.table import Column, in_order
from tui.playback_connection import PlaybackConnection
from tui.views.detail_pages import DetailPage as PlainPage
from tui.views.query_views import ANSWER_S, ASK_EVERY_S, MOST, QueryTable, StepPage, catch_up
from tui.widgets.lines import Lines

HAPPENINGS = ("operation", "incident")
MOST_HAPPENINGS = 500
MARGIN = 2


class Training(QueryTable):
    name_in_registry = "training"
    what = "steps"
    follows_newest = True
    filled_by = "the trainer makes one of every full batch; 7 shows what is under way, w who waits for whom"
    DEFAULT_CSS = "Training > #curves { height: 55%; } Training.-wide > #curves { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ticks: list[Tick] = []
        self._first: list[str] = []
        """Metrics that were put first."""
        self._top = 0
        """Curves that are scrolled past."""
        self._changes: Changes | None = None
        self._unknown = False
        """An event was not queried successfully yet."""
        self._ask_from = 0.0
        """The clock before which events are not queried again, after a failed query."""
        self._wide = False
        self._shown_steps: tuple[ShownSteps, str, int] | None = None
        """During playback: the steps in the table, their filter, and the requested number."""

    def compose(self) -> ComposeResult:
        yield Lines(self._curves, id="curves")
        yield from super().compose()

    def columns(self) -> tuple[Column[Any], ...]:
        return data_tables.step_columns()

    # ---- data ----

    async def ask(self, client: Client) -> dict[str, Any]:
        """The curves ignore the filter and show the newest steps; the table shows the steps of the filter."""
        steps, filter = self.actions.steps, self.filter_text
        await catch_up(steps, client)
        rows: Sequence[Mapping[str, Any]] = steps.rows
        more = steps.more
        if filter:
            page = await client.list_steps(filter=filter, sort=NEWEST_FIRST, limit=self._wanted, deadline_s=ANSWER_S)
            rows, more = page.rows, bool(page.after)
        return self._first_of(rows, more=more)

    def _first_of(self, rows: Sequence[Mapping[str, Any]], *, more: bool) -> dict[str, Any]:
        self._more = more or len(rows) > self._wanted
        return in_order(rows[: self._wanted])

    async def answered(self) -> dict[str, Any]:
        link = self.actions.connection
        if not isinstance(link, PlaybackConnection):
            return await super().answered()
        await link.read_back()
        return self._of_moment(link.playback)

    def _of_moment(self, playback: Playback) -> dict[str, Any]:
        steps = playback.fill_steps(self.actions.steps)
        self._shown_steps = steps, self.filter_text, self._wanted
        return self._first_of(recorded_steps.chosen(steps.rows, self.filter_text, self.now()), more=steps.more)

    def _show_recorded(self, playback: Playback) -> None:
        """Show the steps of the present moment of a recording."""
        if playback.unread:
            self._ask_now.set()
        if self._shown_steps == (playback.fill_steps(self.actions.steps), self.filter_text, self._wanted):
            return
        try:
            self.take_answer(self._of_moment(playback), self.filter_text)
        except AgentrlError as error:
            self.refused(error)

    def none_yet(self) -> str:
        if self.actions.playback is None:
            return super().none_yet()
        if self.actions.playback.unread:
            return "earlier minutes of the recording are still being read"
        return "up to this moment no trainer's row of the recording had one"

    def heading(self) -> str:
        playback = self.actions.playback
        untold = self._shown_steps[0].untold if self._shown_steps else 0
        between = f", {untold} between them not told" if untold else ""
        return f"{super().heading()}{between}{', still reading' if playback is not None and playback.unread else ''}"

    @property
    def _points(self) -> Sequence[curves.Point]:
        return self.actions.steps.points

    def update(self) -> None:
        changes = self._changes = self._changes or self.mirror.watch("op", "incident", "knob")
        if (playback := self.actions.playback) is not None:
            if changes.take():
                self._happened([*self.mirror.of(OperationRow), *self.mirror.of(IncidentRow)])
            self._show_recorded(playback)
            self._answered_at = self.actions.clock()
        elif not self.is_querying("happenings"):
            self._unknown = bool(changes.take()) or self._unknown
            if self._unknown and self.actions.clock() >= self._ask_from:
                self.run_query(self._ask_happenings, "happenings")
        super().update()

    async def _ask_happenings(self) -> None:
        try:
            found = await self.actions.connection.client.events(HAPPENINGS, limit=MOST_HAPPENINGS)
        except AgentrlError:
            self._ask_from = self.actions.clock() + ASK_EVERY_S
            return
        self._unknown = False
        self._happened(found)
        self.repaint()

    def _happened(self, found: Iterable[AnyRow]) -> None:
        scientific = frozenset(row.name for row in self.mirror.knobs if row.scientific)
        self._ticks = curves.ticks(found, scientific)

    # ---- the curves ----

    def _chart(self, width: int) -> Chart:
        """The chart in a view of this width."""
        room = width - 2 * MARGIN - AXIS - NEWEST
        return Chart(self._points, self._ticks, room, from_the_first=not self.actions.steps.more)

    def _column(self, chart: Chart) -> int | None:
        if self.awaits_rows:
            # The curves may be known from another view before the rows of the table are.
            return chart.columns - 1
        target = self.table.model.target
        return chart.column_of(target[0]) if target else None

    def _metrics(self) -> list[str]:
        known = curves.metrics_of(self._points)
        return [name for name in self._first if name in known] + [name for name in known if name not in self._first]

    def _curves(self, width: int, height: int) -> list[Line]:
        if not self._points:
            # Without an answer the table shows the reason, and in playback steps may not be recorded.
            unknown = self._reason or self.actions.playback is not None
            return [] if unknown else [(Span("  no step is committed yet", Tone.DIM),)]
        chart = self._chart(width)
        cursor, metrics = self._column(chart), self._metrics()
        if not metrics:
            return [cut((Span(" " * MARGIN), *chart.caption(cursor)), width)]
        many = max(1, (height - 1) // (curves.LEAST_LINES + 1))
        self._top = max(0, min(self._top, len(metrics) - many))
        each = (height - 1) // min(many, len(metrics)) - 2
        lines = [chart.caption(cursor)]
        for name in metrics[self._top : self._top + many]:
            lines += chart.curve(name, max(1, each), cursor)
        return [cut((Span(" " * MARGIN), *line), width) for line in lines[:height]]

    def do_curves_step(self, by: int) -> None:
        """One column to the side."""
        chart = self._width_chart()
        column = self._column(chart)
        self._aim(chart, chart.columns - 1 if column is None else column + by)

    def do_curves_to_tick(self, by: int) -> None:
        chart = self._width_chart()
        column = self._column(chart)
        found = chart.neighbour(chart.columns if column is None else column, by)
        if found is None:
            self.actions.say(f"Nothing happened {'before' if by < 0 else 'after'} this.")
        else:
            self._aim(chart, found)

    def _width_chart(self) -> Chart:
        return self._chart(self.query_one("#curves", Lines).size.width)

    def _aim(self, chart: Chart, column: int) -> None:
        point = chart.last_of(max(0, min(chart.columns - 1, column)))
        if point is None:
            return
        if not self.table.model.select(point.id):
            # The step is older than the rows of the table, and the curves have it.
            self._wanted = MOST
            self.table.model.replace(in_order(self.actions.steps.rows))
            self.table.model.select(point.id)
        self.repaint()

    def do_curves_event(self) -> None:
        """Open the event of the tick under the cursor."""
        chart = self._width_chart()
        column = self._column(chart)
        found = chart.ticks.get(column, []) if column is not None else []
        if not found:
            self.actions.say("This step has no event; [ and ] go to the next one.")
        elif len(found) == 1:
            self.actions.navigation.open_event(found[0].row)
        else:
            self._choose(found)

    def _choose(self, found: list[Tick]) -> None:
        by_id = {f"{place}": tick.row for place, tick in enumerate(found)}
        choices = [Choice(id, tick.what, tick.sign) for id, tick in zip(by_id, found, strict=True)]

        def then(id: str | None) -> None:
            row: AnyRow | None = by_id.get(id or "")
            if row is not None:
                self.actions.navigation.open_event(row)

        self.app.push_screen(Palette(choices, hint="which of them"), then)

    def do_curves_metric(self) -> None:
        """Put another metric first."""

        def then(name: str | None) -> None:
            if name is not None:
                self._first = [name, *(each for each in self._first if each != name)]
                self._top = 0
                self.repaint()

        if choices := [Choice(name, name) for name in self._metrics()]:
            self.app.push_screen(Palette(choices, hint="which metric is drawn first"), then)
        else:
            self.actions.say("No step that is shown has a metric.")

    def do_curves_next(self) -> None:
        self._top += 1
        if self._top >= len(self._metrics()):
            self._top = 0
        self.repaint()

    def do_curves_wide(self) -> None:
        """Curves alone, or with the table."""
        self._wide = not self._wide
        self.set_class(self._wide, "-wide")
        self.table.display = not self._wide
        self.call_after_refresh(self.repaint, all=True)

    # ---- the list ----

    def cli_line(self) -> tuple[str, ...]:
        return ("steps", "list", *(("--filter", self.filter_text) if self.filter_text else ()))

    def open_row(self, row: Mapping[str, Any]) -> None:
        id = str(row["id"])
        if self.actions.playback is None:
            self.actions.navigation.open_page(StepPage(id))
        else:
            # The ids of steps in the store are longer.
            same = ("steps", "list", "--filter", f"step={row['step']}")
            lines = partial(data_tables.of_recorded_step, row)
            self.actions.navigation.open_page(PlainPage(id, lines, same))
