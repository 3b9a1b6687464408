"""A command in any list hits the row that the person saw under the cursor, in the incarnation that the person saw, or
no row, whatever happens to the rows between look and key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from textual.widgets import Input

from agentrl.client import Client
from agentrl.protocol import rows
from agentrl.protocol.control_commands import KeyRow
from agentrl.protocol.messages import Permission
from agentrl.protocol.rows import UnitState
from tests.tui.all_screens import press
from tests.tui.conftest import Screen
from tests.waiting import aeventually
from tui.action_registry import ACTIONS, BY_ID
from tui.app import Console
from tui.connection import Connection
from tui.model.mirror import Mirror
from tui.model.pending_commands import PendingCommand
from tui.views.query_views import QueryTable
from tui.widgets.lines import Table

NUMBERS = range(9)
FED = {"fleet": "unit", "alerts": "alert", "tuning": "knob", "hosts": "host"}
"""Lists with commands, and the kinds of their rows."""
ASKED = {"tasks": ("7", "T"), "checkpoints": ("8", "C"), "keys": ("9", "K")}
"""Lists that are filled by answers, and the keys that open them."""
OPENED_BY = {**ASKED, "hosts": ("2", "H")}
LISTS = (*FED, *ASKED)
AT_NOTHING = ("task.add", "key.new", "key.rotate")
"""Commands that need no row."""
VERBS = {
    view: [a.keys[0] for a in ACTIONS if view in a.where and a.command and a.keys and a.id not in AT_NOTHING]
    for view in (*LISTS, "knob")
}
HEIGHTS = (11, 12, 14, 16)
"""Heights of the terminal; some are lower than the count of rows."""
AIMS = st.tuples(st.just("aim"), st.sampled_from(["up", "down", "home", "end", "o", "greater_than_sign"]))
CHANGES = st.tuples(st.sampled_from(["put", "drop", "replaced"]), st.sampled_from(NUMBERS))
SNAPSHOTS = st.tuples(st.just("snapshot"), st.sets(st.sampled_from(NUMBERS), min_size=1))
LOOKS = st.tuples(st.sampled_from(["look", "elsewhere", "filter"]), st.just(0))
WHEELS = st.tuples(st.just("wheel"), st.sampled_from([-3, 3]))
ACTS = st.tuples(st.just("act"), st.integers(0, 20))
REASON = "because"
"""The text for a form that must not be empty."""
STEPS = st.lists(st.one_of(AIMS, CHANGES, CHANGES, SNAPSHOTS, LOOKS, WHEELS, ACTS, ACTS), min_size=5, max_size=40)


class Fed(Connection):
    """A connection whose mirror is filled by the test."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(mirror, Client.connect)

    async def run(self) -> None:
        await asyncio.Event().wait()


class Noting(Console):
    """A console that records commands instead of sending them."""

    def __init__(self) -> None:
        super().__init__(Fed)
        self.taken: list[PendingCommand] = []
        self.commands.perform = lambda pending, chosen_in=None: self.taken.append(pending)  # type: ignore[method-assign]


