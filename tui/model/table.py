"""Implements the model of a live table: sorted, filtered, scrolled, with a cursor that is a key.

Invariants:
- The cursor is a key. Only a person moves it; rows that come, go or change places do not. One exception: a view may let
  it follow the first row until a person moves it.
- If its row is gone, no row is selected until the cursor is moved.
- The row under the cursor stays on its line of the screen; without a visible cursor the top row does.
- Only a new order or filter costs more for ten thousand rows than for ten.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tui.model import cell_text
from tui.model.styled_text import Line, Span, Tone, fitted, span, width_of

R = TypeVar("R")
SortKey = Any
"""Values of one column are comparable with each other."""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column of fixed width."""

    name: str
    title: str
    width: int
    show: Callable[[R, float], Span]
    """The cell of a row at a wall-clock time."""
    sort: Callable[[R], SortKey]
    right: bool = False
    rank: int = 0
    """Columns of the highest rank are left out first."""
    stretches: bool = False
    """Takes the remaining width."""
    optional: bool = False
    """Hidden until it has something to show."""
    least: int | None = None
    """The width to which it may shrink before another column of the lowest rank is left out."""


def text_column(
    name: str, title: str, width: int, text: Callable[[R], str], tone: Tone = Tone.PLAIN, **options: Any
) -> Column[R]:
    """A column whose cells and order are one text of the row."""
    return Column(name, title, width, lambda row, now: span(text(row), tone), text, **options)


def order_column() -> Column[Mapping[str, Any]]:
    """A hidden column that keeps the order of an answer."""
    return Column("order", "", 0, lambda row, now: Span(""), lambda row: row["~order"], optional=True)


