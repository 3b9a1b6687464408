"""What all views share.

Invariants: a view reads the mirror and asks the application to act; it holds no connection. Its actions are methods
named after the registry (`unit.restart` is `do_unit_restart`), and nothing else answers keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeGuard, TypeVar, cast

from textual import events
from textual.containers import Vertical

from agentrl.protocol.rows import AnyRow
from tui.model.actions import Action
from tui.model.mirror import Changes, Mirror
from tui.widgets.lines import Painted, Table

if TYPE_CHECKING:
    from tui.app import Console

R = TypeVar("R", bound=AnyRow)
ROWS_FIRST = 4
"""Lines that the titles and rows of a table have before anything beside it has one."""


class View(Vertical):
    """One screenful."""

    DEFAULT_CSS = "View { height: 1fr; } View Lines { height: auto; }"
    name_in_registry: ClassVar[str]
    shares: ClassVar[tuple[tuple[str, int], ...]] = ()
    """Parts beside the table and the lines that each wants, what matters most first; on a low screen after the rows."""
    vocabulary: ClassVar[tuple[tuple[str, str], ...]] = ()
    """What is shown in few words, and what each means, for the help of this view."""
    filters_at_once: ClassVar[bool] = True
    """Rows are chosen while the filter is typed, not when it is finished."""

    def on_resize(self, event: events.Resize) -> None:
        left = max(0, event.size.height - ROWS_FIRST)
        for id, wanted in self.shares:
            part, taken = self.query_one(f"#{id}"), min(wanted, left)
            part.display, part.styles.height = taken > 0, taken
            left -= taken

    @property
    def console_app(self) -> Console:
        return cast("Console", self.app)

    @property
    def mirror(self) -> Mirror:
        return self.console_app.mirror

    def now(self) -> float:
        """The time that is shown."""
        return self.console_app.now()

    @property
    def fresh(self) -> bool:
        """Whether its rows may be acted on, besides what the feed tells."""
        return True

    @property
    def filter_text(self) -> str:
        return ""

    def heading(self) -> str:
        """What is shown here, for the header; empty where the tab says it."""
        return ""

    def why_old(self) -> str:
        """Why what is shown was not told anew, as long as that is so."""
        return ""

    def take_filter(self, text: str) -> str:
        """Show only what matches; what is wrong with the filter, if something is."""
        return ""

    def update(self) -> None:
        """Take in what is new and paint it. Called a few times a second while the view is seen."""
        self.repaint()

    def ask_in_rounds(self, work: Callable[[], Awaitable[None]], group: str) -> None:
        """Ask, unless the question of a round before waits for its answer: one begun anew each round gets none."""
        if not self.is_asking(group):
            self.run_worker(work, group=group)

    def is_asking(self, group: str) -> bool:
        return any(each.group == group and each.node is self and not each.is_finished for each in self.workers)

    def repaint(self, *, all: bool = False) -> None:
        for widget in self.query(Painted):
            widget.repaint(all=all)

    def shown(self) -> None:
        """It has come into sight."""
        self.update()
        focusable = [widget for widget in self.query(Painted) if widget.can_focus]
        if focusable:
            self.screen.set_focus(focusable[0], scroll_visible=False)

    def hidden(self) -> None:
        """It is not seen any more."""

    def has_use_for(self, action: Action) -> bool:
        """Whether one of its actions can do anything in this run; what cannot is not offered."""
        return True

    def cli_line(self) -> tuple[str, ...]:
        """The words behind `agentrl` that show the same in a shell."""
        return ("status",)


class TableView(View):
    """A view with one live table."""

    table: Table[Any]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._filter = ""

    @property
    def filter_text(self) -> str:
        return self._filter

    def take_filter(self, text: str) -> str:
        self._filter = text
        self.apply_filter(frozenset(text.casefold().split()))
        self.table.model.aim_first()
        self.table.repaint()
        return ""

    def apply_filter(self, words: frozenset[str]) -> None:
        raise NotImplementedError

    def do_move(self, how: str) -> None:
        self.table.move(how)
        # What is told of the row under the cursor stands beside the table.
        self.repaint()

    def do_sort_left(self) -> None:
        self._sort(-1)

    def do_sort_right(self) -> None:
        self._sort(1)

    def do_sort_turn(self) -> None:
        self.table.model.sort(self.table.model.sort_column.name)
        self.table.repaint()

    def export_rows(self) -> list[Any]:
        """The rows as they are shown, in their order."""
        return [self.table.model.get(key) for key in self.table.model.ordered()]

    def do_export(self) -> None:
        self.console_app.exporter.ask(self.name_in_registry, self.export_rows())

    def _sort(self, by: int) -> None:
        """By the next column that has a title and is in sight."""
        model = self.table.model
        names = [column.name for column in self.table.columns_shown() if column.title]
        at = names.index(model.sort_column.name) if model.sort_column.name in names else 0
        model.sort(names[(at + by) % len(names)], descending=False)
        self.table.repaint()


class FeedTable(TableView, Generic[R]):
    """A table of all rows of one kind, as the mirror has them."""

    kind: ClassVar[str]
    """What stands before the slash in the keys of these rows."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._changes: Changes | None = None

    def takes(self, row: AnyRow | None) -> TypeGuard[R]:
        """Whether a row has a place here, whatever the filter says."""
        raise NotImplementedError

    def update(self) -> None:
        changes = self._changes = self._changes or self.mirror.watch(self.kind)
        model = self.table.model
        for key in changes.take():
            row, name = self.mirror.get(key), key.partition("/")[2]
            if self.takes(row):
                model.put(name, row)
            else:
                model.drop(name)
        if model.cursor is None:
            # Only until something is aimed at: the cursor of a row that went away stays where it was.
            model.aim_first()
        self.repaint()

    def under_cursor(self) -> R | None:
        target = self.table.model.target
        return target[1] if target else None
