"""Tests of the live table: a command hits the row that the person selected or no row, whatever happens to the rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tui.model import cell_text, data_tables
from tui.model.styled_text import Span, width_of
from tui.model.table import MOMENT_S, Column, LineCache, TableModel, cells, heading, layout, titles

COLUMNS: tuple[Column[tuple[str, int]], ...] = (
    Column("name", "NAME", 8, lambda row, now: Span(row[0]), lambda row: row[0]),
    Column("load", "LOAD", 5, lambda row, now: Span(str(row[1])), lambda row: row[1], right=True, rank=2),
    Column("rest", "REST", 10, lambda row, now: Span("x"), lambda row: row[1] % 3, rank=1, stretches=True),
)
NAMES = st.sampled_from([f"unit-{n}" for n in range(12)])
LOADS = st.integers(0, 6)


class AnyOrder(RuleBasedStateMachine):
    """Rows appear, disappear and move between any two keys."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.model: TableModel[tuple[str, int]] = TableModel(COLUMNS, "load")
        self.model.settle(4)
        self.rows: dict[str, tuple[str, int]] = {}
        self.least = 0
        self.aimed: str | None = None
        """The row on which the person put the cursor."""

    # ---- the run ----

    @rule(name=NAMES, load=LOADS)
    def put(self, name: str, load: int) -> None:
        self.rows[name] = (name, load)
        line = self._line_of_cursor()
        self.model.put(name, (name, load))
        self._settled(line)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.rows.pop(name, None)
        self.model.drop(name)
        self.model.settle(4)

    @rule(rows=st.dictionaries(NAMES, LOADS, max_size=8))
    def replace(self, rows: dict[str, int]) -> None:
        """Replace all rows by a new snapshot."""
        self.rows = {name: (name, load) for name, load in rows.items()}
        self.model.replace(self.rows)
        self.model.settle(4)

    # ---- the person ----

    @rule(by=st.integers(-5, 5).filter(bool))
    def move(self, by: int) -> None:
        self.model.move(by)
        self._aim()

    @rule(place=st.integers(-3, 12))
    def move_to(self, place: int) -> None:
        self.model.move_to(place)
        self._aim()

    @rule(by=st.integers(-4, 4))
    def scroll(self, by: int) -> None:
        self.model.scroll(by)

    @rule(column=st.sampled_from(["name", "load", "rest"]))
    def sort(self, column: str) -> None:
        self.model.sort(column)
        self.model.settle(4)

    @rule(least=LOADS)
    def filter(self, least: int) -> None:
        self.least = least
        self.model.filter(lambda row: row[1] >= least)
        self.model.settle(4)

    @rule()
    def mark(self) -> None:
        before, target = set(self.model.marked), self.model.target
        self.model.toggle_mark()
        assert before ^ self.model.marked == ({target[0]} if target else set())

    # ---- invariants ----

    @invariant()
    def a_command_hits_the_selected_row_or_none(self) -> None:
        target = self.model.target
        if target is not None:
            name, row = target
            assert name == self.aimed
            assert name in [shown for shown, _ in self.model.visible()]
            assert row == self.rows[name]
            assert row[1] >= self.least
        elif self.aimed is not None:
            in_view = [name for name, _ in self.model.visible()]
            assert self.aimed not in self._passing() or self.aimed not in in_view

    @invariant()
    def the_rows_are_those_that_pass_in_the_order_of_the_column(self) -> None:
        sort = self.model.sort_column.sort
        expected = sorted(self._passing(), key=lambda name: (sort(self.rows[name]), name))
        assert self.model.ordered() == (expected[::-1] if self.model.descending else expected)
        assert [self.model.place_of(name) for name in self.model.ordered()] == list(range(len(expected)))

    @invariant()
    def the_view_lies_within_the_rows(self) -> None:
        assert 0 <= self.model.offset <= max(0, len(self.model) - self.model.height)
        shown = [name for name, _ in self.model.visible()]
        assert shown == self.model.ordered()[self.model.offset : self.model.offset + 4]

    @invariant()
    def marked_rows_exist(self) -> None:
        assert self.model.marked <= self.rows.keys()

    def _aim(self) -> None:
        self.aimed = self.model.cursor if len(self.model) else self.aimed

    def _passing(self) -> set[str]:
        return {name for name, row in self.rows.items() if row[1] >= self.least}

    def _line_of_cursor(self) -> int | None:
        place = self.model.place_of(self.model.cursor) if self.model.cursor else None
        line = None if place is None else place - self.model.offset
        return line if line is not None and 0 <= line < 4 else None

    def _settled(self, line: int | None) -> None:
        """The row under the cursor stays on its line, unless the rows end there."""
        self.model.settle(4)
        after = self._line_of_cursor()
        at_an_end = self.model.offset in (0, max(0, len(self.model) - 4))
        assert line is None or after is None or after == line or at_an_end


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_row_that_comes_back_is_selected_again() -> None:
    model = TableModel(COLUMNS, "name")
    model.replace({"a": ("a", 1), "b": ("b", 1)})
    model.select("b")
    model.replace({})
    assert model.target is None
    model.replace({"b": ("b", 2), "c": ("c", 1)})
    assert model.target == ("b", ("b", 2))


def test_selected_row_stays_visible_with_fewer_lines_and_is_no_target_after_scrolling_away() -> None:
    model = TableModel(COLUMNS, "name")
    model.replace({f"unit-{n}": (f"unit-{n}", n) for n in range(9)})
    model.settle(6)
    model.select("unit-5")
    model.settle(2)
    assert "unit-5" in [name for name, _ in model.visible()]
    assert model.target == ("unit-5", ("unit-5", 5))
    model.scroll(-3)
    assert model.target is None
    model.scroll(3)
    assert model.target == ("unit-5", ("unit-5", 5))


