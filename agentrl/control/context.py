"""Holds the state that all parts of a coordinator share. `Coordinator` creates it once.

Invariants:
- A part imports this state and no other part.
- `coordinator` connects parts that need each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentrl import __version__
from agentrl.config.paths import RunFile
from agentrl.config.run import RunConfig
from agentrl.control.clock import Clock
from agentrl.control.instruction_queue import Executor
from agentrl.control.local_peers import LocalPeers
from agentrl.control.messaging.peers import Peers
from agentrl.control.persistence.journal import Journal
from agentrl.control.persistence.keyring import Keyring
from agentrl.control.process_spans import ProcessSpans
from agentrl.control.state.bottleneck import BottleneckDetector
from agentrl.control.state.disk_forecast import DiskForecast
from agentrl.control.state.feed_publisher import Feed
from agentrl.control.state.knob_registry import KnobRegistry
from agentrl.control.state.observed_state import CoordinatorStatus, ObservedState
from agentrl.control.state.operations import Operations
from agentrl.control.state.progress import ProgressTracker
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.errors import ExitCode
from agentrl.protocol.feed import MetricBatch
from agentrl.protocol.messages import PROTOCOL_MAJOR, Refused, Welcome
from agentrl.protocol.rows import AuditRow, RunRow
from agentrl.protocol.wire import encode
from agentrl.supervision import events
from agentrl.supervision.instructions import Persist, Publish
from agentrl.supervision.liveness import Health, Leases
from agentrl.supervision.supervisor import Supervisor
from agentrl.supervision.unit_slots import WITH_PROCESS, State
from agentrl.telemetry.data_plane_metrics import STEP


@dataclass
class Context:
    run: RunFile
    epoch: str
    secret: bytes
    """The fencing tokens of all incarnations are derived from it."""
    host: str
    clock: Clock
    own_status: CoordinatorStatus
    state: State
    supervisor: Supervisor
    leases: Leases
    """The leases of units; `host_leases` are those of host agents."""
    host_leases: Leases
    observed: ObservedState
    journal: Journal
    executor: Executor
    feed: Feed
    operations: Operations
    knobs: KnobRegistry
    keyring: Keyring
    metrics: MetricStore
    bottleneck: BottleneckDetector
    disks: DiskForecast
    progress: ProgressTracker
    peers: Peers
    local_peers: LocalPeers
    publish_metrics: Callable[[bytes], object]
    config: RunConfig | None = None
    ending: bool = False
    """`down` has stopped all units and looks for remaining processes: it is too late for `up`."""
    audited: int = 0
    """The number of audit rows of this epoch."""
    stimuli: int = 0
    """The number of events of this epoch that no operation caused."""
    dice: random.Random = field(default_factory=random.Random)
    process_spans: ProcessSpans = field(default_factory=ProcessSpans)

    def happened(self, event: events.Event) -> None:
        """Hand an event to the supervisor. Its instructions are carried out at the end of this turn of the loop."""
        named = msgspec.structs.replace(event, dice=self.dice.random(), stimulus=self._stimulus(event))
        instructions = self.supervisor.handle(named, self.clock.now())
        for instruction in instructions:
            if isinstance(instruction, Persist | Publish):
                self.operations.unit_changed(instruction.key)
        self.executor.add(instructions)

    def _stimulus(self, event: events.Event) -> str:
        """The id of an event: that of its operation, or a number that no other event of the run has."""
        if isinstance(event, events.OperatorEvent | events.DeathConfirmed):
            return event.by
        self.stimuli += 1
        return f"{type(event).__name__}-{self.epoch[:6]}-{self.stimuli}"

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
        if host is None and (why := self.state.awaited.get(name)):
            self.feed.set(f"host/{name}", self.observed.awaited_row(name, why))
        elif host is None:
            self.feed.remove(f"host/{name}")
        else:
            units, full_in_s = self.supervisor.units_on(name), self.disks.full_in_s(name)
            holders = self.supervisor.holders(name)
            row = self.observed.host_row(host, units=units, holders=holders, full_in_s=full_in_s)
            self.feed.set(f"host/{name}", row)

    def is_connected(self, host: str) -> bool:
        known = self.state.hosts.get(host)
        return host == self.host or (known is not None and known.connected)

    def show_bottleneck(self) -> None:
        now = self.clock.now()
        no_steps = self.observed.why_no_steps(self.supervisor.paused)
        if not self.bottleneck.is_due(now, no_steps):
            return
        alive = [slot.unit for slot in self.state.slots.values() if slot.state in WITH_PROCESS]
        row = self.bottleneck.compute(now, alive, self.observed.trainer_to_come(), no_steps)
        if row is None:
            self.feed.remove("pulse")
        else:
            self.feed.set("pulse", row)

    def show_run(self) -> None:
        self.feed.set_later("run", self._run_row)

    def _run_row(self) -> RunRow:
        self.own_status.segment = self.knobs.segment
        self.own_status.journal_full = self.executor.full
        return self.observed.run_row(self.run, self.own_status)

    def show_knob(self, name: str) -> None:
        self.feed.set(f"knob/{name}", self.knobs.row(name), urgent=True)

    # ---- messages ----

    def refuse_handshake(self, sender: str, major: int, version: str, run: str, *, final: bool) -> Refused | None:
        """Returns the refusal of a hello of another version or for another run, with the reason."""
        if major != PROTOCOL_MAJOR:
            return Refused(
                ExitCode.VERSION,
                f"The {sender} speaks protocol {major} (agentrl {version}), "
                f"the coordinator {PROTOCOL_MAJOR} (agentrl {__version__}).",
                "Use the same version on both sides.",
            )
        if run != self.run.uuid:
            sentence = f"This is run {self.run.name} ({self.run.uuid}), not {run}."
            return Refused(ExitCode.VERSION, sentence, final=final)
        return None

    def welcome(self, **more: Any) -> Welcome:
        return Welcome(
            epoch=self.epoch,
            run=self.run.uuid,
            run_name=self.run.name,
            now_ct=self.clock.now(),
            server_version=__version__,
            **more,
        )

    def metrics_reported(self, unit: str, incarnation: int, values: Mapping[str, float]) -> None:
        """A unit reported metrics, or its host agent read them from its metrics page."""
        now, slot = self.clock.now(), self.state.slots.get(unit)
        if slot is None or slot.incarnation != incarnation:
            return
        self.metrics.update(unit, incarnation, values, now)
        if slot.spec is not None:
            self.bottleneck.take(unit, slot.spec.role.value, incarnation, values, now)
        self.observed.facts(slot).metrics = self.metrics.shown(unit)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.publish_metrics(encode(MetricBatch(unit, now, finite)))
        # A row shows a Step only until the next Step, so a Step whose row is not sent in time is missing in recordings.
        self.show_unit(unit, urgent=False, first=STEP.name in values)

    # ---- leases ----

    def lease_unit(self, unit: str) -> None:
        now, known, slot = self.clock.now(), unit in self.leases, self.state.slots[unit]
        # A unit that was suspect for the last coordinator starts as suspect here, so that its first heartbeat is an
        # event.
        self.leases.begin(unit, now, Health.SUSPECT if slot.silent else Health.WELL)
        until = slot.phase_until
        if not known and until > now:
            # The unit may be inside a phase that it announced to the last coordinator, and then reports again only at
            # its end.
            self.leases.phase(unit, now, phase="announced before", age_s=0.0, at_most_s=until - now)

    def lease_host(self, host: str) -> None:
        self.host_leases.begin(host, self.clock.now())

    def audit(self, who: str, command: str, what: str, *, operation: str = "", note: str = "") -> None:
        """Write into the journal who changed what."""
        now = self.clock.now()
        self.audited += 1
        row = AuditRow(self.audited, now, who, command, what, operation, note)
        self.executor.event("audit", f"{self.epoch}-{self.audited}", now, encode(row))
