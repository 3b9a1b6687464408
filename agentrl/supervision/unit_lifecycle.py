"""Moves one unit from one state to the next.

Invariants:
- An incarnation is spawned only if no process of an earlier one lives on any reachable host.
- Instructions that persist precede those that act.
"""

from __future__ import annotations

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import DeviceUse, ExitStatus, ProcessInfo, SetPaused
from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import Life, Rank, incarnation_name
from agentrl.supervision import gang_epochs, restarts, unit_stops
from agentrl.supervision.devices import HeldDevices, share_of
from agentrl.supervision.gang_placement import Seat
from agentrl.supervision.instructions import (
    AllStopped,
    Died,
    Forget,
    Instruction,
    Persist,
    Publish,
    Report,
    SendToUnit,
    Spawn,
    StartTimer,
)
from agentrl.supervision.pending_units import PendingUnits
from agentrl.supervision.scheduling import HostUse
from agentrl.supervision.stop_order import StopOrder, before_its_host_leaves
from agentrl.supervision.transitions import IN_SERVICE, WITH_PROCESS
from agentrl.supervision.unit_slots import Ghost, HostState, Slot, State

UNKNOWN_EXIT = ExitStatus(unknown="its host agent has no record of its end", with_host=True)


class Lifecycle:
    """Moves slots from state to state and collects the instructions for it."""

    def __init__(self, state: State, times: SupervisionTimes) -> None:
        self.state = state
        self.times = times
        self.out: list[Instruction] = []
        self.host_use = HostUse(state.slots.values())
        self.devices = HeldDevices(state.slots.values())
        self._dirty: set[str] = set()
        self.pending = PendingUnits(state, self.host_use, self.devices, self.runs)
        self._stop_order = StopOrder(state)
        self._announced_end = False

    # ---- bookkeeping ----

    def touch(self, slot: Slot) -> None:
        """Record that the slot changed: it is persisted, published and reconciled before the event is done."""
        self.out.append(Persist("slot", slot.unit))
        self.out.append(Publish("unit", slot.unit))
        self._dirty.add(slot.unit)
        if slot.state is S.PENDING:
            self.pending.add(slot)

    def touch_all(self) -> None:
        """Record a change that may affect every unit."""
        self._dirty.update(self.state.slots)
        self._announced_end = False

    def recheck_pending(self) -> None:
        self.pending.recheck()

    def _recheck_stop_order(self) -> None:
        """A unit ended, started, was lost or was found: others may stop because of that."""
        self._stop_order.changed()
        self._dirty |= self._stop_order.waiting

    def host_changed(self, host: str) -> None:
        """A host connected, became silent or leaves."""
        self.out.append(Publish("host", host))
        self.recheck_pending()
        self._recheck_stop_order()

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
        slot.move(to, reason, now)
        if (to in WITH_PROCESS) != (before in WITH_PROCESS):
            self.host_use.change(slot, 1 if to in WITH_PROCESS else -1)
            self._recheck_stop_order()
        if before is S.PENDING:
            self.pending.remove(slot)
        if S.LOST in (before, to):
            self._recheck_stop_order()
        # Others may wait for a unit that became ready; one that ended frees resources.
        self.recheck_pending()
        self.touch(slot)

    def set_timer(self, slot: Slot, at: float) -> None:
        slot.timer = at
        self.out.append(StartTimer(slot.unit, at))
        self.out.append(Persist("slot", slot.unit))

    def settle(self, now: float) -> None:
        """Reconcile every slot that was touched."""
        if self._dirty:
            # What a pending unit waits for may change without a move: another member of its gang is held, for example.
            self.pending.recheck()
        while self._dirty or self.pending.to_recheck:
            self._dirty |= self.pending.that_may_move(now)
            batch, self._dirty = sorted(self._dirty), set()
            slots = [slot for unit in batch if (slot := self.state.slots.get(unit))]
            for group in dict.fromkeys(slot.group for slot in slots):
                gang_epochs.end_if_over(self, group)
            for slot in slots:
                self.advance(slot, now)
        self._announce_end()

    def _announce_end(self) -> None:
        run = self.state.run
        if run.up or self._announced_end or not run.desired_by:
            return
        # A lost unit cannot be stopped. The report at the end of `down` names it as unproven.
        if all(s.tree_gone or self.state.is_out_of_reach(s) for s in self.state.slots.values()):
            self._announced_end = True
            self.out.append(AllStopped())

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

    def advance(self, slot: Slot, now: float) -> None:
        """Reconcile one slot."""
        if not slot.since:
            slot.since, slot.reason = now, "is new"
        runs = self.runs(slot)
        if slot.state is S.PENDING or (slot.state is S.BACKOFF and (not slot.timer or slot.timer <= now)):
            self._start_or_say_why_not(slot, now)
        elif slot.state is S.BACKOFF:
            if not runs or slot.generation != slot.started_generation:
                self._start_or_say_why_not(slot, now)
        elif slot.state in IN_SERVICE:
            if (not runs or self.outdated(slot)) and self._stop_order.is_next(slot):
                unit_stops.begin(self, slot, now)
        elif slot.state is S.DRAINING:
            unit_stops.reconsider_drain(self, slot, now)
        elif slot.state is S.STOPPING:
            at_once = slot.stop_now or self.state.run.stop_now
            if at_once and not slot.tree_gone and slot.reason != "killed":
                unit_stops.kill(self, slot, "killed", now)
        elif slot.state is S.LOST:
            self._replace_lost(slot, now)
        elif slot.state is S.FATAL:
            if not runs:
                self.move(slot, S.STOPPED, slot.reason, now)
            elif slot.generation != slot.started_generation:
                self.move(slot, S.PENDING, "wanted again", now)
        elif slot.state is S.STOPPED and runs and not slot.done:
            self.move(slot, S.PENDING, "wanted again", now)

    # ---- starting ----

    def _start_or_say_why_not(self, slot: Slot, now: float) -> None:
        if slot.spec is not None and slot.spec.fenced and not slot.tree_gone and self.state.is_out_of_reach(slot):
            self.abandon(slot)
        if not self.runs(slot):
            if slot.tree_gone:
                self.move(slot, S.STOPPED, slot.held or "not wanted", now)
            return
        host, obstacle = self.where(slot, now)
        if host and self.state.groups[slot.group].spec.gang:
            gang_epochs.start(self, slot.group, now)
        elif host:
            self.start(slot, Seat(host, self.pending.choose_devices(slot.group, host)), now)
        elif slot.state is S.BACKOFF and (slot.tree_gone or self.state.is_out_of_reach(slot)):
            self.move(slot, S.PENDING, obstacle, now)
        elif slot.reason != obstacle and slot.state is S.PENDING:
            slot.reason = obstacle
            self.out.append(Publish("unit", slot.unit))

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

    # ---- ends ----

    def ended(self, slot: Slot, exit: ExitStatus, now: float, dice: float) -> None:
        """Handle the end of the leader, for any reason."""
        if slot.leader_gone:
            return
        if exit.unknown and slot.bye_code is not None:
            exit = ExitStatus(code=slot.bye_code)
        slot.leader_gone, slot.last_exit, slot.pid = True, exit, 0
        self.out.append(Died(slot.unit, slot.incarnation))
        ordered = slot.state in (S.DRAINING, S.STOPPING) and not slot.stopping_because
        if ordered or (slot.state in IN_SERVICE and not self.runs(slot)):
            if slot.state is not S.STOPPING:
                self.move(slot, S.STOPPING, f"{slot.reason}; {exit}", now)
                self.set_timer(slot, now + self.times.kill_again_s)
        elif slot.state is S.LOST and (not self.runs(slot) or self.outdated(slot)):
            pass  # It was about to stop when its host became silent; `tree_gone` completes the stop.
        elif slot.state is not S.STOPPING:
            self._judge(slot, exit, now, dice)
        self.touch(slot)

    def tree_gone(self, slot: Slot, now: float, dice: float, swept: tuple[ProcessInfo, ...] = ()) -> None:
        """Handle the report that no process of the present incarnation is left."""
        self.ended(slot, UNKNOWN_EXIT, now, dice)
        if slot.tree_gone:
            return
        slot.tree_gone = True
        self.free_devices(slot)
        if slot.state in (S.STOPPING, S.LOST):
            if slot.stopping_because:
                self._judge(slot, slot.last_exit or UNKNOWN_EXIT, now, dice, swept)
            elif self.runs(slot):
                self.move(slot, S.PENDING, "is replaced", now)
            else:
                self.move(slot, S.STOPPED, slot.held or slot.reason, now)
        self.touch(slot)
        self.recheck_pending()
        self._recheck_stop_order()
        self.out.append(Forget(slot.host, slot.unit, slot.incarnation))

    def _judge(
        self, slot: Slot, exit: ExitStatus, now: float, dice: float, swept: tuple[ProcessInfo, ...] = ()
    ) -> None:
        """Count an unplanned end and decide what happens to the slot."""
        verdict = restarts.judge(slot, exit, self.times, now, dice)
        if verdict.done:
            slot.done = True
            self.move(slot, S.STOPPED, verdict.reason, now)
            return
        if verdict.free:
            gang_epochs.break_up(self, slot, verdict.reason)
            if verdict.delay_s:
                self.move(slot, S.BACKOFF, verdict.reason, now)
                self.set_timer(slot, now + verdict.delay_s)
            else:
                self.move(slot, S.PENDING, verdict.reason, now)
            return
        self._apply_verdict(slot, verdict, exit, now, swept)

    def spawn_failed(self, slot: Slot, reason: str, final: bool, now: float, dice: float) -> None:
        slot.leader_gone = slot.tree_gone = True
        self.free_devices(slot)
        slot.last_exit = None  # A sentence of an earlier incarnation would look like the cause.
        verdict = restarts.failed_to_spawn(slot, reason, final, self.times, dice)
        exit = ExitStatus(unknown="it was never started")
        self._apply_verdict(slot, verdict, exit, now, ())
        self.out.append(Forget(slot.host, slot.unit, slot.incarnation))

    def _apply_verdict(
        self, slot: Slot, verdict: restarts.Verdict, exit: ExitStatus, now: float, swept: tuple[ProcessInfo, ...]
    ) -> None:
        if verdict.fatal:
            self.move(slot, S.FATAL, verdict.reason, now)
            done = "given up; `agentrl restart` tries again"
        else:
            self.move(slot, S.BACKOFF, verdict.reason, now)
            self.set_timer(slot, now + verdict.delay_s)
            done = f"starts again in {verdict.delay_s:.1f} s" if verdict.delay_s else "started again at once"
        self.out.append(Report(slot.unit, slot.incarnation, slot.host, verdict.reason, done, exit, swept))
        gang_epochs.break_up(self, slot, verdict.reason)

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
        self._recheck_stop_order()

    def _replace_lost(self, slot: Slot, now: float) -> None:
        """Replace a lost unit. Two incarnations at once are safe only if every write is fenced."""
        if slot.spec is not None and slot.spec.fenced and self.runs(slot) and not self._announced_done(slot):
            self.abandon(slot)
            slot.restarts += 1
            done = "replaced; the lost one is fenced and will be ended when its host comes back"
            self.out.append(Report(slot.unit, slot.incarnation, slot.host, f"lost: {slot.reason}", done))
            gang_epochs.break_up(self, slot, slot.reason)
            self.move(slot, S.PENDING, "replaces a lost incarnation", now)

    def _announced_done(self, slot: Slot) -> bool:
        """Return whether a job has announced its successful end. The report of its host, or an operator, decides."""
        is_job = slot.spec is not None and slot.spec.life is Life.JOB
        return is_job and slot.bye_code == 0 and not self.outdated(slot)

    def found_alive(self, slot: Slot, now: float, why: str) -> None:
        """Handle a sign of life of the present incarnation."""
        if slot.state is S.LOST and not slot.leader_gone:
            slot.silent = ""
            if slot.came_up:
                self.move(slot, S.READY, why, now)
            else:
                self.move(slot, S.STARTING, why, now)
                assert slot.spec is not None
                self.set_timer(slot, now + slot.spec.start_deadline_s)
            if slot.stopping_because:
                # It was being replaced when its host became silent.
                unit_stops.kill(self, slot, slot.stopping_because, now)
        self.out.append(Publish("unit", slot.unit))

    def forget_ghost(self, slot: Slot, host: str, incarnation: int) -> None:
        left = [ghost for ghost in slot.ghosts if (ghost.host, ghost.incarnation) != (host, incarnation)]
        if len(left) < len(slot.ghosts):
            slot.ghosts = left
            self.devices.release(host, incarnation_name(slot.unit, incarnation))
            self.out.append(Publish("host", host))
            self.out.append(Died(slot.unit, incarnation))
            self.touch(slot)