class World:
    """The rows of a run, as they change."""

    def __init__(self, app: Noting, view: str) -> None:
        self._app, self._mirror, self._view = app, app.mirror, view
        self._change = 0
        self._answer: dict[str, Any] = {}
        """The next answer of a queried list."""
        self.snapshot(NUMBERS)

    def row(self, number: int, *, life: int | None = None) -> Any:
        """A row that moves to another place in every order."""
        self._change += 1
        weight = (number * 7 + self._change * 5) % 11
        if self._view == "keys":
            return KeyRow(f"key-{number}", "p" * 40, Permission.VIEWER, float(weight))
        if self._view in ASKED:
            return {"id": f"row-{number}", "status": f"s{weight}", "step": weight, "~order": weight}
        if self._view == "fleet":
            known = self._mirror.unit(f"web-{number}")
            life = life or (known.incarnation if known else 1)
            state = UnitState.LOST if weight < 4 else UnitState.READY
            return rows.UnitRow(
                f"web-{number}", "web", "sidecar", state, incarnation=life, pid=9, cpu_percent=weight, since_at=weight
            )
        if self._view == "hosts":
            return rows.HostRow(f"host-{number}", "up" if weight < 4 else "silent", float(weight), units=weight)
        if self._view == "alerts":
            severity = list(rows.Severity)[weight % 3]
            id = f"bad:web-{number}"
            return rows.AlertRow(id, "bad", id, severity, rows.AlertState.FIRING, "it is bad", float(weight))
        return rows.KnobRow(
            f"pool.k{number}", "int", 0, boundary=f"b{weight}", value=weight, revision=self._change,
            changed_at=time.time(),
        )  # fmt: skip

    def key(self, number: int) -> str:
        names = {"fleet": f"web-{number}", "alerts": f"bad:web-{number}", "tuning": f"pool.k{number}"}
        names["hosts"] = f"host-{number}"
        return f"{FED[self._view]}/{names[self._view]}"

    def answer(self) -> None:
        """Deliver the answer while the list is shown."""
        if isinstance(self._app.view, QueryTable):
            self._app.view.take_answer(dict(self._answer), self._app.view.filter_text)

    def _put(self, number: int, row: Any) -> None:
        if self._view not in ASKED:
            self._mirror.put(self.key(number), row)
            return
        name = f"{'key' if self._view == 'keys' else 'row'}-{number}"
        self._answer.pop(name, None)
        self._answer |= {name: row} if row is not None else {}
        self.answer()

    def put(self, number: int) -> None:
        self._put(number, self.row(number))

    def drop(self, number: int) -> None:
        self._put(number, None)

    def replaced(self, number: int) -> None:
        """Replace the row by another incarnation, if its kind has any."""
        known = self._mirror.unit(f"web-{number}")
        self._put(number, self.row(number, life=known.incarnation + 1 if known else 1))

    def snapshot(self, numbers: Any) -> None:
        mirror, sent = self._mirror, self._view in ASKED
        if sent:
            self._answer = {}
            for number in numbers:
                self._put(number, self.row(number))
        coming = {} if sent else {self.key(number): self.row(number) for number in numbers}
        mirror.begin()
        mirror.put("run", rows.RunRow("demo", "u", "running"))
        mirror.put("group/web", rows.GroupRow("web", "sidecar", desired=9, ready=9))
        for key, row in coming.items():
            mirror.put(key, row)
        mirror.whole(time.monotonic())


class Person:
    """Looks at the screen and remembers the row under the cursor."""

    def __init__(self, app: Noting, screen: Screen, world: World, view: str) -> None:
        self.app, self._screen, self._world, self._view = app, screen, world, view
        self.seen: Any = None

    async def go(self) -> None:
        for key in OPENED_BY[self._view] if self._view in OPENED_BY else (BY_ID[f"go.{self._view}"].keys[0],):
            await press(self._screen, key)
        await aeventually(lambda: self.app.view.name_in_registry == self._view and self.app.view.query(Table))
        self._world.answer()
        await aeventually(self.looks)

    def looks(self) -> bool:
        """Remember the row that is drawn under the cursor, found by the drawn text."""
        self.app.mirror.message_received(time.monotonic())
        self.app._paint_new_data()
        table = self.app.view.query_one(Table)
        drawn = ["".join(part.text for part in line) for line, ground in table._drawn if ground == "cursor"]
        rows_there = {key: row for key in table.model.ordered() if (row := table.model.get(key)) is not None}
        self.seen = next((row for key, row in rows_there.items() if drawn and key in drawn[0].split()), None)
        # Nothing is drawn until the widget has a size.
        return bool(table.size.height and table._drawn)

    async def act(self, verb: int) -> None:
        """Press the key of a command without another look, and submit a form unchanged unless it is empty."""
        self.app.taken.clear()
        keys = VERBS[self._view]
        self.app.take_key(keys[verb % len(keys)])
        if len(self.app.screen_stack) > 1:
            field = await aeventually(lambda: self.app.focused if isinstance(self.app.focused, Input) else None)
            field.value = field.value or REASON
            await press(self._screen, "enter")
            await aeventually(lambda: len(self.app.screen_stack) == 1 and self.app.taken)
        for intent in self.app.taken:
            self.hit(intent)

    def hit(self, intent: PendingCommand) -> None:
        row, said = self.seen, set(_strings(intent.args))
        assert row is not None, f"{intent.what}, but no row was under the cursor"
        match row:
            case rows.UnitRow():
                assert said & {row.unit, row.group}, f"{intent.what}, and {row.unit} was under the cursor"
                assert not {name for name in said if name.startswith("web-")} - {row.unit}, intent.what
                assert getattr(intent.args, "incarnation", None) in (None, 0, row.incarnation), intent.what
            case rows.HostRow():
                assert said - {""} == {row.host}, f"{intent.what}, and {row.host} was under the cursor"
            case rows.AlertRow():
                assert row.id in said, f"{intent.what}, and {row.id} was under the cursor"
            case rows.KnobRow():
                assert row.name in said, f"{intent.what}, and {row.name} was under the cursor"
                assert getattr(intent.args, "revision", row.revision) == row.revision
            case KeyRow():
                assert said == {row.name}, f"{intent.what}, and {row.name} was under the cursor"
            case dict():
                assert said - {"", REASON} == {row["id"]}, f"{intent.what}, and {row['id']} was under the cursor"
            case _:
                raise AssertionError(f"an act on {row}")