def test_cursor_of_a_removed_row_moves_only_by_a_key() -> None:
    model = TableModel(COLUMNS, "name")
    model.replace({name: (name, 0) for name in "abcd"})
    model.settle(10)
    model.select("b")
    model.drop("b")
    assert model.target is None
    model.move(1)
    assert model.cursor == "c"
    model.select("b")
    assert model.cursor == "c", "a missing row cannot be selected"


@given(width=st.integers(1, 200))
def test_row_is_exactly_as_wide_as_the_table(width: int) -> None:
    shown = layout(COLUMNS, width)
    assert shown
    model = TableModel(COLUMNS, "name")
    if width >= sum(column.width for column in COLUMNS) + 4:
        assert len(shown) == 3
        assert width_of(cells(("unit-1", 3), shown, 0.0)) == width
        assert width_of(titles(model, shown)) == width
    else:
        assert width_of(cells(("unit-1", 3), shown, 0.0)) <= max(width, 1)
        assert "load" not in {column.name for column, _ in shown} or len(shown) == 3


Model = TableModel[tuple[str, int]]


@pytest.mark.parametrize("elsewhere", [lambda m: m.move(0), lambda m: m.scroll(1), lambda m: m.select("c")])
def test_first_row_stays_selected_until_a_move_or_scroll(elsewhere: Callable[[Model], None]) -> None:
    model = TableModel(COLUMNS, "name")
    model.replace({"c": ("c", 0)})
    model.settle(1)
    model.aim_first()
    model.replace({"b": ("b", 0), "c": ("c", 0)})
    model.follow_first()
    assert (model.cursor, model.offset) == ("b", 0)
    elsewhere(model)
    kept = model.cursor
    model.replace({"a": ("a", 0), "b": ("b", 0), "c": ("c", 0)})
    model.follow_first()
    assert model.cursor == kept


@given(width=st.integers(1, 60), above=st.integers(0, 3000))
def test_titles_show_how_many_rows_are_above(width: int, above: int) -> None:
    model = TableModel(COLUMNS, "name")
    model.offset = above
    shown = layout(COLUMNS, width)
    bare, told = ("".join(part.text for part in line) for line in (titles(model, shown), heading(model, shown, width)))
    assert told.startswith(bare.rstrip())
    assert len(told) <= max(width, len(bare))
    free = width - len(bare.rstrip())
    assert (f"↑ {above}" in told) is (above > 0 and free >= len(f"↑ {above}") + 2)


@given(
    number=st.one_of(st.floats(-1e300, 1e300), st.integers(-(10**12), 10**12)),
    width=st.integers(6, 12),
)
def test_number_in_a_cell_is_never_cut(number: float, width: int) -> None:
    said = f"{number:.4g}" if isinstance(number, float) else str(number)
    column: Column[float] = Column("n", "N", width, lambda row, now: Span(said), lambda row: row, right=True)
    told = cells(number, ((column, width),), 0.0)[0].text
    assert len(told) == width
    assert abs(float(told) - float(said)) <= abs(number) / 2 + 1e-99, "its exponent is the same"


@pytest.mark.parametrize(
    ("number", "width", "told"),
    [
        (3.744e-05, 8, "3.744e-5"), (-0.0029123, 8, "-0.00291"), (0.5, 8, "0.5"), (-1.5e-05, 6, "-2e-05"),
        (1234567, 6, "1.23e6"), (999999, 6, "999999"),
    ],
)  # fmt: skip
def test_number_has_as_many_digits_as_fit(number: float, width: int, told: str) -> None:
    assert cell_text.in_cells(data_tables.shown(number), width) == told


AGED: Column[list[int]] = Column("age", "AGE", 30, lambda row, now: Span(f"{row[0]} {now!r}"), lambda row: row[0])
"""A row that may be replaced in place."""
STEPS = st.sampled_from([0.05, 0.3, 1.0])
SPEEDS = st.sampled_from([0.0, 1.0, 16.0, -100.0])


@given(st.lists(st.tuples(STEPS, SPEEDS, st.booleans())))
def test_cached_row_is_renewed_after_a_moment(steps: list[tuple[float, float, bool]]) -> None:
    said, now, clock = LineCache[list[int]](), 1000.0, 0.0
    row, ended = [0], list[tuple[float, int]]()
    for passed, speed, written in steps:
        clock, now = clock + passed, now + speed * passed
        if written:
            ended.append((clock, row[0]))
            row[0] += 1
        moment = said.moment(now, clock)
        assert 0 <= now - moment < MOMENT_S
        value, at = said.line("a", row, ((AGED, 30),))[0].text.split()
        assert float(at) == moment
        assert int(value) in {row[0], *(before for until, before in ended if clock - until < MOMENT_S)}


def test_row_is_formatted_once_per_moment() -> None:
    written = list[str]()

    def show(row: str, _: float) -> Span:
        written.append(row)
        return Span(row)

    shown = ((Column("name", "NAME", 4, show, lambda row: row), 4),)
    said = LineCache[str]()
    for clock in (0.0, MOMENT_S / 3, MOMENT_S / 2):
        said.moment(100 + clock, clock)
        assert said.line("a", "row", shown)[0].text == "row "
    assert written == ["row"]
    said.moment(100 + MOMENT_S, MOMENT_S)
    said.line("a", "row", shown)
    assert written == ["row", "row"]
    assert said.line("a", "new", shown)[0].text == "new "
