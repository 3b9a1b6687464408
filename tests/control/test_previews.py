"""A preview shows the effect of a command and changes nothing."""

from __future__ import annotations

import pytest

from agentrl.control.commands.command_effects import (
    of_down,
    of_drain,
    of_plan,
    of_restart,
    of_scale,
    of_stop,
    refuse_unseen_count,
)
from agentrl.control.state.operations import Operation
from agentrl.errors import ConflictError, RefusedError
from agentrl.protocol.control_commands import Down, DrainUnits, Restart, Scale, Stop
from agentrl.protocol.effects import Tier, tier_of
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.unit_slots import GroupState, HostState, RunState, Slot, State
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


def gang(role: Role) -> State:
    spec = GroupSpec("train", role, ("true",), count=3, gang=True)
    state = State(run=RunState(up=True), groups={"train": GroupState(spec=spec, file_count=3)})
    for number in range(3):
        unit = f"train-{number}"
        state.slots[unit] = Slot(unit, "train", number, state=UnitState.READY, host="a", tree_gone=False)
    state.hosts["a"] = HostState("a")
    return state


def test_acts_on_one_rank_name_all_units_that_end_and_start() -> None:
    state, all_ranks = gang(Role.SIDECAR), ("train-0", "train-1", "train-2")
    assert of_stop(state, Stop("train-1")).drains == all_ranks
    assert of_drain(state, DrainUnits(unit="train-1")).drains == all_ranks
    effect, units = of_restart(state, Restart("train-1", now=True))
    assert (effect.kills, units) == (all_ranks, all_ranks)
    state.slots["train-1"].host, state.hosts["b"] = "b", HostState("b")
    assert set(of_drain(state, DrainUnits(host="b")).drains) == set(all_ranks)
    effect, count = of_scale(state, Scale("train", to=2), frozenset())
    assert (effect.starts, effect.drains, count) == (("train-0", "train-1"), all_ranks, 2)


def test_number_of_ranks_of_a_trainer_is_that_of_the_run_file() -> None:
    with pytest.raises(RefusedError, match=r"train has as many ranks as training.parallel"):
        of_scale(gang(Role.TRAINER), Scale("train", to=2), frozenset())


def test_down_unless_up_is_refused_for_a_wanted_run() -> None:
    spare = Down(now=True, unless_up=True)
    assert of_down(State(run=RunState(up=False)), spare).empty
    with pytest.raises(ConflictError, match="is up"):
        of_down(State(run=RunState(up=True)), spare)
