"""Defines pages about one thing, which are shown over the view that opened them."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult

from agentrl.formatting.amounts import counted
from agentrl.protocol.rows import AlertRow, AnyRow, UnitRow
from tui.model import detail_lines
from tui.model.styled_text import Line, Span, Tone, cut
from tui.views.alerts import AlertVerbs
from tui.views.fleet import UnitVerbs
from tui.views.view import View
from tui.widgets.lines import WHEEL_ROWS, Drawn, Painted


class ScrolledLines(Painted):
    """A viewport on lines that may not all fit."""

    can_focus = True

    def __init__(self, make: Callable[[int], list[Line]]) -> None:
        super().__init__()
        self._make = make
        self._top = 0
        self._count = 0

    def drawing(self, width: int, height: int) -> list[Drawn]:
        lines = self._make(self.width)
        self._count = len(lines)
        self._top = max(0, min(self._top, len(lines) - height))
        shown = lines[self._top : self._top + height]
        drawn: list[Drawn] = [(cut((Span(" "), *line), width), "") for line in shown]
        below = len(lines) - self._top - height
        if below > 0:
            drawn[-1] = (cut((Span(f" ↓ {counted(below + 1, 'more lines')}", Tone.DIM),), width), "")
        return drawn

    @property
    def top(self) -> int:
        """The first visible line."""
        return self._top

    @property
    def at_end(self) -> bool:
        """Whether the last line is visible."""
        return self._top + self.size.height >= self._count

    @property
    def width(self) -> int:
        """The width of a line."""
        return self.size.width - 2

    def go_to(self, line: int) -> None:
        """Make it the first visible line, if enough lines follow. Takes effect with the next repaint."""
        self._top = line

    def move(self, how: str) -> None:
        page = max(1, self.size.height - 2)
        steps = {"up": -1, "down": 1, "page-up": -page, "page-down": page, "first": -self._count, "last": self._count}
        self._top = max(0, self._top + steps[how])
        self.repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._top += WHEEL_ROWS
        self.repaint()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._top = max(0, self._top - WHEEL_ROWS)
        self.repaint()


class DetailPage(View):
    """A page whose lines are formatted again at every round."""

    name_in_registry = "page"

    def __init__(self, title: str, make: Callable[[int], list[Line]], cli: tuple[str, ...] = ("status",)) -> None:
        super().__init__()
        self._title = title
        self._make = make
        self._cli = cli
        self.scroll = ScrolledLines(make)

    def compose(self) -> ComposeResult:
        yield self.scroll

    def heading(self) -> str:
        return self._title

    def cli_line(self) -> tuple[str, ...]:
        return self._cli

    def do_move(self, how: str) -> None:
        self.scroll.move(how)


class UnitPage(DetailPage, UnitVerbs):
    name_in_registry = "unit"

    def __init__(self, name: str) -> None:
        super().__init__(name, self._lines, ("status",))
        self._unit = name
        self._last: UnitRow | None = None

    def selected(self) -> UnitRow | None:
        """The unit as it was drawn, so that a command names the incarnation that the person saw."""
        if self.mirror.unit(self._unit) is None:
            self.actions.say(f"{self._unit} does not exist any more.", Tone.WARN)
            return None
        return self._last

    def _lines(self, width: int) -> list[Line]:
        row = self.mirror.unit(self._unit)
        self._last = row or self._last
        if self._last is None:
            return [(Span(f"{self._unit} is not known.", Tone.DIM),)]
        gone: list[Line] = [] if row else [(Span("It is gone; this is what was last seen of it.", Tone.WARN),)]
        return gone + detail_lines.of_unit(self._last, self.mirror, self.now(), width)


class AlertPage(DetailPage, AlertVerbs):
    name_in_registry = "alert"

    def __init__(self, row: AlertRow) -> None:
        super().__init__(row.id, self._lines, ("alerts", "list", "--all"))
        self._row = row

    def selected(self) -> AlertRow:
        return self._row

    def _lines(self, width: int) -> list[Line]:
        found = self.mirror.get(f"alert/{self._row.id}")
        self._row = found if isinstance(found, AlertRow) else self._row
        return detail_lines.of_alert(self._row, self.now(), width)


class RowPage(DetailPage):
    """The page of an event of any kind."""

    def __init__(self, title: str, row: AnyRow, key: str = "") -> None:
        super().__init__(title, self._lines, ("events",))
        self._row = row
        self._key = key

    def _lines(self, width: int) -> list[Line]:
        if self._key:
            self._row = self.mirror.get(self._key) or self._row
        return detail_lines.of_row(self._row, self.mirror, self.now(), width)
