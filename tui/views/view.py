"""Defines the base classes of all views, and the interface of the application for views.

Invariants:
- A view reads the mirror and acts through `Actions`.
- A view holds no connection.
- Keys reach it only through the registry of actions, which calls its `do_...` methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeGuard, TypeVar, cast

from textual import events
from textual.containers import Vertical

from agentrl.protocol.control_commands import WhyReport
from agentrl.protocol.rows import AnyRow
from tui.cli_runner import CliRunner
from tui.command_runner import CommandRunner
from tui.connection import Connection
from tui.console_interface import Host
from tui.export import Exporter
from tui.model.actions import Action
from tui.model.command_line import Destination
from tui.model.mirror import Changes, Mirror
from tui.model.pending_commands import PendingCommand
from tui.model.step_cache import StepCache
from tui.model.styled_text import Tone
from tui.playback_connection import PlaybackConnection
from tui.run_list import Place
from tui.widgets.lines import Painted, Table

R = TypeVar("R", bound=AnyRow)
ROWS_FIRST = 4
"""Lines that the titles and rows of a table get before any other part gets one."""


class Pages(Protocol):
    """The interface for pages that a view may open in its place."""

    def go_to(self, destination: Destination) -> None: ...
    def open_page(self, page: View) -> None: ...
    def open_row(self, key: str) -> None:
        """The page of a row of the mirror."""

    def open_event(self, row: AnyRow) -> None: ...
    def open_unit(self, name: str) -> None: ...
    def open_record(self, id: str) -> None: ...
    def open_logs(self, units: Sequence[str], life: int = 0) -> None: ...
    def do_back(self) -> None: ...
    def is_shown(self, view: View) -> bool: ...
    def mounted(self, view: View) -> Awaitable[None]:
        """The view is composed, so it can take keys."""


class Actions(Host, Protocol):
    """The interface of the application for views."""

    @property
    def navigation(self) -> Pages: ...
    @property
    def commands(self) -> CommandRunner: ...
    @property
    def exporter(self) -> Exporter: ...
    @property
    def cli(self) -> CliRunner: ...
    @property
    def steps(self) -> StepCache:
        """The newest steps, shared by the views that show them."""

    @property
    def why(self) -> WhyReport | None:
        """The newest answer on who waits for whom."""

    @property
    def why_at(self) -> float:
        """The clock of that answer."""

    def allowed(self) -> Iterable[Action]:
        """All actions that this console may do."""

    def follow(self, link: Callable[[Mirror], Connection | PlaybackConnection], place: Place, name: str) -> None:
        """Leave this run and show another one."""

    def add_key_file(self, path: str) -> None:
        """Add a run to the list of runs."""


class View(Vertical):
    """The base of all views, which fill the screen between header and footer."""

    DEFAULT_CSS = "View { height: 1fr; } View Lines { height: auto; }"
    name_in_registry: ClassVar[str]
    shares: ClassVar[tuple[tuple[str, int], ...]] = ()
    """Parts beside the table and the number of lines that each needs, the most important first; rows of the table come
    first."""
    vocabulary: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Short words of this view and their meanings, for its help."""
    filters_at_once: ClassVar[bool] = True
    """The filter is applied while it is typed, not when it is entered."""
    moves: ClassVar[bool] = True
    """Whether the keys that move a cursor or scroll mean something here."""
    ready = False
    """The view is composed and shown; keys for it wait until then."""

    def on_mount(self) -> None:
        self.app.call_later(self.actions.navigation.mounted, self)

    def on_resize(self, event: events.Resize) -> None:
        left = max(0, event.size.height - ROWS_FIRST)
        for id, wanted in self.shares:
            part, taken = self.query_one(f"#{id}"), min(wanted, left)
            part.display, part.styles.height = taken > 0, taken
            left -= taken

    @property
    def actions(self) -> Actions:
        return cast(Actions, self.app)

    @property
    def mirror(self) -> Mirror:
        return self.actions.mirror

    def now(self) -> float:
        """The time that the screens show."""
        return self.actions.now()

    @property
    def fresh(self) -> bool:
        """Whether its rows, apart from the feed, are recent enough for commands."""
        return True

    def perform(self, pending: PendingCommand) -> None:
        """Run a command on the rows that were chosen here."""
        self.actions.commands.perform(pending, self)

    @property
    def awaits_rows(self) -> bool:
        """Whether its first rows or its first answer are still to come; keys that need them wait."""
        return False

    @property
    def filter_text(self) -> str:
        return ""

    @property
    def filter_to_edit(self) -> str:
        """The text in the field of the filter when it opens."""
        return self.filter_text

    def heading(self) -> str:
        """The title for the header; empty if the name of the tab is enough."""
        return ""

    def why_old(self) -> str:
        """The reason why the rows could not be refreshed, as long as it holds."""
        return ""

    def take_filter(self, text: str) -> str:
        """Show only rows that match. Returns the fault of the filter, or an empty string."""
        return ""

    def update(self) -> None:
        """Read new rows and paint them. Called a few times a second while the view is shown."""
        self.repaint()

    def run_query(self, work: Callable[[], Awaitable[None]], group: str) -> None:
        """Start a query unless one of this group is still running: a query restarted at every round never ends."""
        if not self.is_querying(group):
            self.run_worker(work, group=group)

    def is_querying(self, group: str) -> bool:
        return any(each.group == group and each.node is self and not each.is_finished for each in self.workers)

    def repaint(self, *, all: bool = False) -> None:
        for widget in self.query(Painted):
            widget.repaint(all=all)

    def shown(self) -> None:
        """Called when the view appears."""
        self.update()
        focusable = [widget for widget in self.query(Painted) if widget.can_focus]
        if focusable:
            self.screen.set_focus(focusable[0], scroll_visible=False)

    def hidden(self) -> None:
        """Called when the view disappears."""

    def has_use_for(self, action: Action) -> bool:
        """Whether one of its actions can do anything in this run; others are not offered."""
        return True

    def cli_line(self) -> tuple[str, ...]:
        """The words behind `agentrl` that show the same in a shell."""
        return ("status",)

    def do_move(self, how: str) -> None:
        """Move the cursor or scroll: up, down, page-up, page-down, first, last, left, right."""
        raise NotImplementedError