def _strings(value: Any) -> Iterator[str]:
    for each in msgspec.structs.astuple(value) if isinstance(value, msgspec.Struct) else value:
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | list):
            yield from _strings(each)


async def _lived(view: str, steps: list[tuple[str, Any]], height: int = 16) -> int:
    """Simulates one person and one run. Returns how many commands were sent."""
    app, acts = Noting(), 0
    async with app.run_test(size=(100, height)) as pilot:
        world, screen = World(app, view), Screen(app, pilot)
        person = Person(app, screen, world, view)
        await person.go()
        for what, how in steps:
            match what:
                case "aim":
                    app.take_key(how)
                    person.looks()
                case "look":
                    person.looks()
                case "wheel":
                    app.view.query_one(Table).model.scroll(how)
                    app.view.query_one(Table).repaint()
                    person.looks()
                case "elsewhere":
                    await press(screen, "3")
                    await person.go()
                case "filter":
                    app.view.take_filter("" if app.view.filter_text else "1")
                    person.looks()
                case "act":
                    await person.act(how)
                    acts += len(app.taken)
                    person.looks()
                case _:
                    getattr(world, what)(how)
    return acts


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(view=st.sampled_from(sorted(LISTS)), steps=STEPS, height=st.sampled_from(HEIGHTS))
def test_command_names_the_row_under_the_drawn_cursor_or_is_not_sent(
    view: str, steps: list[tuple[str, Any]], height: int
) -> None:
    asyncio.run(_lived(view, steps, height))


async def test_answer_to_a_filter_does_not_move_the_cursor_back() -> None:
    app = Noting()
    async with app.run_test(size=(100, 16)) as pilot:
        world, screen = World(app, "tasks"), Screen(app, pilot)
        person = Person(app, screen, world, "tasks")
        await person.go()
        model = app.view.query_one(Table).model
        for gone in (False, True):
            app.view.take_filter(f"n>{gone:d}")
            person.looks()
            assert model.target is None, "a row of another filter is not selected"
            app.take_key("end")
            person.looks()
            assert person.seen is not None
            seen = int(person.seen["id"].partition("-")[2])
            world.snapshot({*NUMBERS} - ({seen} if gone else set()))
            app._paint_new_data()
            await person.act(0)
            assert app.taken, "a row that left the answer stays selected"
        app.view.take_filter("")
        world.answer()
        person.looks()
        assert person.seen is not None, "an unmoved cursor is on the first row"


def test_commands_are_sent_for_rows() -> None:
    """The property above must not hold only because no command is ever sent."""
    steps: list[tuple[str, Any]] = [("aim", "down"), ("drop", 0), ("act", 0), ("act", 1), ("act", 2)]
    for view in LISTS:
        assert asyncio.run(_lived(view, steps)) >= 1, view
