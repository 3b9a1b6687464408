"""A preview shows the effect of a command and changes nothing."""

from __future__ import annotations

import pytest

from agentrl.control.commands.command_effects import of_down, of_plan, refuse_unseen_count
from agentrl.control.state.operations import Operation
from agentrl.errors import ConflictError
from agentrl.protocol.commands import Down, Scale
from agentrl.protocol.effects import Tier, tier_of
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State
from agentrl.supervision.up_plan import Plan, plan


def test_scaled_count_survives_up_and_the_preview_notes_it() -> None:
    in_file = GroupSpec("web", Role.SIDECAR, ("true",), count=1)
    scaled = GroupSpec("web", Role.SIDECAR, ("true",), count=3)
    state = State(run=RunState(up=True), groups={"web": GroupState(spec=scaled, file_count=1)})
    for number in range(3):
        state.slots[f"web-{number}"] = Slot(f"web-{number}", "web", number, state=UnitState.READY, incarnation=1)
    effect = of_plan(plan(state, (in_file,)))
    assert effect.empty
    assert tier_of(effect) is Tier.NONE
    (note,) = effect.notes
    assert "web stays at 3" in note
    assert note.endswith("agentrl scale web 1")
    assert effect.sentence() == f"changes nothing; {note}"


def test_count_scaled_by_another_person_is_not_overwritten() -> None:
    group = GroupState(spec=GroupSpec("web", Role.SIDECAR, ("true",), count=5), file_count=1)
    ben = Operation("o", "scale", b"", "", "ben@far", OperationState.SUCCEEDED, accepted_at=60.0, deadline=0.0)
    with pytest.raises(ConflictError, match=r"web was scaled to 5 by ben@far at 1970-01-01 00:01:00 UTC \(you saw 4\)"):
        refuse_unseen_count(group, Scale("web", to=3, seen=4), 3, ben)
    ben.command = "apply"
    with pytest.raises(ConflictError, match="web was brought up with 5 by ben@far"):
        refuse_unseen_count(group, Scale("web", to=3, seen=4), 3, ben)
    with pytest.raises(ConflictError, match="to 5 meanwhile"):
        refuse_unseen_count(group, Scale("web", to=3, seen=4), 3, None)
    for args, count in ((Scale("web", to=3), 3), (Scale("web", to=3, seen=5), 3), (Scale("web", to=5, seen=4), 5)):
        refuse_unseen_count(group, args, count, ben)


def test_up_of_a_run_that_was_only_read_from_is_reversible() -> None:
    begun = Plan(kept=("mongo-0",), started=("trainer-0",), changed=("steward-0",))
    assert tier_of(of_plan(begun)) is Tier.DISRUPTIVE
    effect = of_plan(begun, only_read=True)
    assert effect.sentence() == "starts trainer-0, steward-0"
    assert tier_of(effect) is Tier.REVERSIBLE


def test_down_unless_up_is_refused_for_a_wanted_run() -> None:
    spare = Down(now=True, unless_up=True)
    assert of_down(State(run=RunState(up=False)), spare).empty
    with pytest.raises(ConflictError, match="is up"):
        of_down(State(run=RunState(up=True)), spare)
