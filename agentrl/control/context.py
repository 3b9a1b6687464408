"""What the parts of a coordinator share. Made once, by the `Coordinator`.

Invariant: a part knows this and nothing of the other parts; whatever one needs of another is bound in `coordinator`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from agentrl.config.paths import RunFile
from agentrl.config.run import RunConfig
from agentrl.control.clock import Clock
from agentrl.control.executor import Executor
from agentrl.control.messaging.peers import Peers
from agentrl.control.persistence.journal import Journal
from agentrl.control.persistence.keyring import Keyring
from agentrl.control.state.bottleneck import BottleneckDetector
from agentrl.control.state.disk_forecast import DiskForecast
from agentrl.control.state.feed_publisher import Feed
from agentrl.control.state.knob_registry import KnobRegistry
from agentrl.control.state.observed_state import ObservedState, RunLife
from agentrl.control.state.operations import Operations
from agentrl.control.state.unit_metrics import Metrics
from agentrl.protocol.rows import AuditRow, RunRow
from agentrl.protocol.wire import encode
from agentrl.supervision import events
from agentrl.supervision.instructions import Persist, Publish
from agentrl.supervision.liveness import Health, Leases
from agentrl.supervision.supervisor import Supervisor
from agentrl.supervision.transitions import WITH_PROCESS
from agentrl.supervision.unit_slots import State


@dataclass
class Context:
    run: RunFile
    epoch: str
    secret: bytes
    """From which the fencing tokens of all incarnations are derived."""
    host: str
    clock: Clock
    life: RunLife
    state: State
    supervisor: Supervisor
    leases: Leases
    """Of units."""
    host_leases: Leases
    observed: ObservedState
    journal: Journal
    executor: Executor
    feed: Feed
    operations: Operations
    knobs: KnobRegistry
    keyring: Keyring
    metrics: Metrics
    bottleneck: BottleneckDetector
    disks: DiskForecast
    peers: Peers
    config: RunConfig | None = None
    ending: bool = False
    """`down` has stopped everything and is scanning; too late for `up`."""
    audited: int = 0
    """Changes that were noted in this epoch."""
    dice: random.Random = field(default_factory=random.Random)

    def happened(self, event: events.Event) -> None:
        """Tell the supervisor; what it instructs is carried out at the end of this turn of the loop."""
        rolled = msgspec.structs.replace(event, dice=self.dice.random())
        instructions = self.supervisor.handle(rolled, self.clock.now())
        for instruction in instructions:
            if isinstance(instruction, Persist | Publish):
                self.operations.unit_changed(instruction.key)
        self.executor.add(instructions)

    # ---- rows ----

    def show_unit(self, unit: str, *, urgent: bool = True, first: bool = False) -> None:
        slot = self.state.slots.get(unit)
        if slot is None or (not slot.wanted and slot.tree_gone):
            self.feed.remove(f"unit/{unit}")
            self.leases.end(unit)
            self.metrics.forget(unit)
        else:
            row = self.observed.unit_row(slot, self.supervisor.paused(unit))
            self.feed.set(f"unit/{unit}", row, urgent=urgent, first=first)
        if slot is not None and urgent:
            self.show_group(slot.group)
            self.show_run()

    def show_group(self, name: str) -> None:
        group = self.state.groups.get(name)
        if group is None or group.removed:
            self.feed.remove(f"group/{name}")
        else:
            self.feed.set_later(f"group/{name}", lambda: self.observed.group_row(group))

    def show_host(self, name: str) -> None:
        host = self.state.hosts.get(name)
        if host is not None:
            units, full_in_s = self.supervisor.units_on(name), self.disks.full_in_s(name)
            self.feed.set(f"host/{name}", self.observed.host_row(host, units=units, full_in_s=full_in_s))

    def show_pulse(self) -> None:
        now = self.clock.now()
        standing = self.observed.steps_stand(self.supervisor.paused)
        if not self.bottleneck.is_due(now, standing):
            return
        alive = [slot.unit for slot in self.state.slots.values() if slot.state in WITH_PROCESS]
        row = self.bottleneck.look(now, alive, self.observed.trainer_to_come(), standing)
        if row is None:
            self.feed.remove("pulse")
        else:
            self.feed.set("pulse", row)

    def show_run(self) -> None:
        self.feed.set_later("run", self._run_row)

    def _run_row(self) -> RunRow:
        self.life.segment = self.knobs.segment
        self.life.journal_full = self.executor.full
        return self.observed.run_row(self.run, self.life)

    def show_knob(self, name: str) -> None:
        self.feed.set(f"knob/{name}", self.knobs.row(name), urgent=True)

    # ---- leases ----

    def lease_unit(self, unit: str) -> None:
        now, known, slot = self.clock.now(), unit in self.leases, self.state.slots[unit]
        # Who was suspect to the last coordinator has to be found well again, or nobody would ever say so.
        self.leases.begin(unit, now, Health.SUSPECT if slot.silent else Health.WELL)
        until = slot.phase_until
        if not known and until > now:
            # It may stand in a phase that it announced to the last coordinator, and say so again only at its end.
            self.leases.phase(unit, now, phase="announced before", age_s=0.0, at_most_s=until - now)

    def lease_host(self, host: str) -> None:
        self.host_leases.begin(host, self.clock.now())

    def audit(self, who: str, command: str, what: str, *, operation: str = "", note: str = "") -> None:
        """Who changed what; kept in the journal."""
        now = self.clock.now()
        self.audited += 1
        row = AuditRow(self.audited, now, who, command, what, operation, note)
        self.executor.event("audit", f"{self.epoch}-{self.audited}", now, encode(row))
