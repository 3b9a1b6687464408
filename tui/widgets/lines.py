"""Defines widgets that draw styled lines, and the live table that builds on them.

Invariants:
- Only lines that differ from the screen are painted again.
- Rows outside the viewport cost nothing.
- A key is painted at once, data in the next round.
- A row is formatted once per moment, so moving the cursor formats none again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, cast

from rich.cells import cell_len
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.model.styled_text import Line, Span, Tone, wrapped
from tui.model.table import Column, Layout, LineCache, TableModel, heading, layout
from tui.widgets.themes import Styles

R = TypeVar("R")
Drawn = tuple[Line, str]
"""A line and the name of its background."""

WHEEL_ROWS = 3
STRIPS_PER_LINE = 4
"""Painted lines that are cached for each line of the screen."""


class StyledApp(Protocol):
    """An application that knows the styles of its lines."""

    line_styles: Styles

    def fault(self, error: Exception, doing: str) -> str:
        """Write the traceback of a fault to a file. Returns the sentence about it."""


class Painted(Widget):
    """A widget that repaints only the lines that changed."""

    DEFAULT_CSS = "Painted { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._drawn: list[Drawn] = []
        self._strips: dict[Drawn, Strip] = {}
        """A cache of recent lines: after scrolling, most lines were on the screen before."""

    def drawing(self, width: int, height: int) -> Iterable[Drawn]:
        """The lines to show now, from the first."""
        raise NotImplementedError

    def repaint(self, *, all: bool = False) -> int:
        """Paint the changed lines. Returns their number."""
        width, height = self.size
        if not width or not height or not self.is_mounted:
            return 0
        before, drawn = self._drawn, self._try_drawing(width, height)[:height]
        drawn += [((), "")] * (height - len(drawn))
        changed = [y for y in range(height) if all or y >= len(before) or before[y] != drawn[y]]
        self._drawn = drawn
        if all or len(self._strips) > STRIPS_PER_LINE * height:
            self._strips.clear()
        if len(changed) == height:
            self.refresh()
        elif changed:
            known = len(before) if not all else 0
            parts = ((y, _changed_part(before[y] if y < known else None, drawn[y], width)) for y in changed)
            self.refresh(*(Region(x, y, taken, 1) for y, (x, taken) in parts))
        return len(changed)

    def _try_drawing(self, width: int, height: int) -> list[Drawn]:
        try:
            return list(self.drawing(width, height))
        except Exception as error:  # noqa: BLE001 - the boundary of one part of the screen
            said = cast(StyledApp, self.app).fault(error, f"draw {type(self).__name__.lower()}")
            return [((Span(line, Tone.BAD),), "") for line in wrapped(said, max(1, width))]

    def render_line(self, y: int) -> Strip:
        drawn = self._drawn[y] if y < len(self._drawn) else ((), "")
        strip = self._strips.get(drawn)
        if strip is None:
            line, ground = drawn
            strip = self._strips[drawn] = cast(StyledApp, self.app).line_styles.strip(line, self.size.width, ground)
        return strip

    def on_resize(self, _: events.Resize) -> None:
        self.repaint(all=True)


def _changed_part(before: Drawn | None, now: Drawn, width: int) -> tuple[int, int]:
    """Column and width of the changed part of a line, so that little goes to a remote terminal."""
    if before is None or before[1] != now[1] or len(before[0]) != len(now[0]):
        return 0, width
    at, start, end = 0, width, 0
    for old, new in zip(before[0], now[0], strict=True):
        taken = cell_len(new.text)
        if old != new:
            if cell_len(old.text) != taken:
                return 0, width
            start, end = min(start, at), at + taken
        at += taken
    return start, max(0, end - start)


class Lines(Painted):
    """Lines made by a function."""

    def __init__(self, make: Callable[[int, int], Iterable[Line]], *, ground: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self._make = make
        self._ground = ground

    def drawing(self, width: int, height: int) -> Iterable[Drawn]:
        return [(line, self._ground) for line in self._make(width, height)]


class Table(Painted, Generic[R]):
    """The rows of a model, with a cursor. Keys reach it through the registry of actions."""

    can_focus = True

    def __init__(self, model: TableModel[R], now: Callable[[], float], *, empty: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model = model
        self._now = now
        self.empty = empty
        """The text in place of rows."""
        self._needed: set[str] = set()
        """Optional columns that had something to show."""
        self._said = LineCache[R]()

    def drawing(self, width: int, height: int) -> Iterable[Drawn]:
        model = self.model
        now = self._said.moment(self._now(), time.monotonic())
        model.settle(height - 1)
        self._look_for_needed(now)
        shown = self._layout(width)
        yield ((Span("  "), *heading(model, shown, width - 2)), "bar")
        for key, row in model.visible():
            mark = Span("◆ ", Tone.ACCENT) if key in model.marked else Span("  ")
            told = self._said.line(key, row, shown)
            if key in model.gone:
                told = tuple(Span(cell.text, Tone.DIM) for cell in told)
            if key == model.cursor:
                yield ((Span("▸ ", Tone.ACCENT) if mark.text == "  " else mark, *told), "cursor")
            else:
                yield ((mark, *told), "")
        if not len(model):
            for line in wrapped(self.empty if not model.all_count else "nothing matches the filter", max(1, width - 2)):
                yield ((Span(f"  {line}", Tone.DIM),), "")

    def columns_shown(self) -> list[Column[R]]:
        return [column for column, _ in self._layout(self.size.width)]

    def _layout(self, width: int) -> Layout[R]:
        shown = [column for column in self.model.columns if not column.optional or column.name in self._needed]
        return layout(shown, width - 2)

    def _look_for_needed(self, now: float) -> None:
        missing = [each for each in self.model.columns if each.optional and each.name not in self._needed]
        if missing:
            rows = self.model.visible()
            self._needed |= {each.name for each in missing if any(each.show(row, now).text for _, row in rows)}

    # ---- moving ----

    def move(self, how: str) -> None:
        """One of the moves of the registry. The view paints, because other widgets show the row under the cursor."""
        page = max(1, self.model.height - 1)
        match how:
            case "up":
                self.model.move(-1)
            case "down":
                self.model.move(1)
            case "page-up":
                self.model.move(-page)
            case "page-down":
                self.model.move(page)
            case "first":
                self.model.to_first()
            case "last":
                self.model.move_to(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll(WHEEL_ROWS, event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll(-WHEEL_ROWS, event)

    def _scroll(self, by: int, event: events.MouseEvent) -> None:
        event.stop()
        self.model.scroll(by)
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        if event.y > 0 and (key := self.model.key_at(self.model.offset + event.y - 1)) is not None:
            self.model.select(key)
            self.repaint()
