"""An operation ends as soon as its goal is unreachable, and names the cause."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.control.state.operations import Goal, Operation, Operations, Want
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.unit_slots import GroupState, HostState, RunState, Slot, State

AFTER = {"steward": (), "engine": (), "sampler": ("steward",), "trainer": ("sampler",)}


class FakeContext:
    """A fatal steward, groups that start after it, and an `up` of all groups."""

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
        for slot in self.slots.values():
            self.operations.unit_changed(slot.unit)
        self.operations.review(101.0)
        return self.operation.state


def test_operation_does_not_wait_for_units_behind_a_fatal_one() -> None:
    fake = FakeContext()
    assert fake.review() is OperationState.RUNNING, "the engine may still become ready"
    fake.slots["engine"].state, fake.slots["engine"].incarnation = UnitState.READY, 1
    assert fake.review() is OperationState.FAILED
    assert fake.operation.reason == "steward-0 is fatal: line 3 is no JSON"


def test_unit_counts_as_ready_only_after_its_host_has_reported() -> None:
    unit = Slot("web-0", "web", 0, incarnation=1, host="a", state=UnitState.READY, tree_gone=False, desired_by="op-1")
    groups = {"web": GroupState(GroupSpec("web", Role.SIDECAR, ("true",)), 1)}
    state = State(RunState(up=True), groups, {"web-0": unit})
    operations = Operations(state, lambda operation: None)
    operation = Operation("op-1", "up", b"", "", "ann", OperationState.ACCEPTED, 100.0, 700.0)
    operations.add(operation)
    operations.begin(operation, {"web-0": Goal(Want.UP, shared=True)})
    operations.review(101.0)
    assert operation.waiting_for == ("host a has not reported about web-0 yet",)
    state.hosts["a"] = HostState("a")
    unit.state, unit.tree_gone = UnitState.BACKOFF, True
    operations.unit_changed("web-0")
    operations.review(102.0)
    assert operation.state is OperationState.RUNNING, "web-0 is in backoff"
    unit.state, unit.incarnation, unit.tree_gone = UnitState.READY, 2, False
    operations.unit_changed("web-0")
    operations.review(103.0)
    assert operation.state is OperationState.SUCCEEDED


def test_an_operation_without_goals_succeeds_at_its_first_review() -> None:
    fake = FakeContext()
    pause = Operation("op-2", "pause", b"", "", "ann", OperationState.ACCEPTED, 100.0, 700.0)
    fake.operations.add(pause)
    fake.operations.begin(pause, {})
    fake.operations.review(101.0)
    assert pause.state is OperationState.SUCCEEDED


@pytest.mark.parametrize("state", [UnitState.BACKOFF, UnitState.STARTING])
def test_operation_waits_for_units_beside_a_fatal_one(state: UnitState) -> None:
    fake = FakeContext()
    fake.slots["engine"].state, fake.slots["engine"].incarnation = UnitState.READY, 1
    fake.slots["trainer"].state = state
    assert fake.review() is OperationState.RUNNING


def test_operation_does_not_wait_for_a_host_whose_start_fails() -> None:
    fake = FakeContext()
    state = fake.operations._state
    state.groups["steward"].spec = msgspec.structs.replace(state.groups["steward"].spec, hosts=("b", "c"))
    fake.slots["steward"].state, fake.slots["steward"].reason = UnitState.PENDING, "no host can take it (b, c: no key)"
    fake.slots["engine"].state, fake.slots["engine"].incarnation = UnitState.READY, 1
    state.in_vain = {"b"}
    assert fake.review() is OperationState.RUNNING, "host c may still start"
    state.in_vain = {"b", "c"}
    fake.operations.hosts_changed()
    fake.operations.review(102.0)
    assert fake.operation.state is OperationState.FAILED
    assert fake.operation.reason == "steward-0 cannot start: no host can take it (b, c: no key)"


def test_fatal_unit_that_is_restarted_blocks_nothing() -> None:
    fake = FakeContext()
    fake.slots["engine"].state, fake.slots["engine"].incarnation = UnitState.READY, 1
    fake.slots["steward"].generation += 1
    assert fake.review() is OperationState.RUNNING


UNITS = ("web-0", "web-1", "web-2", "db-0")
changes = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(UNITS),
        "state": st.sampled_from(UnitState),
        "incarnation": st.integers(0, 2),
        "tree_gone": st.booleans(),
        "done": st.booleans(),
        "wanted": st.booleans(),
        "generation": st.integers(0, 1),
        "desired_by": st.sampled_from(("op-1", "op-1", "op-2")),
    }
)
goals = st.builds(Goal, st.sampled_from(Want), st.integers(0, 1), st.booleans())


@given(
    wanted=st.fixed_dictionaries({unit: goals for unit in UNITS[:3]}),
    steps=st.lists(st.lists(changes, max_size=3), min_size=1, max_size=8),
)
def test_review_of_changed_units_equals_a_review_of_all(
    wanted: dict[str, Goal], steps: list[list[dict[str, Any]]]
) -> None:
    groups = {
        name: GroupState(GroupSpec(name, Role.SIDECAR, ("true",), after=after), 1)
        for name, after in (("web", ("db",)), ("db", ()))
    }
    slots = {unit: Slot(unit, unit.partition("-")[0], 0, desired_by="op-1") for unit in UNITS}
    state = State(RunState(up=True), groups, slots)
    kept = Operations(state, lambda operation: None)
    operation = Operation("op-1", "up", b"", "", "ann", OperationState.ACCEPTED, 100.0, 700.0)
    kept.add(operation)
    kept.begin(operation, wanted)
    for now, step in enumerate(step for step in steps if not operation.state.ended):
        for change in step:
            slot = slots[change["unit"]]
            for name, value in change.items():
                setattr(slot, name, value)
            kept.unit_changed(slot.unit)
        fresh = Operations(state, lambda operation: None)
        other = msgspec.structs.replace(operation)
        fresh.restore([other])
        kept.review(float(now))
        fresh.review(float(now))
        assert (operation.state, operation.waiting_for) == (other.state, other.waiting_for)
        if operation.state is not OperationState.SUPERSEDED:
            assert operation.reason == other.reason
