"""A table of rows that live: sorted, filtered, scrolled and aimed at by key.

Invariants: the cursor is a key. It moves when a person moves it, never because rows came, went or changed places, but
where a view has it follow the first row until a person moves it; when its row is gone nothing is aimed at until it is
moved. The row under the cursor stays on its line of the screen, and
without a cursor in sight the uppermost row does. Nothing here costs more for ten thousand rows than for ten, but for a
new order or filter.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tui.model import cell_text
from tui.model.styled_text import Line, Span, Tone, fitted, width_of

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
    """Where room is short, the columns of the highest rank are left out."""
    stretches: bool = False
    """Takes what room is left."""
    optional: bool = False
    """Takes no room until it has something to show."""
    least: int | None = None
    """So narrow it may become before another column of the lowest rank is left out."""


Layout = tuple[tuple[Column[R], int], ...]
GAP = 2
MOMENT_S = 0.4
"""How long a row that is the same says the same, whatever its ages: longer than a round, shorter than a second."""


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
    """The same columns, of which one gives what is missing; none if none can."""
    for place, column in enumerate(shown):
        if column.least is not None and column.width - column.least >= missing:
            return [*shown[:place], replace(column, width=column.width - missing), *shown[place + 1 :]]
    return []


class TableModel(Generic[R]):
    """All rows of one table, and which of them a person looks at."""

    def __init__(self, columns: Iterable[Column[R]], sort_by: str, *, descending: bool = False) -> None:
        self.columns = tuple(columns)
        self.sort_column = self._column(sort_by)
        self.descending = descending
        self.offset = 0
        """Place of the uppermost row that is shown."""
        self.height = 1
        """Rows that can be shown at once; none where there is room for the titles alone."""
        self.marked: set[str] = set()
        self.cursor: str | None = None
        self.untouched = False
        """The cursor is on the row that was the first, and since then nobody has moved or looked elsewhere."""
        self._rows: dict[str, R] = {}
        self._keys: dict[str, SortKey] = {}
        """Sort keys of the rows that pass the filter."""
        self._order: list[tuple[SortKey, str]] = []
        self._keep: Callable[[R], bool] | None = None
        self._cursor_place = 0
        self._out_of_view = False
        """The row under the cursor was not among those that were shown last."""
        self._anchor: tuple[str, int] | None = None
        """A key and its line, which the view keeps when rows move."""

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
        """Other rows altogether, such as after a new snapshot; what was aimed at is aimed at again if it is there."""
        self._remember()
        self._rows = dict(rows)
        self.marked &= self._rows.keys()
        self._build()

    def get(self, key: str) -> R | None:
        return self._rows.get(key)

    def key_at(self, place: int) -> str | None:
        if not 0 <= place < len(self._order):
            return None
        return self._order[-1 - place if self.descending else place][1]

    def place_of(self, key: str) -> int | None:
        """Where a row stands; None if it is not there or does not pass the filter."""
        sort_key = self._keys.get(key)
        if sort_key is None:
            return None
        found = bisect_left(self._order, (sort_key, key))
        return len(self._order) - 1 - found if self.descending else found

    def ordered(self) -> list[str]:
        """In the order shown."""
        ordered = [key for _, key in self._order]
        return ordered[::-1] if self.descending else ordered

    # ---- what a person chooses ----

    @property
    def target(self) -> tuple[str, R] | None:
        """The row that is aimed at, if it is still there, and was to be seen."""
        if self.cursor is None or self.cursor not in self._keys or self._out_of_view:
            return None
        return self.cursor, self._rows[self.cursor]

    def aim(self, key: str) -> bool:
        """Put the cursor on a row."""
        self.settle(self.height)
        place = self.place_of(key)
        if place is None:
            return False
        self._aim_at(place)
        return True

    def move(self, by: int) -> None:
        """Up or down. Where the row under the cursor is gone, the first step goes to a neighbour of its place."""
        self.settle(self.height)
        place = self.place_of(self.cursor) if self.cursor is not None else None
        if place is None:
            place = self._cursor_place if by > 0 else self._cursor_place - 1
            by -= 1 if by > 0 else -1
        self._aim_at(place + by)

    def move_to(self, place: int) -> None:
        """To the row at a place; a negative place counts from the end."""
        self.settle(self.height)
        self._aim_at(place if place >= 0 else len(self._order) + place)

    def aim_first(self) -> None:
        """The first row, unless one is aimed at."""
        if (self.cursor is None or self.cursor not in self._keys) and self._order:
            self.move_to(0)
            self.untouched = True

    def follow_first(self) -> None:
        """The first row, unless a person has moved the cursor or looked elsewhere."""
        if self.untouched:
            self.move_to(0)
            self.untouched = True

    def scroll(self, by: int) -> None:
        """Look elsewhere without aiming elsewhere."""
        self.settle(self.height)
        self.untouched = False
        self.offset = self._clamped(self.offset + by)
        self._anchor = None
        self._see_cursor()

    def sort(self, name: str, *, descending: bool | None = None) -> None:
        """By another column; by the same one again the other way round."""
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

    # ---- what is shown ----

    def settle(self, height: int) -> None:
        """Decide what is in view. Called before painting and before anything that a person does."""
        if self.height != height:
            self._remember()
            self.height = max(0, height)
        if self._anchor is not None:
            (key, at), self._anchor = self._anchor, None
            place = self.place_of(key)
            if place is not None:
                # In a view that became lower, the lowest line that is left.
                self.offset = place - min(at, max(0, self.height - 1))
        self.offset = self._clamped(self.offset)
        self._see_cursor()

    def _see_cursor(self) -> None:
        place = self.place_of(self.cursor) if self.cursor is not None else None
        if place is not None:
            self._cursor_place = place
        self._out_of_view = place is not None and not self.offset <= place < self.offset + self.height

    def visible(self) -> list[tuple[str, R]]:
        """The rows in view, from the uppermost."""
        shown = range(self.offset, min(self.offset + self.height, len(self._order)))
        keys = [key for place in shown if (key := self.key_at(place)) is not None]
        return [(key, self._rows[key]) for key in keys]

    def _remember(self) -> None:
        """Which row has to stay on which line, before something changes."""
        if self._anchor is not None:
            return
        for key in (self.cursor, self.key_at(self.offset)):
            place = self.place_of(key) if key is not None else None
            if key is not None and place is not None and 0 <= place - self.offset < self.height:
                self._anchor = (key, place - self.offset)
                return

    def _aim_at(self, place: int) -> None:
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
    """The titles, and behind them how many rows are above those in view, where there is room for it."""
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
    """What the rows in view say in one moment."""

    def __init__(self) -> None:
        self._at = self._since = 0.0
        self._shown: Layout[R] = ()
        self._lines: dict[str, tuple[R, Line]] = {}

    def moment(self, now: float, clock: float) -> float:
        """The one that is drawn: that of before as long as it lasts. In a replay time may stand, leap or go back."""
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
