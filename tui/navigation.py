"""Decides which view fills the screen: the view of a tab, or a page over it; and opens the filter field.

Invariants:
- One view is shown at a time, and `shown` is called only for this view.
- Escape closes pages in the reverse order of their opening.
- The filter belongs to the view in which it was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from textual.containers import Container
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from agentrl.formatting.row_text import row_kind
from agentrl.protocol.rows import AlertRow, AnyRow
from tui.console_interface import Host
from tui.model import event_table
from tui.model.command_line import Destination
from tui.model.pending_commands import line
from tui.model.styled_text import Tone
from tui.views.calls import ToolErrors
from tui.views.detail_pages import AlertPage, RowPage, UnitPage
from tui.views.evaluations import Evaluations
from tui.views.events import Events
from tui.views.logs import Logs
from tui.views.other_models import OtherModels
from tui.views.query_views import QueryTable, StepPage, WaitsPage
from tui.views.records import RecordPage, Records
from tui.views.reviews import Reviews
from tui.views.stored_tables import AccountPage, CheckpointPage, Checkpoints, Keys, TaskPage, Tasks
from tui.views.tools import ToolServers, ToolSessions
from tui.views.tuning import Tuning
from tui.views.view import View

FIRST = "overview"
PAGES: Mapping[str, Callable[[], View]] = {
    "tasks": Tasks,
    "checkpoints": Checkpoints,
    "keys": Keys,
    "review": Reviews,
    "accounting": AccountPage,
    "why": WaitsPage,
    "tools": ToolServers,
    "tool-errors": ToolErrors,
    "evaluations": Evaluations,
    "other-models": OtherModels,
}
"""Pages that have no digit."""
SUBJECT_PAGES: Mapping[str, Callable[[str], View]] = {
    "record": RecordPage,
    "task": TaskPage,
    "step": StepPage,
    "checkpoint": CheckpointPage,
}
"""Pages of one thing, by its id."""
FILTER = "filter"


W = TypeVar("W", bound=Widget)


class NavigatedApp(Host, Protocol):
    """The interface of the application that navigation needs besides `Host`."""

    def query_one(self, selector: str, expect_type: type[W]) -> W: ...
    async def take_waiting_keys(self) -> None: ...
    def exit(self, result: int) -> None: ...
    @property
    def screen(self) -> Screen[Any]: ...


class Navigation:
    def __init__(self, console: NavigatedApp, views: Mapping[str, View]) -> None:
        self.tab = FIRST
        self._console = console
        self._views = views
        self._pages: list[View] = []

    @property
    def view(self) -> View:
        """The view that fills the screen."""
        return self._pages[-1] if self._pages else self._views[self.tab]

    def is_shown(self, view: View) -> bool:
        return self.view is view

    # ---- views ----

    def open_tab(self, name: str) -> None:
        while self._pages:
            self._pages.pop().remove()
        if name != self.tab:
            before = self._views[self.tab]
            before.display = False
            before.hidden()
            self.tab = name
        self._show()

    def do_back(self) -> None:
        if self._pages:
            self._pages.pop().remove()
            self._show()
        elif self.view.filter_text:
            self.end_filter(keep=False)
        else:
            self._console.say("This is the first page; q leaves the console.", fleeting=True)

    def go_to(self, destination: Destination) -> None:
        match destination.view:
            case "logs":
                self.open_logs([destination.subject], destination.earlier)
                self.view.take_filter(destination.filter)
            case "runs" if self._console.settings.in_browser:
                self._console.say("A browser page shows one run. Open the list of runs in a terminal.", Tone.WARN)
            case "tools" if destination.subject:
                self.open_page(ToolSessions(destination.subject))
            case "records" if destination.filter or destination.sort:
                self.open_page(Records(destination.filter, destination.sort))
            case name if name in SUBJECT_PAGES:
                self.open_page(SUBJECT_PAGES[name](destination.subject))
            case name if name in PAGES:
                page = PAGES[name]()
                if isinstance(page, QueryTable):
                    page.begin_with_filter(destination.filter)
                self.open_page(page)
            case _:
                self.open_tab(destination.view)
                if isinstance(self.view, Tuning) and destination.subject:
                    self.view.select(destination.subject)
                elif isinstance(self.view, Events):
                    self.view.only(destination.subject)

    def _show(self) -> None:
        self._console.notices.leave()
        self.view.display = True
        self.view.shown()
        self._console.paint_frame()

    # ---- pages ----

    def open_page(self, page: View) -> None:
        """Show a page over this view."""
        self._console.notices.leave()
        self.view.display = False
        self.view.hidden()
        self._pages.append(page)
        self._console.query_one("#views", Container).mount(page)
        self._console.paint_frame()

    async def mounted(self, view: View) -> None:
        """Show a page that is composed now, unless a later key has opened something else, and take the keys that waited
        for it.
        """
        view.ready = True
        if self.view is not view or not view.is_attached:
            return
        if view in self._pages:
            with self._console.guarded(f"show {view.name_in_registry}"):
                view.shown()
        await self._console.take_waiting_keys()

    def open_row(self, key: str) -> None:
        row = self._console.mirror.get(key)
        if row is None:
            self._console.say("This row does not exist any more.")
        else:
            self._open(row, key)

    def open_event(self, row: AnyRow) -> None:
        """The page of an event as it was reported; an operation is read from the mirror, which has its newest state."""
        self._open(row, f"op/{row.id}" if row_kind(row) == "operation" and hasattr(row, "id") else "")

    def _open(self, row: AnyRow, key: str) -> None:
        if isinstance(row, AlertRow):
            self.open_page(AlertPage(row))
        else:
            self.open_page(RowPage(f"{row_kind(row)} {event_table.subject(row)}", row, key))

    def open_record(self, id: str) -> None:
        self.open_page(RecordPage(id))

    def open_unit(self, name: str) -> None:
        self.open_page(UnitPage(name))

    def open_logs(self, units: Sequence[str], life: int = 0) -> None:
        logs = self._views["logs"]
        assert isinstance(logs, Logs)
        logs.open(list(units), life)
        self.open_tab("logs")

    # ---- leaving ----

    def do_quit(self) -> None:
        self._console.exit(0)

    def do_copy_line(self) -> None:
        words = line(self.view.cli_line(), self._console.settings.target_options)
        self._console.copy(words, f"copied: {words}")

    # ---- the filter ----

    def do_filter(self) -> None:
        field = self._field
        field.value = self.view.filter_to_edit
        field.display = True
        # The field opens at once, because the next keys belong to the filter and not to the actions of the view.
        self._console.screen.set_focus(field, scroll_visible=False)

    def filter_typed(self, text: str) -> None:
        if self._field.display and self.view.filters_at_once:
            wrong = self.view.take_filter(text)
            if wrong:
                self._console.say(wrong, Tone.WARN)
            self._console.paint_frame()

    def filter_entered(self, text: str) -> None:
        if not self.view.filters_at_once:
            self.view.take_filter(text.strip())
        self.end_filter(keep=True)

    def end_filter(self, *, keep: bool) -> None:
        self._field.display = False
        if not keep:
            self.view.take_filter("")
        self.view.shown()
        self._console.paint_frame()

    @property
    def _field(self) -> Input:
        return self._console.query_one(f"#{FILTER}", Input)
