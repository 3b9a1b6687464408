"""An operation ends as soon as its goal cannot be reached any more, and says what stands in the way."""

from __future__ import annotations

import pytest

from agentrl.control.state.operations import Goal, Operation, Operations, Want
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State

AFTER = {"steward": (), "engine": (), "sampler": ("steward",), "trainer": ("sampler",)}


class Room:
    """A steward that is fatal, what starts after it, and an `up` that wants all of them."""

    def __init__(self) -> None:
        groups = {
            name: GroupState(GroupSpec(name, Role.SIDECAR, ("true",), after=after), 1) for name, after in AFTER.items()
        }
        self.slots = {name: Slot(f"{name}-0", name, 0, reason="waits") for name in AFTER}
        self.slots["steward"].state = UnitState.FATAL
        self.slots["steward"].reason = "line 3 is no JSON"
        slots = {slot.unit: slot for slot in self.slots.values()}
        for slot in slots.values():
            slot.desired_by = "op-1"
        self.operations = Operations(State(RunState(up=True), groups, slots), lambda operation: None)
        self.operation = Operation("op-1", "up", b"", "", "ann", OperationState.ACCEPTED, 100.0, 700.0)
        self.operations.add(self.operation)
        self.operations.begin(self.operation, {unit: Goal(Want.UP) for unit in slots})

    def review(self) -> OperationState:
        self.operations.review(101.0)
        return self.operation.state


def test_what_starts_after_a_fatal_unit_is_not_waited_for() -> None:
    room = Room()
    assert room.review() is OperationState.RUNNING, "the engine may still become ready"
    room.slots["engine"].state, room.slots["engine"].incarnation = UnitState.READY, 1
    assert room.review() is OperationState.FAILED
    assert room.operation.reason == "steward-0 is fatal: line 3 is no JSON"


@pytest.mark.parametrize("state", [UnitState.BACKOFF, UnitState.STARTING])
def test_what_is_on_its_way_beside_a_fatal_unit_is_waited_for(state: UnitState) -> None:
    room = Room()
    room.slots["engine"].state, room.slots["engine"].incarnation = UnitState.READY, 1
    room.slots["trainer"].state = state
    assert room.review() is OperationState.RUNNING


def test_a_fatal_unit_that_is_wanted_again_stands_in_nobodys_way() -> None:
    room = Room()
    room.slots["engine"].state, room.slots["engine"].incarnation = UnitState.READY, 1
    room.slots["steward"].generation += 1
    assert room.review() is OperationState.RUNNING
