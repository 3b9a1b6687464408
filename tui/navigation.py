"""What fills the screen: the view of a tab, or a page over it; and the filter of what is seen.

Invariants: one view is seen at a time, and only it is told `shown`; escape leads back the way that pages were opened;
what is typed into the filter is for the view that was seen when it was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual.widgets import Input

from agentrl.formatting.row_text import kind_of
from agentrl.protocol.rows import AlertRow, AnyRow
from tui.model import event_table
from tui.model.command_line import Destination
from tui.model.styled_text import Tone
from tui.views.detail_pages import AlertPage, RowPage, UnitPage
from tui.views.failed_calls import FailedCalls, ToolErrors
from tui.views.logs import Logs
from tui.views.records import RecordPage
from tui.views.stored_tables import AccountPage, Checkpoints, Keys, Tasks
from tui.views.tuning import Tuning
from tui.views.view import View
from tui.views.wait_chain import WaitsPage

if TYPE_CHECKING:
    from tui.app import Console

FIRST = "overview"
PAGES: Mapping[str, Callable[[], View]] = {
    "tasks": Tasks,
    "checkpoints": Checkpoints,
    "keys": Keys,
    "accounting": AccountPage,
}
"""What has no digit of their own."""
FILTER = "filter"


class Navigation:
    """Where a person is, and how to get elsewhere."""

    def __init__(self, console: Console, views: Mapping[str, View]) -> None:
        self.tab = FIRST
        self._console = console
        self._views = views
        self._pages: list[View] = []

    @property
    def view(self) -> View:
        """What fills the screen now."""
        return self._pages[-1] if self._pages else self._views[self.tab]

    # ---- going somewhere ----

    def do_go(self, name: str) -> None:
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

    def look(self, look: Destination) -> None:
        """Where a typed line or a suggestion leads."""
        match look.view:
            case "logs":
                self.open_logs([look.subject], look.earlier)
            case "runs" if self._console.settings.in_browser:
                self._console.say("A page shows one run; the list of runs is for a terminal.", Tone.WARN)
            case "why":
                self.do_why()
            case name if name in PAGES:
                self.open_page(PAGES[name]())
            case _:
                self.do_go(look.view)
                if isinstance(self.view, Tuning) and look.subject:
                    self.view.select(look.subject)

    def _show(self) -> None:
        self._console.notices.leave()
        self.view.display = True
        self.view.shown()
        self._console.paint_chrome()

    # ---- pages ----

    def open_page(self, page: View) -> None:
        """Over what is seen now; escape leads back."""
        self._console.notices.leave()
        self.view.display = False
        self.view.hidden()
        self._pages.append(page)
        self._console.query_one("#views").mount(page)
        self._console.call_after_refresh(self._come_into_sight, page)
        self._console.paint_chrome()

    def _come_into_sight(self, page: View) -> None:
        """Unless somebody has gone on meanwhile."""
        if self.view is page and page.is_attached:
            page.shown()

    def open_row(self, key: str) -> None:
        """The page of a row of the mirror."""
        row = self._console.mirror.get(key)
        if row is None:
            self._console.say("It is not known any more.")
        else:
            self._open(row, key)

    def open_happening(self, row: AnyRow) -> None:
        """The page of something that happened, as it was told; what an operation has come to is in the mirror."""
        self._open(row, f"op/{row.id}" if kind_of(row) == "operation" and hasattr(row, "id") else "")

    def _open(self, row: AnyRow, key: str) -> None:
        if isinstance(row, AlertRow):
            self.open_page(AlertPage(row))
        else:
            self.open_page(RowPage(f"{kind_of(row)} {event_table.subject(row)}", row, key))

    def do_list_tasks(self) -> None:
        self.open_page(Tasks())

    def do_list_account(self) -> None:
        self.open_page(AccountPage())

    def do_list_checkpoints(self) -> None:
        self.open_page(Checkpoints())

    def do_list_keys(self) -> None:
        self.open_page(Keys())

    def open_record(self, id: str) -> None:
        self.open_page(RecordPage(id))

    def open_unit(self, name: str) -> None:
        self.open_page(UnitPage(name))

    def open_tool_errors(self) -> None:
        self.open_page(ToolErrors())

    def open_failed_calls(self) -> None:
        self.open_page(FailedCalls())

    def open_logs(self, units: Sequence[str], life: int = 0) -> None:
        logs = self._views["logs"]
        assert isinstance(logs, Logs)
        logs.open(list(units), life)
        self.do_go("logs")

    def do_why(self) -> None:
        self.open_page(WaitsPage())

    # ---- the filter ----

    def do_filter(self) -> None:
        field = self._field
        field.value = self.view.filter_text
        field.display = True
        # At once: what is typed next belongs to the filter, not to the verbs of the view.
        self._console.screen.set_focus(field, scroll_visible=False)

    def filter_typed(self, text: str) -> None:
        """So far."""
        if self._field.display and self.view.filters_at_once:
            wrong = self.view.take_filter(text)
            if wrong:
                self._console.say(wrong, Tone.WARN)
            self._console.paint_chrome()

    def filter_entered(self, text: str) -> None:
        if not self.view.filters_at_once:
            self.view.take_filter(text.strip())
        self.end_filter(keep=True)

    def end_filter(self, *, keep: bool) -> None:
        self._field.display = False
        if not keep:
            self.view.take_filter("")
        self.view.shown()
        self._console.paint_chrome()

    @property
    def _field(self) -> Input:
        return self._console.query_one(f"#{FILTER}", Input)
