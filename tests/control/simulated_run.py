"""A simulated run for alert rules: its units report numbers, and time passes as a test says."""

from __future__ import annotations

import dataclasses

from agentrl.control.alerts.alert_states import AlertEngine
from agentrl.control.alerts.builtin_rules import default_rules
from agentrl.control.alerts.rule_types import RunSnapshot
from agentrl.control.state.knob_registry import KnobChange
from agentrl.control.state.progress import ProgressTracker
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.policies import step_alarms
from agentrl.protocol.control_commands import WaitChain
from agentrl.protocol.rows import AlertRow, RunRow, UnitRow, UnitState
from agentrl.telemetry.data_plane_metrics import STEP
from agentrl.telemetry.learning_metrics import LEARNING
from tests.policies.test_step_alarms import HEALTHY

AT = 1_700_000_000.0
WELL = HEALTHY | {"weight_mean": 1.0, "weight_std": 0.1, "ess": 0.98, "accepted_share": 0.97}
WELL |= {
    "mismatch_mean": 1e-6,
    "mismatch_over_limit": 1e-3,
    "kl_reference": 0.3,
    "not_finite_in_a_row": 0.0,
    "valid_share": 0.97,
}


def unit(name: str, **more: object) -> UnitRow:
    role = name.rpartition("-")[0]
    return UnitRow(name, role, role, UnitState.READY, host="a", incarnation=1, ready_at=AT, **more)  # type: ignore[arg-type]


TRAINER = unit("trainer-0")


class SimulatedRun:
    """A simulated run whose units report numbers, and its alerts."""

    def __init__(self, *units: UnitRow) -> None:
        self.engine = AlertEngine(default_rules())
        self.units = {one.unit: one for one in units or (TRAINER,)}
        self.metrics = MetricStore(LEARNING.keys() | {STEP.name})
        self.chains: tuple[WaitChain, ...] = ()
        self.changes: list[KnobChange] = []
        self.progress = ProgressTracker()
        self.now = 0.0
        self.fired: list[AlertRow] = []

    def report(self, unit: str = "trainer-0", **values: float) -> None:
        self.metrics.update(unit, 1, values, self.now)

    def pass_time(self, seconds: float, looks: int = 3) -> list[str]:
        """Returns the ids of active alerts at the end."""
        world = RunSnapshot(
            RunRow("r", "u", "running"),
            self.units,
            {},
            self.chains,
            self.metrics,
            scientific_changes=lambda: self.changes,
        )
        for _ in range(looks):
            self.now += seconds / looks
            for name, row in self.units.items():
                if row.role == "trainer":
                    works = row.state is UnitState.READY and not row.paused
                    self.progress.observe(name, self.metrics.values(name).get(STEP.name), self.now, works=works)
            world = dataclasses.replace(world, standing_still=tuple(self.progress.standing_still(self.now)))
            outcome = self.engine.evaluate(world, self.now, AT + self.now)
            self.fired += [note.alert for note in outcome.notify if note.what == "firing"]
        return [row.id for row in self.engine.rows()]

    def learn(self, steps: list[dict[str, float]], every_s: float = 5.0) -> list[str]:
        """Reports Steps as the trainer does, with their comparison to earlier ones."""
        for number, step in enumerate(steps):
            numbers = WELL | step
            self.report(**numbers, **step_alarms.against(steps[:number], step), step=float(number))
            ids = self.pass_time(every_s)
        return ids
