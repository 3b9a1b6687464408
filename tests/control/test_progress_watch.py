"""The reports of all units become the stage at which a run without steps stands still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentrl.control.progress_watch import ProgressWatch
from agentrl.control.state.observed_state import CoordinatorStatus, ObservedState
from agentrl.control.state.progress import ProgressTracker
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.protocol.messages import UnitReport, Wait
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.liveness import Leases
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State


class Run:
    """One unit of each role of the data plane, all ready."""

    def __init__(self) -> None:
        state = State(run=RunState(up=True))
        for role in (Role.STEWARD, Role.ENGINE, Role.SAMPLER, Role.TOOLBOX, Role.TRAINER):
            state.groups[role.value] = GroupState(spec=GroupSpec(role.value, role, ("true",)), file_count=1)
            unit = f"{role.value}-0"
            state.slots[unit] = Slot(unit, role.value, 0, state=UnitState.READY, incarnation=1)
        self.observed = ObservedState(state, Leases(10.0, 60.0))
        self.metrics = MetricStore()
        self.status = CoordinatorStatus(0.0, 1)
        context: Any = SimpleNamespace(
            state=state,
            observed=self.observed,
            metrics=self.metrics,
            progress=ProgressTracker(),
            own_status=self.status,
            operations=SimpleNamespace(all=list),
            supervisor=SimpleNamespace(paused=lambda unit: False),
            show_run=lambda: None,
        )
        self.watch = ProgressWatch(context, list)
        self.now = 0.0

    def report(self, unit: str, *, metrics: dict[str, float] | None = None, **report: Any) -> None:
        self.observed.facts(self.observed.state.slots[unit]).report = UnitReport(**report)
        self.metrics.update(unit, 1, metrics or {}, self.now)

    def after(self, seconds: int) -> str:
        for _ in range(seconds):
            self.now += 1.0
            self.watch.tick(self.now)
        return self.status.standing


def test_first_stage_without_a_result_is_shown() -> None:
    run = Run()
    run.report("trainer-0", waits=(Wait("batch"),))
    assert run.after(175) == ""
    assert run.after(10) == "trainer-0 has made no step for 3 min: no engine serves a version"
    run.report("engine-0", serving="loading(v1)")
    assert run.after(180) == "", "it loads"
    run.report("engine-0", weights=1)
    run.report("steward-0", metrics={"in_flight": 16.0, "ready": 0.0})
    assert "no sampler claims a record, and 16 records are admitted" in run.after(190)
    run.report("sampler-0", metrics={"running": 8.0})
    run.report("engine-0", weights=1, metrics={"tokens_per_s": 50.0})
    assert run.after(240) == "", "records are sampled"
    run.report("engine-0", weights=1, metrics={"tokens_per_s": 0.0})
    assert run.after(185).endswith(": 8 records are sampled, and none is done")
    run.report("trainer-0", metrics={"step": 1.0})
    assert run.after(5) == ""


def test_trainer_that_computes_its_first_step_does_not_stand_still() -> None:
    run = Run()
    run.report("engine-0", weights=1)
    run.report("steward-0", metrics={"in_flight": 0.0, "ready": 32.0})
    run.report("trainer-0", phase="step")
    assert run.after(600) == ""
    run.report("trainer-0", waits=(Wait("batch"),))
    assert "the trainer waits with 32 ready records, and 0 are sampled" in run.after(190)