def before_first_rows(mirror: Mirror) -> bool:
    """Whether the first snapshot of the feed is still to come."""
    return not mirror.link.connected and not mirror.link.tries


class TableView(View):
    """A view with one live table."""

    table: Table[Any]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._filter = ""
        self._words: frozenset[str] = frozenset()

    @property
    def filter_text(self) -> str:
        return self._filter

    def take_filter(self, text: str) -> str:
        self._filter = text
        self._words = frozenset(text.casefold().split())
        self.apply_filter()
        self.table.model.aim_first()
        self.table.repaint()
        return ""

    def apply_filter(self) -> None:
        self.table.model.filter(self.keeps if self._filter else None)

    def keeps(self, row: Any) -> bool:
        """Whether the filter lets a row through."""
        text = self.searched_text(row).casefold()
        return all(word in text for word in self._words)

    def searched_text(self, row: Any) -> str:
        """The text in which the words of the filter are looked for."""
        raise NotImplementedError

    def do_move(self, how: str) -> None:
        self.table.move(how)
        # Other parts of the view show details of the row under the cursor.
        self.repaint()

    def do_sort_turn(self) -> None:
        self.table.model.sort(self.table.model.sort_column.name)
        self.table.repaint()

    def export_rows(self) -> list[Any]:
        """The rows in the order shown."""
        return [self.table.model.get(key) for key in self.table.model.ordered()]

    def do_mark(self) -> None:
        self.table.model.toggle_mark()
        self.do_move("down")

    def do_mark_all(self) -> None:
        self.table.model.toggle_marks()
        self.table.repaint()

    def selected(self) -> Any | None:
        """The row under the cursor; shows a message if no row is selected."""
        target = self.table.model.target
        if target is None:
            self.actions.say("No row is selected: it is gone or out of view. Move the cursor to one.", Tone.WARN)
        return target[1] if target else None

    def marked_ids(self) -> list[str]:
        """The ids of the marked rows, or of the selected one."""
        if marked := sorted(self.table.model.marked):
            return marked
        row = self.selected()
        return [] if row is None else [str(row["id"])]

    def row_to_open(self) -> Any | None:
        """The row under the cursor, also if no other key is for it."""
        return self.selected()

    def open_row(self, row: Any) -> None:
        """Open everything about a row."""
        raise NotImplementedError

    def do_open(self) -> None:
        if (row := self.row_to_open()) is not None:
            self.open_row(row)

    def do_export(self) -> None:
        self.actions.exporter.ask_for_rows(self.name_in_registry, self.export_rows())

    def do_sort(self, by: int) -> None:
        """Sort by the next column that has a title and is shown."""
        model = self.table.model
        names = [column.name for column in self.table.columns_shown() if column.title]
        at = names.index(model.sort_column.name) if model.sort_column.name in names else 0
        model.sort(names[(at + by) % len(names)], descending=False)
        self.table.repaint()


class FeedTable(TableView, Generic[R]):
    """A table of all rows of one kind in the mirror."""

    kind: ClassVar[str]
    """The part of their keys before the slash."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._changes: Changes | None = None

    def takes(self, row: AnyRow | None) -> TypeGuard[R]:
        """Whether a row belongs here, without regard to the filter."""
        raise NotImplementedError

    @property
    def awaits_rows(self) -> bool:
        return before_first_rows(self.mirror)

    def update(self) -> None:
        changes = self._changes = self._changes or self.mirror.watch(self.kind)
        model = self.table.model
        for key in changes.take():
            with self.actions.guarded(f"show {key}"):
                row, name = self.mirror.get(key), key.partition("/")[2]
                if self.takes(row):
                    self.put_row(name, row)
                else:
                    self.drop_row(name)
        if model.cursor is None:
            # Only before a row was selected: if the selected row goes away, no other one is selected.
            model.aim_first()
        self.repaint()

    def put_row(self, name: str, row: R) -> None:
        self.table.model.put(name, row)

    def drop_row(self, name: str) -> None:
        self.table.model.drop(name)

    def under_cursor(self) -> R | None:
        target = self.table.model.target
        return target[1] if target else None
