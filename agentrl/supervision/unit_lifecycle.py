"""The acts on a unit of which all transitions consist: move it, start it, time it, lose it, and note what follows.

Invariants:
- Every instruction carries the id of the event that caused it.
- Instructions that persist precede those that act.
- What others may wait for is rechecked after each move.
"""

from __future__ import annotations

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import DeviceUse, SetPaused
from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import Rank, incarnation_name
from agentrl.supervision.devices import HeldDevices, share_of
from agentrl.supervision.gangs import Seat
from agentrl.supervision.instructions import Died, Instruction, Persist, Publish, SendToUnit, Spawn, StartTimer
from agentrl.supervision.pending_units import PendingUnits
from agentrl.supervision.scheduling import HostUse
from agentrl.supervision.stop_order import StopOrder, before_its_host_leaves
from agentrl.supervision.unit_slots import WITH_PROCESS, Ghost, HostState, Slot, State


class Lifecycle:
    """Moves slots from state to state and collects the instructions. `settle` in `reconciliation` completes it."""

    def __init__(self, state: State, times: SupervisionTimes) -> None:
        self.state = state
        self.times = times
        self.out: list[Instruction] = []
        self.stimulus = ""
        """The id of the event that is handled now."""
        self.host_use = HostUse(state.slots.values())
        self.devices = HeldDevices(state.slots.values())
        self.touched: set[str] = set()
        """The units that were touched since they were reconciled last."""
        self.pending = PendingUnits(state, self.host_use, self.devices, self.runs)
        self.stop_order = StopOrder(state)
        self.announced_end = False

    # ---- bookkeeping ----

    def touch(self, slot: Slot) -> None:
        """Record that the slot changed: it is persisted, published and reconciled before the event is done."""
        self.out.append(Persist("slot", slot.unit))
        self.out.append(Publish("unit", slot.unit))
        self.touched.add(slot.unit)
        if slot.state is S.PENDING:
            self.pending.add(slot)

    def touch_all(self) -> None:
        """Record a change that may affect every unit."""
        self.touched.update(self.state.slots)
        self.announced_end = False

    def recheck_pending(self) -> None:
        self.pending.recheck()

    def recheck_stop_order(self) -> None:
        """A unit ended, started, was lost or was found: others may stop because of that."""
        self.stop_order.changed()
        self.touched |= self.stop_order.waiting

    def host_changed(self, host: str) -> None:
        """A host connected, became silent or leaves."""
        self.out.append(Publish("host", host))
        self.recheck_pending()
        self.recheck_stop_order()

    def host_leaves(self, host: str, now: float) -> None:
        """The host leaves: end its units while their agent can still report that."""
        self.host_changed(host)
        for slot in self.state.slots.values():
            if slot.host != host or slot.state not in WITH_PROCESS:
                continue
            self.touch(slot)
            if slot.state is S.DRAINING:
                self.set_timer(slot, before_its_host_leaves(self.state, slot, slot.timer, now))

    def move(self, slot: Slot, to: S, reason: str, now: float) -> None:
        before = slot.state
        slot.move(to, reason, now, self.stimulus)
        if (to in WITH_PROCESS) != (before in WITH_PROCESS):
            self.host_use.change(slot, 1 if to in WITH_PROCESS else -1)
            self.recheck_stop_order()
        if before is S.PENDING:
            self.pending.remove(slot)
        if S.LOST in (before, to):
            self.recheck_stop_order()
        # Others may wait for a unit that became ready; one that ended frees resources.
        self.recheck_pending()
        self.touch(slot)

    def set_timer(self, slot: Slot, at: float) -> None:
        slot.timer = at
        self.out.append(StartTimer(slot.unit, at))
        self.out.append(Persist("slot", slot.unit))

    # ---- desired state ----

    def runs(self, slot: Slot) -> bool:
        """Return whether desired state has a process in this slot."""
        group = self.state.groups.get(slot.group)
        wanted = slot.wanted and not slot.held and not self.state.left_alone(slot.group)
        return self.state.run.up and wanted and group is not None and not group.removed

    def outdated(self, slot: Slot) -> bool:
        """Return whether the present incarnation must be replaced."""
        group = self.state.groups.get(slot.group)
        return (
            slot.generation != slot.started_generation
            or (group is not None and group.gang_epoch != slot.started_epoch)
            or slot.host in self.state.run.draining_hosts
            or self.state.is_leaving(slot.host)
        )

    def paused(self, slot: Slot) -> bool:
        group = self.state.groups.get(slot.group)
        return slot.paused or self.state.run.paused or (group is not None and group.paused)

    def where(self, slot: Slot, now: float) -> tuple[str, str]:
        """Return the host to start on, or the reason why the unit cannot start now."""
        return self.pending.where(slot, now)

    def start(self, slot: Slot, seat: Seat, now: float, rank: Rank | None = None) -> None:
        group = self.state.groups[slot.group]
        if slot.generation != slot.started_generation:
            # A unit that had to be replaced may have died by itself before.
            slot.reset_history()
        if slot.spec is not None and slot.spec.fingerprint() != group.spec.fingerprint():
            slot.last_exit = None  # The resources of another program may differ.
        slot.incarnation += 1
        slot.attempts += 1
        slot.host, slot.pid, slot.start_ticks = seat.host, 0, 0
        slot.rank = rank
        slot.spec, slot.started_generation, slot.started_epoch = group.spec, slot.generation, group.gang_epoch
        self._give_devices(slot, seat.devices)
        slot.came_up = slot.spawned = slot.stopped_process = slot.done = False
        slot.leader_gone = slot.tree_gone = False
        slot.stop_now = slot.patient = False
        slot.unhealthy = slot.silent = slot.stopping_because = ""
        slot.bye_code, slot.bye_reason = None, ""
        slot.continued_at = slot.phase_until = 0.0
        self.move(slot, S.STARTING, f"starting on {seat.host}", now)
        self.set_timer(slot, now + group.spec.start_deadline_s)
        self.out.append(Spawn(seat.host, slot.unit, slot.incarnation))

    def _give_devices(self, slot: Slot, devices: tuple[str, ...]) -> None:
        slot.devices = devices
        self.devices.hold(slot.host, slot.name, slot.devices, share_of(slot))
        if slot.devices:
            self.out.append(Publish("host", slot.host))

    def free_devices(self, slot: Slot) -> None:
        """Free the devices, because no process of the present incarnation is left."""
        self.devices.release(slot.host, slot.name)
        if slot.devices:
            self.out.append(Publish("host", slot.host))
        slot.devices = ()

    def devices_held(self, host: HostState, measured: tuple[DeviceUse, ...]) -> None:
        """Recheck placement, because processes outside of the run may have started or stopped using devices."""
        occupied = self.devices.occupied(host.host, measured)
        if occupied != host.occupied:
            host.occupied = occupied
            self.host_changed(host.host)

    def came_up(self, slot: Slot, why: str, now: float) -> None:
        if slot.state is not S.STARTING:
            return
        slot.came_up, slot.ready_since = True, now
        slot.failed_starts = slot.attempts = 0
        self.move(slot, S.READY, why, now)
        if self.paused(slot):
            self.send_paused(slot)

    def send_paused(self, slot: Slot) -> None:
        if slot.spec is not None and slot.spec.speaks and slot.state in WITH_PROCESS:
            self.out.append(SendToUnit(slot.unit, slot.incarnation, SetPaused(self.paused(slot))))
        self.out.append(Publish("unit", slot.unit))

    # ---- silent hosts ----

    def lose(self, slot: Slot, because: str, now: float) -> None:
        if slot.state in WITH_PROCESS and slot.state is not S.LOST:
            self.move(slot, S.LOST, because, now)

    def abandon(self, slot: Slot) -> None:
        """Stop waiting for the end of an incarnation that is out of reach. It is ended when its host comes back."""
        slot.ghosts = [*slot.ghosts, Ghost(slot.host, slot.incarnation, slot.devices, share_of(slot))]
        slot.devices = ()  # The ghost holds them now.
        slot.leader_gone = slot.tree_gone = True
        self.touch(slot)
        self.recheck_pending()
        self.recheck_stop_order()

    def forget_ghost(self, slot: Slot, host: str, incarnation: int) -> None:
        left = [ghost for ghost in slot.ghosts if (ghost.host, ghost.incarnation) != (host, incarnation)]
        if len(left) < len(slot.ghosts):
            slot.ghosts = left
            self.devices.release(host, incarnation_name(slot.unit, incarnation))
            self.out.append(Publish("host", host))
            self.out.append(Died(slot.unit, incarnation))
            self.touch(slot)
