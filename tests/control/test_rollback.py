"""The command rollback: what its preview names, and the order of its parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.control.handlers.rollback import Rollback
from agentrl.control.state.knob_registry import KnobRegistry
from agentrl.control.state.operations import Goal, Operation, Operations, Want
from agentrl.errors import RefusedError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_changes import RollBack, RollbackPreview
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.messages import Request
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.protocol.wire import raw
from agentrl.supervision import events
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State

SETTINGS: dict[str, KnobValue] = {"learning_rate": 0.0005, "groups": 8}
TRAINED_AT = 50.0
DONE: dict[str, KnobValue] = {"checkpoint": "step-000165.a", "version": 165, "trained_at": TRAINED_AT, **SETTINGS}


class Room:
    """A coordinator with a trainer, and a steward that answers at once."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.knobs = KnobRegistry()
        self.knobs.declare(Knob("learning_rate", "float", 0.05, minimum=0.0, maximum=1.0, scientific=True))
        self.knobs.declare(Knob("groups", "int", 8, scientific=True))
        self.knobs.declare(Knob("max_turns", "int", 4, owner="sampler", scientific=True))
        slot = Slot("trainer-0", "trainer", 0, state=UnitState.READY, incarnation=3, tree_gone=False)
        group = GroupState(spec=GroupSpec("trainer", Role.TRAINER, ("true",)), file_count=1)
        state = State(RunState(up=True), slots={"trainer-0": slot}, groups={"trainer": group})
        self.operations = Operations(state, lambda operation: None)
        self.context = SimpleNamespace(
            state=state,
            knobs=self.knobs,
            operations=self.operations,
            clock=SimpleNamespace(now=lambda: 100.0),
            happened=self._happened,
        )
        settings = SimpleNamespace(knob_changed=lambda operation, name, change: self.acts.append(f"set {name}"))
        served = SimpleNamespace(ask=self._ask, carry_out=self._carry_out)
        self.rollback = Rollback(cast(Any, self.context), cast(Any, settings), cast(Any, served))

    async def _ask(self, spec: object, request: Request, who: str) -> msgspec.Raw:
        assert request.dry_run
        return raw(RollbackPreview(Effect(changes=("3 steps are undone",)), dict(SETTINGS), TRAINED_AT))

    def _carry_out(self, operation: Operation, then: Any) -> None:
        operation.by_itself = True
        self.acts.append("stored")
        operation.result = dict(DONE)
        then(operation)

    def _happened(self, event: events.Event) -> None:
        assert isinstance(event, events.RestartWanted)
        self.acts.append(f"restart {', '.join(event.units)}")
        self.context.state.slots["trainer-0"].desired_by = event.by

    async def prepared(self, args: RollBack, *, dry_run: bool = False) -> Effect:
        request = Request("op-1", "rollback", raw(args), dry_run=dry_run)
        return (await self.rollback.ask_steward(COMMANDS["rollback"], request, args, "ann")).effect

    def execute(self, args: RollBack, **known: Any) -> Operation:
        state = OperationState.ACCEPTED
        operation = Operation("op-1", "rollback", bytes(raw(args)), "", "ann", state, 100.0, 400.0, **known)
        self.operations.add(operation)
        goals = self.rollback.table["rollback"](args).execute(operation)
        if goals is not None:
            self.operations.begin(operation, goals)
        return operation


async def test_preview_names_steps_units_and_knobs() -> None:
    effect = await Room().prepared(RollBack("165"), dry_run=True)
    assert effect.changes == ("3 steps are undone", "learning_rate: 0.05 -> 0.0005")
    assert (effect.restarts, effect.loses, effect.scientific) == (("trainer-0",), (), True)
    kept = await Room().prepared(RollBack("165", keep_knobs=True), dry_run=True)
    assert kept.changes == ("3 steps are undone",)
    assert "learning_rate stays at 0.05, it was 0.0005" in kept.notes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({60.0: 8}, "max_turns: 8 -> 4"),
        ({40.0: 8, 60.0: 6, 70.0: 2}, "max_turns: 2 -> 8"),
        ({40.0: 8}, ""),
        ({60.0: 8, 70.0: 4}, ""),
    ],
)
async def test_knobs_of_the_sampler_get_the_value_of_the_last_step_before_the_checkpoint(
    changes: dict[float, int], expected: str
) -> None:
    room = Room()
    for at, value in changes.items():
        room.knobs.tune("max_turns", value, seen_revision=None, who="ann", at=at, note="try")
    named = [line for line in (await room.prepared(RollBack("165"), dry_run=True)).changes if "max_turns" in line]
    assert named == ([expected] if expected else [])
    operation = room.execute(RollBack("165", "it collapsed"))
    assert [line for line in operation.lines if "max_turns" in line] == named
    assert operation.result == {"checkpoint": "step-000165.a", "version": 165}


async def test_rollback_needs_a_reason() -> None:
    with pytest.raises(RefusedError, match="needs a reason"):
        await Room().prepared(RollBack("165"))


def test_choice_is_stored_then_knobs_are_set_then_the_trainer_restarts() -> None:
    room = Room()
    operation = room.execute(RollBack("165", "it collapsed"))
    assert room.acts == ["stored", "set learning_rate", "restart trainer-0"]
    assert room.knobs.value("learning_rate") == 0.0005
    assert room.knobs.history("learning_rate")[-1].note == "rollback: it collapsed"
    assert operation.goals == {"trainer-0": Goal(Want.UP, 3)}
    assert operation.result == {"checkpoint": "step-000165.a", "version": 165}
    room.operations.review(101.0)
    assert operation.state is OperationState.RUNNING, "the trainer is not ready again"


def test_next_coordinator_does_not_restart_the_trainer_twice() -> None:
    room = Room()
    operation = room.execute(RollBack("165", "it collapsed"), goals={"trainer-0": Goal(Want.UP, 3)}, by_itself=True)
    assert room.acts == []
    assert (operation.by_itself, operation.goals) == (False, {"trainer-0": Goal(Want.UP, 3)})
