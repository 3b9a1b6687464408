"""Each event finds its function in a table by its name; moves outside of the table and broken invariants are named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.supervision.supervisor import RUN_EVENTS
from agentrl.supervision.unit_events import TRANSITIONS
from agentrl.supervision.unit_slots import STATE_MOVES, IllegalMoveError
from tests.supervision.world import World, spec


def _kinds(base: type[events.Event]) -> Iterator[type[events.Event]]:
    """Events of which there are instances: those without subclasses."""
    for kind in base.__subclasses__():
        if kind.__subclasses__():
            yield from _kinds(kind)
        else:
            yield kind


def _snake(kind: type[events.Event]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def test_every_event_is_in_exactly_one_table() -> None:
    about_units = {kind for kind in _kinds(events.UnitEvent)}
    assert TRANSITIONS.keys() == about_units
    assert RUN_EVENTS.keys() == {*_kinds(events.Event)} - about_units


def test_function_of_an_event_has_its_name() -> None:
    for kind, row in TRANSITIONS.items():
        assert row, f"{_snake(kind)} does nothing"
        assert {function.__name__.startswith(_snake(kind)) for function in row.values()} == {True}
    for kind, function in RUN_EVENTS.items():
        assert function.__name__.removeprefix("_") == _snake(kind)


def test_every_state_has_its_moves() -> None:
    assert STATE_MOVES.keys() == {*UnitState}


def _world() -> World:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web", 1, speaks=True),), by="op-7"))
    world.quiesce()
    return world


def test_illegal_move_raises_with_the_history_of_the_unit() -> None:
    slot = _world().slot("web-0")
    slot.state = UnitState.STOPPED
    with pytest.raises(IllegalMoveError, match="from stopped to ready") as raised:
        slot.move(UnitState.READY, "by mistake", 0.0)
    assert "pending->starting" in str(raised.value)


def test_operation_can_be_followed_through_moves_and_instructions() -> None:
    world = _world()
    slot = world.slot("web-0")
    world.log.clear()
    instructions = world.supervisor.handle(
        events.RestartWanted(units=("web-0",), by="op-8", stimulus="op-8"), world.now
    )
    assert {instruction.stimulus for instruction in instructions} == {"op-8"}
    assert slot.stimulus == "op-8"
    assert slot.story[-1] == "web-0.1 ready->draining: is replaced [op-8]"
    assert any(str(instruction).startswith("SendToUnit web-0 1 Drain(") for instruction in instructions)


def test_late_event_of_an_incarnation_that_ended_changes_nothing() -> None:
    world = _world()
    world.handle(events.Exited(host="a", unit="web-0", incarnation=1, exit=ExitStatus(code=1)))
    before = world.slot("web-0").incarnation, world.slot("web-0").state
    world.handle(events.UnitHung(unit="web-0", incarnation=1, because="silent"))
    world.handle(events.SpawnFailed(host="a", unit="web-0", incarnation=1, reason="late", final=True))
    assert (world.slot("web-0").incarnation, world.slot("web-0").state) == before


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("leader_gone", True, "its leader has ended"),
        ("tree_gone", True, "no process of it is left"),
        ("generation", 9, "it should stop, and waits for nothing"),
        ("reason", "", "it has no reason"),
    ],
)
def test_broken_invariant_is_named_with_the_history_of_the_unit(field: str, value: object, sentence: str) -> None:
    world = _world()
    assert world.supervisor.validate() == []
    setattr(world.slot("web-0"), field, value)
    violation = next(violation for violation in world.supervisor.validate() if violation.what == sentence)
    assert violation.unit == "web-0"
    assert any("starting->ready" in move for move in violation.story)