def in_order(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by their ids, for a table with the hidden column of their order."""
    return {str(row["id"]): {**row, "~order": place} for place, row in enumerate(rows)}


Layout = tuple[tuple[Column[R], int], ...]
GAP = 2
MOMENT_S = 0.4
"""How long a formatted row is reused: longer than a paint round, shorter than a second."""


def layout(columns: Iterable[Column[R]], width: int) -> Layout[R]:
    """The columns that fit, with their widths."""
    shown = list(columns)
    while len(shown) > 1 and (missing := _taken(shown) - width) > 0:
        dropped = max(range(len(shown)), key=lambda place: (shown[place].rank, place))
        if not shown[dropped].rank and (narrowed := _narrowed(shown, missing)):
            shown = narrowed
        else:
            del shown[dropped]
    left = width - sum(c.width for c in shown) - GAP * (len(shown) - 1)
    stretching = [c for c in shown if c.stretches]
    share = left // len(stretching) if stretching and left > 0 else 0
    return tuple((c, c.width + share if c.stretches else min(c.width, width)) for c in shown)


def _taken(shown: list[Column[R]]) -> int:
    return sum(column.width for column in shown) + GAP * (len(shown) - 1)


def _narrowed(shown: list[Column[R]], missing: int) -> list[Column[R]]:
    """The columns with one column narrowed so that all fit; empty if no column can be narrowed."""
    for place, column in enumerate(shown):
        if column.least is not None and column.width - column.least >= missing:
            return [*shown[:place], replace(column, width=column.width - missing), *shown[place + 1 :]]
    return []


class TableModel(Generic[R]):
    """All rows of one table, its cursor and its viewport."""

    def __init__(self, columns: Iterable[Column[R]], sort_by: str, *, descending: bool = False) -> None:
        self.columns = tuple(columns)
        self.sort_column = self._column(sort_by)
        self.descending = descending
        self.offset = 0
        """Place of the top row."""
        self.height = 1
        """Rows of the viewport; 0 if only the titles fit."""
        self.marked: set[str] = set()
        self.cursor: str | None = None
        self.untouched = False
        """True while the cursor follows the first row: by default, and after a jump to it, until a person moves or
        scrolls."""
        self.gone: frozenset[str] = frozenset()
        """Rows that are kept although the last answer does not have them."""
        self._rows: dict[str, R] = {}
        self._keys: dict[str, SortKey] = {}
        """Sort keys of the rows that pass the filter."""
        self._order: list[tuple[SortKey, str]] = []
        self._keep: Callable[[R], bool] | None = None
        self._cursor_place = 0
        self._out_of_view = False
        """The row under the cursor was outside the viewport when it was painted last."""
        self._anchor: tuple[str, int] | None = None
        """A key and its line on the screen, which stay together when rows move."""

    def __len__(self) -> int:
        """Rows that pass the filter."""
        return len(self._order)

    @property
    def all_count(self) -> int:
        return len(self._rows)

    # ---- rows ----

    def put(self, key: str, row: R) -> None:
        self._remember()
        self._rows[key] = row
        self._place(key, row)

    def drop(self, key: str) -> None:
        self._remember()
        if self._rows.pop(key, None) is not None:
            self._unplace(key)
            self.marked.discard(key)

    def replace(self, rows: Mapping[str, R]) -> None:
        """Replace all rows, such as after a new snapshot; the cursor stays on its row if that exists."""
        self._remember()
        self._rows = dict(rows)
        self.marked &= self._rows.keys()
        self._build()

    def get(self, key: str) -> R | None:
        return self._rows.get(key)

    @property
    def rows(self) -> Iterable[tuple[str, R]]:
        """All rows, in no order."""
        return self._rows.items()

    def key_at(self, place: int) -> str | None:
        if not 0 <= place < len(self._order):
            return None
        return self._order[-1 - place if self.descending else place][1]

    def place_of(self, key: str) -> int | None:
        """The place of a row; None if it does not exist or does not pass the filter."""
        sort_key = self._keys.get(key)
        if sort_key is None:
            return None
        found = bisect_left(self._order, (sort_key, key))
        return len(self._order) - 1 - found if self.descending else found

    def ordered(self) -> list[str]:
        """The rows in the order shown."""
        ordered = [key for _, key in self._order]
        return ordered[::-1] if self.descending else ordered

    # ---- cursor, order, filter ----

    @property
    def target(self) -> tuple[str, R] | None:
        """The selected row, if it exists and was visible."""
        if self.cursor is None or self.cursor not in self._keys or self._out_of_view:
            return None
        return self.cursor, self._rows[self.cursor]

    def select(self, key: str) -> bool:
        """Put the cursor on a row."""
        self.settle(self.height)
        place = self.place_of(key)
        if place is None:
            return False
        self._put_cursor(place)
        return True

    def move(self, by: int) -> None:
        """Up or down. If the row under the cursor is gone, the first step goes to a neighbour of its place."""
        self.settle(self.height)
        place = self.place_of(self.cursor) if self.cursor is not None else None
        if place is None:
            place = self._cursor_place if by > 0 else self._cursor_place - 1
            by -= 1 if by > 0 else -1
        self._put_cursor(place + by)

    def move_to(self, place: int) -> None:
        """Move to the row at a place; a negative place counts from the end."""
        self.settle(self.height)
        self._put_cursor(place if place >= 0 else len(self._order) + place)

    def aim_first(self) -> None:
        """Select the first row unless one is selected."""
        if (self.cursor is None or self.cursor not in self._keys) and self._order:
            self.move_to(0)
            self.untouched = True

    def follow_first(self) -> None:
        """Select the first row unless a person has moved the cursor or scrolled."""
        if self.untouched:
            self.move_to(0)
            self.untouched = True

    def to_first(self) -> None:
        """Move to the first row and follow it."""
        self.move_to(0)
        self.untouched = True

    def scroll(self, by: int) -> None:
        """Scroll without moving the cursor."""
        self.settle(self.height)
        self.untouched = False
        self.offset = self._clamped(self.offset + by)
        self._anchor = None
        self._see_cursor()

    def sort(self, name: str, *, descending: bool | None = None) -> None:
        """Sort by another column; by the same one in reverse."""
        column = self._column(name)
        if descending is None:
            descending = not self.descending if column is self.sort_column else False
        self._remember()
        self.sort_column, self.descending = column, descending
        self._build()

    def filter(self, keep: Callable[[R], bool] | None) -> None:
        self._remember()
        self._keep = keep
        self._build()

    def toggle_mark(self) -> None:
        if self.target is not None:
            self.marked ^= {self.target[0]}

    def toggle_marks(self) -> None:
        """Mark all rows that the filter leaves; if they are marked already, remove all marks."""
        shown = set(self.ordered())
        self.marked = set() if shown <= self.marked else self.marked | shown

    # ---- viewport ----

    def settle(self, height: int) -> None:
        """Place the viewport. Called before painting and before every action."""
        if self.height != height:
            self._remember()
            self.height = max(0, height)
        if self._anchor is not None:
            (key, at), self._anchor = self._anchor, None
            place = self.place_of(key)
            if place is not None:
                # If the viewport is lower than before, the last line.
                self.offset = place - min(at, max(0, self.height - 1))
        self.offset = self._clamped(self.offset)
        self._see_cursor()

    def _see_cursor(self) -> None:
        place = self.place_of(self.cursor) if self.cursor is not None else None
        if place is not None:
            self._cursor_place = place
        self._out_of_view = place is not None and not self.offset <= place < self.offset + self.height

    def visible(self) -> list[tuple[str, R]]:
        """The rows of the viewport."""
        shown = range(self.offset, min(self.offset + self.height, len(self._order)))
        keys = [key for place in shown if (key := self.key_at(place)) is not None]
        return [(key, self._rows[key]) for key in keys]

    def _remember(self) -> None:
        """Remember which row has to stay on which line, before a change."""
        if self._anchor is not None:
            return
        for key in (self.cursor, self.key_at(self.offset)):
            place = self.place_of(key) if key is not None else None
            if key is not None and place is not None and 0 <= place - self.offset < self.height:
                self._anchor = (key, place - self.offset)
                return

    def _put_cursor(self, place: int) -> None:
        self.untouched = False
        if not self._order:
            return
        place = max(0, min(len(self._order) - 1, place))
        self.cursor = self.key_at(place)
        self.offset = self._clamped(max(place - max(1, self.height) + 1, min(self.offset, place)))
        self._see_cursor()

    def _clamped(self, offset: int) -> int:
        return max(0, min(offset, len(self._order) - self.height))

    # ---- order ----

    def _column(self, name: str) -> Column[R]:
        return next(column for column in self.columns if column.name == name)

    def _place(self, key: str, row: R) -> None:
        keep = self._keep is None or self._keep(row)
        sort_key = self.sort_column.sort(row) if keep else None
        before = self._keys.get(key)
        if sort_key == before:
            return
        if before is not None:
            self._unplace(key)
        if sort_key is not None:
            self._keys[key] = sort_key
            insort(self._order, (sort_key, key))

    def _unplace(self, key: str) -> None:
        sort_key = self._keys.pop(key, None)
        if sort_key is not None:
            del self._order[bisect_left(self._order, (sort_key, key))]

    def _build(self) -> None:
        keep, sort = self._keep, self.sort_column.sort
        self._keys = {key: sort(row) for key, row in self._rows.items() if keep is None or keep(row)}
        self._order = sorted((sort_key, key) for key, sort_key in self._keys.items())


def titles(model: TableModel[R], shown: Layout[R]) -> Line:
    """The line above the rows; the column that sorts has an arrow."""
    cells = list[Span]()
    for column, width in shown:
        title = column.title
        sorts = column is model.sort_column
        if sorts:
            title = f"{title}{'▼' if model.descending else '▲'}"
        tone = Tone.STRONG if sorts else Tone.DIM
        cells.append(Span(fitted(title, width, right=column.right) + " " * GAP, tone))
    return _without_last_gap(cells)


def heading(model: TableModel[R], shown: Layout[R], width: int) -> Line:
    """The titles and, if there is room, the number of rows above the viewport."""
    line = titles(model, shown)
    if model.offset:
        *others, last = line
        kept = last.text.rstrip()
        free = width - width_of((*others, Span(kept)))
        for above in (f"↑ {model.offset} above", f"↑ {model.offset}"):
            if len(above) + GAP <= free:
                return (*others, Span(kept, last.tone), Span(above.rjust(free), Tone.DIM))
    return line


def cells(row: R, shown: Layout[R], now: float) -> Line:
    """One row on one line."""
    made = list[Span]()
    for column, width in shown:
        text, tone = column.show(row, now)
        if column.right:
            text = cell_text.in_cells(text, width)
        made.append(Span(fitted(text, width, right=column.right) + " " * GAP, tone))
    return _without_last_gap(made)


class LineCache(Generic[R]):
    """Formatted rows of one moment."""

    def __init__(self) -> None:
        self._at = self._since = 0.0
        self._shown: Layout[R] = ()
        self._lines: dict[str, tuple[R, Line]] = {}

    def moment(self, now: float, clock: float) -> float:
        """The time to draw: the one before, as long as it lasts. In playback time may stop, jump or go back."""
        if not (0 <= now - self._at < MOMENT_S and clock - self._since < MOMENT_S):
            self._at, self._since = now, clock
            self._lines.clear()
        return self._at

    def line(self, key: str, row: R, shown: Layout[R]) -> Line:
        if shown != self._shown:
            self._shown = shown
            self._lines.clear()
        known = self._lines.get(key)
        if known is None or known[0] is not row:
            known = self._lines[key] = (row, cells(row, shown, self._at))
        return known[1]


def _without_last_gap(spans: list[Span]) -> Line:
    *others, last = spans
    return (*others, Span(last.text[:-GAP], last.tone))
