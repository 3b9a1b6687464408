"""Watches once a second whether the run makes progress, and shows it in the row of the run.

Without this a run looks healthy if its processes are fine but its trainer takes no steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from agentrl.control.context import Context
from agentrl.control.state.progress import Pipeline
from agentrl.formatting.amounts import age
from agentrl.protocol.control_commands import WaitChain
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.specs import Role
from agentrl.supervision.unit_slots import Slot
from agentrl.telemetry.control_plane_metrics import Metric
from agentrl.telemetry.data_plane_metrics import READY, RUNNING, STEP, TOKENS_PER_S, UNDER_WAY

EVERY_S = 1.0
WHOLE_S = 60.0
"""Ages are shown in whole minutes: each change of the row goes to every client."""
ONLY_EVALUATES = "evaluation"
_WORKS = (UnitState.READY, UnitState.SUSPECT)


class ProgressWatch:
    def __init__(self, context: Context, chains: Callable[[], list[WaitChain]]) -> None:
        self._context = context
        self._chains = chains
        self._due_at = 0.0

    def tick(self, now: float) -> None:
        if now < self._due_at:
            return
        self._due_at = now + EVERY_S
        context, trainers = self._context, self._of_role(Role.TRAINER)
        pipeline = self._pipeline()
        for slot in trainers:
            report = context.observed.facts(slot).report
            works = (
                context.state.run.up
                and slot.state in _WORKS
                and not context.supervisor.paused(slot.unit)
                and all(wait.on != ONLY_EVALUATES for wait in report.waits)
            )
            context.progress.observe(
                slot.unit,
                context.metrics.values(slot.unit).get(STEP.name),
                now,
                works=bool(works),
                pipeline=pipeline,
            )
        context.progress.keep({slot.unit for slot in trainers})
        standing, paused = self._standing(now), self._paused(trainers)
        if (standing, paused) != (context.own_status.standing, context.own_status.paused):
            context.own_status.standing, context.own_status.paused = standing, paused
            context.show_run()

    def _standing(self, now: float) -> str:
        worst = max(self._context.progress.standing_still(now), key=lambda one: one.for_s, default=None)
        if worst is None:
            return ""
        chains = (chain.because for chain in self._chains() if worst.unit in {link.who for link in chain.links})
        why = next(chains, worst.stage)
        whole = max(WHOLE_S, worst.for_s // WHOLE_S * WHOLE_S)
        return f"{worst.unit} has made no step for {age(whole)}{f': {why}' if why else ''}"

    def _paused(self, trainers: list[Slot]) -> str:
        """The person or command that paused all trainers or the run; empty if none is paused."""
        context = self._context
        at_work = [slot.unit for slot in trainers if slot.state in _WORKS and not slot.done]
        paused = [unit for unit in at_work if context.supervisor.paused(unit)]
        if not context.state.run.paused and (not at_work or paused != at_work):
            return ""
        what = "the run" if context.state.run.paused else ", ".join(paused)
        done = [
            operation
            for operation in context.operations.all()
            if operation.command == "pause" and operation.state is OperationState.SUCCEEDED
        ]
        last = max(done, key=lambda operation: operation.accepted_at, default=None)
        return f"{what} by {last.who}" if last else what

    def _pipeline(self) -> Pipeline:
        engines, toolboxes = self._of_role(Role.ENGINE), self._of_role(Role.TOOLBOX)
        reports = [self._context.observed.facts(slot).report for slot in engines]
        computes = (self._context.observed.facts(slot).report.phase for slot in self._of_role(Role.TRAINER))
        loads = (report.serving.startswith("loading") for report in reports)
        return Pipeline(
            engines=len(engines),
            serving=sum(report.weights is not None for report in reports),
            running=self._sum(RUNNING, self._of_role(Role.SAMPLER)),
            under_way=self._sum(UNDER_WAY, self._of_role(Role.STEWARD)),
            ready=self._sum(READY, self._of_role(Role.STEWARD)),
            works=any(computes)
            or any(loads)
            or self._sum(TOKENS_PER_S, engines) > 0
            or self._sum(RUNNING, toolboxes) > 0,
        )

    def _sum(self, metric: Metric, slots: list[Slot]) -> int:
        return math.ceil(sum(self._context.metrics.values(slot.unit).get(metric.name, 0.0) for slot in slots))

    def _of_role(self, role: Role) -> list[Slot]:
        state = self._context.state
        groups = [name for name, group in state.groups.items() if group.spec.role is role]
        return [slot for name in groups for slot in state.of_group(name) if slot.wanted and state.leads(slot)]
