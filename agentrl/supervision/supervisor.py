"""Implements the supervisor, whose only entry point is `handle(event, now)`.

Invariants:
- After `handle` returns, every slot has made all transitions that were possible.
- An event about another incarnation than the present one never moves a slot.
- What a host reports of a unit counts only if that host holds it.
- The same events at the same times give the same instructions.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import UnitOnHost
from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import GroupSpec, Role, incarnation_name
from agentrl.supervision import desired_state, events, lost_hosts, restarts, unit_stops
from agentrl.supervision.devices import share_of
from agentrl.supervision.instructions import (
    Forget,
    Instruction,
    KillTree,
    Persist,
    Publish,
    Signal,
    Spawn,
    StartTimer,
)
from agentrl.supervision.stop_order import before_its_host_leaves
from agentrl.supervision.transitions import WITH_PROCESS
from agentrl.supervision.unit_lifecycle import UNKNOWN_EXIT, Lifecycle
from agentrl.supervision.unit_slots import Ghost, HostState, Slot, State
from agentrl.supervision.up_plan import Plan, plan


class Supervisor:
    """Desired and actual state of a run; turns their difference into instructions."""

    def __init__(self, state: State, times: SupervisionTimes) -> None:
        self.state = state
        self._life = Lifecycle(state, times)
        self._handlers: dict[type[events.Event], Callable[[Any, float], None]] = {
            events.Applied: lambda e, now: desired_state.apply(self._life, e, now),
            events.Scaled: lambda e, now: desired_state.scale(self._life, e),
            events.StopWanted: lambda e, now: desired_state.stop(self._life, e),
            events.DrainCancelled: lambda e, now: desired_state.cancel_drain(self._life, e),
            events.RestartWanted: lambda e, now: desired_state.restart(self._life, e),
            events.HostDrained: lambda e, now: desired_state.drain_host(self._life, e),
            events.Paused: lambda e, now: desired_state.pause(self._life, e),
            events.DownWanted: lambda e, now: desired_state.down(self._life, e),
            events.DeathVouched: self._death_vouched,
            events.HostConnected: self._host_connected,
            events.HostSilent: self._host_silent,
            events.DevicesHeld: self._devices_held,
            events.HostLeaving: lambda e, now: lost_hosts.leaving(self._life, e, now),
            events.HostAwaited: lambda e, now: lost_hosts.awaited(self._life, e),
            events.HostForgotten: lambda e, now: lost_hosts.forgotten(self._life, e, now),
            events.Spawned: self._spawned,
            events.SpawnFailed: self._spawn_failed,
            events.Exited: self._exited,
            events.TreeGone: self._tree_gone,
            events.ProbeChanged: self._probe_changed,
            events.ProcessStopped: self._process_stopped,
            events.UnitReady: self._unit_ready,
            events.UnitBye: self._unit_bye,
            events.StopExtended: self._stop_extended,
            events.StartExtended: self._start_extended,
            events.PhaseAnnounced: self._phase_announced,
            events.UnitSuspect: self._unit_suspect,
            events.UnitReports: self._unit_reports,
            events.UnitHung: self._unit_hung,
            events.DeathsAged: self._deaths_aged,
            events.RetiredAged: self._retired_aged,
            events.TimerFired: self._timer_fired,
        }

    @property
    def times(self) -> SupervisionTimes:
        return self._life.times

    @times.setter
    def times(self, times: SupervisionTimes) -> None:
        self._life.times = times

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Handle one event; returns the instructions that follow."""
        self._handlers[type(event)](event, now)
        return self._finish(now)

    def resume(self, now: float) -> list[Instruction]:
        """Restart the timers after a restart of the coordinator. The hosts will report the state of their units."""
        for slot in self.state.slots.values():
            if slot.timer:
                self._life.out.append(StartTimer(slot.unit, slot.timer))
            self._life.out.append(Publish("unit", slot.unit))
        self._life.touch_all()
        return self._finish(now)

    def plan(self, specs: tuple[GroupSpec, ...], *, reading: bool = False) -> Plan:
        return plan(self.state, specs, reading=reading)

    def paused(self, unit: str) -> bool:
        return self._life.paused(self.state.slots[unit])

    def runs(self, unit: str) -> bool:
        return self._life.runs(self.state.slots[unit])

    def outdated(self, unit: str) -> bool:
        return self._life.outdated(self.state.slots[unit])

    def units_on(self, host: str) -> int:
        return self._life.host_use.units_on(host)

    def holders(self, host: str) -> dict[str, tuple[str, ...]]:
        """Return by device of the host: the incarnations that hold it."""
        return self._life.devices.holders(host)

    def is_present(self, unit: str, incarnation: int) -> bool:
        """Return whether this is the present incarnation of the unit."""
        slot = self.state.slots.get(unit)
        return slot is not None and slot.incarnation == incarnation and slot.state in WITH_PROCESS

    def is_unidentified(self, unit: str) -> bool:
        """Return whether the journal could not tell which incarnation of the unit lives, and where."""
        slot = self.state.slots.get(unit)
        return slot is not None and slot.unidentified

    def holds(self, host: str, unit: str, incarnation: int) -> bool:
        """Return whether this is the last incarnation of the unit and was started on this host."""
        slot = self.state.slots.get(unit)
        return slot is not None and slot.incarnation == incarnation and slot.host == host

    def _finish(self, now: float) -> list[Instruction]:
        self._life.settle(now)
        out, self._life.out = self._life.out, []
        return out

    def _present(self, event: Any) -> Slot | None:
        """Return the slot if the event is about its present incarnation, and comes from the host that holds it."""
        slot = self.state.slots.get(event.unit)
        if slot is None or slot.incarnation != event.incarnation:
            return None
        return None if isinstance(event, events.HostEvent) and slot.host != event.host else slot

    # ---- hosts ----

    def _host_connected(self, event: events.HostConnected, now: float) -> None:
        host = HostState(event.host, event.facts, True, self._up_since(event, now), minor=event.minor)
        self.state.hosts[event.host] = host
        self.state.awaited.pop(event.host, None)
        self.state.in_vain.discard(event.host)
        self._life.host_changed(event.host)
        self._identify(event)
        if event.host not in self.state.run.hosts:
            self.state.run.hosts.add(event.host)
            self._life.out.append(Persist("run", ""))
        on_host = {(entry.unit, entry.incarnation): entry for entry in event.inventory}
        for (unit, incarnation), entry in on_host.items():
            slot = self.state.slots.get(unit)
            if slot is not None and slot.incarnation == incarnation and slot.host == event.host:
                self._found(slot, entry, now, event.dice)
            else:
                self._found_stranger(event.host, slot, entry)
        for slot in list(self.state.slots.values()):
            if slot.host == event.host and not slot.tree_gone and (slot.unit, slot.incarnation) not in on_host:
                self._not_found(slot, now, event.dice)
            for ghost in slot.ghosts:
                if ghost.host == event.host and (slot.unit, ghost.incarnation) not in on_host:
                    self._life.forget_ghost(slot, ghost.host, ghost.incarnation)
        # Last, because the ledger of the host says which units hold its devices.
        self._life.devices_held(host, event.devices)

    def _devices_held(self, event: events.DevicesHeld, now: float) -> None:
        host = self.state.hosts.get(event.host)
        if host is not None and host.connected:
            self._life.devices_held(host, event.devices)

    def _identify(self, event: events.HostConnected) -> None:
        """Take incarnation and host of units that the journal could not identify from the ledger of their host."""
        for entry in sorted(event.inventory, key=lambda entry: -entry.incarnation):
            slot = self.state.slots.get(entry.unit)
            if slot is None or entry.group_empty or not (slot.unidentified or slot.host == event.host):
                continue
            self._assign(slot, event.host if slot.unidentified else slot.host, entry.incarnation, entry)
        connected = {name for name, host in self.state.hosts.items() if host.connected}
        for slot in self.state.slots.values():
            if slot.unidentified and self._possible_hosts(slot) <= connected:
                # No ledger has it, so no process of it is left, and the report of this host is enough.
                self._assign(slot, event.host, slot.incarnation)

    def _assign(self, slot: Slot, host: str, incarnation: int, entry: UnitOnHost | None = None) -> None:
        """Complete the slot of a unit that the journal could not identify or whose spec it could not read."""
        if slot.state is not S.LOST:
            return
        self._life.host_use.change(slot, -1)
        if slot.spec is None:
            group = self.state.groups.get(slot.group)
            slot.spec, slot.started_epoch = (group.spec, group.gang_epoch) if group else (None, 0)
        if slot.unidentified:
            slot.incarnation, slot.host, slot.started_generation = incarnation, host, slot.generation
            if entry is not None:
                slot.devices, slot.rank = entry.devices, entry.rank
            if slot.rank is not None:
                slot.started_epoch = slot.rank.epoch
            self._life.devices.hold(host, slot.name, slot.devices, share_of(slot))
        self._life.host_use.change(slot, 1)

    def _possible_hosts(self, slot: Slot) -> set[str]:
        group = self.state.groups.get(slot.group)
        if group is not None and group.spec.role is not Role.SIDECAR and self.state.data_host:
            return {*group.spec.hosts, self.state.data_host}
        return {*self.state.run.hosts, self.state.data_host} - {""}

    def _up_since(self, event: events.HostConnected, now: float) -> float:
        """Return since when the host is up. A second hello of the same agent does not change it, unless the agent was
        silent.
        """
        known, began = self.state.hosts.get(event.host), now - event.age_s
        if known is None:
            return began
        return max(known.since, began) if known.connected else now

    def _found(self, slot: Slot, entry: UnitOnHost, now: float, dice: float) -> None:
        """Handle a host whose ledger contains the present incarnation."""
        if slot.tree_gone:
            # Its end is known, or it was replaced, so the entry of the host is a ghost.
            self._found_stranger(slot.host, slot, entry)
            return
        slot.pid, slot.start_ticks, slot.spawned = entry.pid, entry.start_ticks, entry.pid > 0
        if entry.exit is None:
            self._life.found_alive(slot, now, "its host is back")
            self._ready_without_words(slot, entry.ready is True, now)
            if slot.state is S.STOPPING:
                unit_stops.go_on(self._life, slot, now)
        else:
            self._life.ended(slot, entry.exit, now, dice)
        if entry.group_empty:
            self._life.tree_gone(slot, now, dice)
        self._life.touch(slot)

    def _found_stranger(self, host: str, slot: Slot | None, entry: UnitOnHost) -> None:
        """End an earlier incarnation or an unknown unit that a host reports."""
        if entry.group_empty:
            self._life.out.append(Forget(host, entry.unit, entry.incarnation))
            if slot is not None:
                self._life.forget_ghost(slot, host, entry.incarnation)
            return
        if slot is not None and (host, entry.incarnation) not in [(g.host, g.incarnation) for g in slot.ghosts]:
            slot.ghosts = [*slot.ghosts, Ghost(host, entry.incarnation, entry.devices)]
            self._life.devices.hold(host, incarnation_name(slot.unit, entry.incarnation), entry.devices, 1.0)
            self._life.touch(slot)
        self._life.out.append(KillTree(host, entry.unit, entry.incarnation))

    def _not_found(self, slot: Slot, now: float, dice: float) -> None:
        if slot.state is S.STARTING and not slot.spawned:
            # The Spawn was lost. It is idempotent, so it can be repeated.
            self._life.out.append(Spawn(slot.host, slot.unit, slot.incarnation))
            return
        self._life.ended(slot, UNKNOWN_EXIT, now, dice)
        self._life.tree_gone(slot, now, dice)

    def _host_silent(self, event: events.HostSilent, now: float) -> None:
        host = self.state.hosts.setdefault(event.host, HostState(event.host))
        host.connected, host.since = False, now
        self._life.host_changed(event.host)
        for slot in list(self.state.slots.values()):
            if slot.host != event.host or slot.tree_gone:
                continue
            self._life.touch(slot)
            if slot.unit not in event.reporting:
                self._life.lose(slot, f"host {event.host} is silent for {event.for_s:.0f} s", now)

    def _death_vouched(self, event: events.DeathVouched, now: float) -> None:
        slot = self._present(event)
        if slot is not None:
            lost_hosts.declare_dead(self._life, slot, event.by, now)

    # ---- processes ----

    def _spawned(self, event: events.Spawned, now: float) -> None:
        if slot := self._present(event):
            slot.pid, slot.start_ticks, slot.spawned = event.pid, event.start_ticks, True
            slot.refused_starts = 0
            self._ready_without_words(slot, False, now)
            self._life.touch(slot)

    def _ready_without_words(self, slot: Slot, probe_says_ready: bool, now: float) -> None:
        """Decide readiness of a unit without the unit runtime: when its probe succeeds, or at once if it has no
        probe.
        """
        if slot.spec is None or slot.spec.speaks:
            return
        if probe_says_ready:
            self._life.came_up(slot, "its probe says ready", now)
        elif slot.spec.ready is None:
            self._life.came_up(slot, "started", now)

    def _spawn_failed(self, event: events.SpawnFailed, now: float) -> None:
        slot = self._present(event)
        if slot is None or slot.leader_gone:
            return
        if slot.state is S.STARTING:
            self._life.spawn_failed(slot, event.reason, event.final, now, event.dice)
        else:
            self._life.tree_gone(slot, now, event.dice)

    def _exited(self, event: events.Exited, now: float) -> None:
        if slot := self._present(event):
            self._life.ended(slot, event.exit, now, event.dice)

    def _tree_gone(self, event: events.TreeGone, now: float) -> None:
        slot = self._present(event)
        if slot is not None and not slot.tree_gone:
            self._life.tree_gone(slot, now, event.dice, event.swept)
            return
        if slot := self.state.slots.get(event.unit):
            self._life.forget_ghost(slot, event.host, event.incarnation)
            self._life.recheck_pending()
        self._life.out.append(Forget(event.host, event.unit, event.incarnation))

    def _probe_changed(self, event: events.ProbeChanged, now: float) -> None:
        slot = self._present(event)
        if slot is None:
            return
        if event.kind == "ready":
            if event.ok:
                self._life.came_up(slot, "its probe says ready", now)
            return
        if event.ok:
            slot.unhealthy = ""
            self._well_again(slot, now)
        elif slot.state in (S.READY, S.SUSPECT):
            slot.unhealthy = f"liveness probe: {event.detail or 'no'}"
            if slot.state is S.READY:
                self._life.move(slot, S.SUSPECT, slot.unhealthy, now)
            self._life.set_timer(slot, now + self._patience_s)

    @property
    def _patience_s(self) -> float:
        """Return the time from suspect to replaced, for a unit whose liveness probe fails."""
        return self.times.dead_after_s - self.times.suspect_after_s

    def _process_stopped(self, event: events.ProcessStopped, now: float) -> None:
        slot = self._present(event)
        if slot is None or slot.state not in (S.READY, S.SUSPECT):
            return
        slot.stopped_process = event.stopped
        if not event.stopped:
            slot.timer = 0.0
            if slot.unhealthy:
                self._life.set_timer(slot, now + self._patience_s)
            return
        if now - slot.continued_at < self.times.dead_after_s:
            unit_stops.hang(self._life, slot, "its process was stopped by a signal again after it was continued", now)
            return
        slot.continued_at = now
        self._life.out.append(Signal(slot.host, slot.unit, slot.incarnation, int(signal.SIGCONT)))
        self._life.set_timer(slot, now + 3 * self.times.stats_every_s)

    # ---- units ----

    def _unit_ready(self, event: events.UnitReady, now: float) -> None:
        slot = self._present(event)
        if slot is None:
            return
        # Found alive first: a lost unit that had not come up is starting again, and then ready.
        self._life.found_alive(slot, now, "its heartbeats arrive again")
        if event.ready:
            self._life.came_up(slot, "says it is ready", now)
        self._life.touch(slot)

    def _unit_bye(self, event: events.UnitBye, now: float) -> None:
        if slot := self._present(event):
            slot.bye_code, slot.bye_reason = event.code, event.reason
            self._life.touch(slot)
            if self.state.is_silent(slot.host):
                self._life.lose(slot, f"ended ({event.reason or event.code}) while host {slot.host} is silent", now)

    def _stop_extended(self, event: events.StopExtended, now: float) -> None:
        slot = self._present(event)
        if slot is not None and slot.state is S.DRAINING:
            until = min(now + event.by_s, slot.since + self.times.drain_patience_s)
            until = before_its_host_leaves(self.state, slot, until, now)
            if until > slot.timer:
                self._life.set_timer(slot, until)

    def _start_extended(self, event: events.StartExtended, now: float) -> None:
        slot = self._present(event)
        if slot is not None and slot.state is S.STARTING and event.until > slot.timer:
            self._life.set_timer(slot, event.until)

    def _phase_announced(self, event: events.PhaseAnnounced, now: float) -> None:
        slot = self._present(event)
        if slot is not None and event.until > slot.phase_until:
            # The margin keeps a loop of equal phases from being persisted at each phase.
            slot.phase_until = event.until + (event.until - now) / 2
            self._life.out.append(Persist("slot", slot.unit))

    def _unit_suspect(self, event: events.UnitSuspect, now: float) -> None:
        slot = self._present(event)
        if slot is None:
            return
        if self.state.is_silent(slot.host):
            self._life.lose(slot, f"{event.because}; host {slot.host} is silent too", now)
        elif slot.state in (S.READY, S.SUSPECT):
            slot.silent = event.because
            if slot.state is S.READY:
                self._life.move(slot, S.SUSPECT, event.because, now)

    def _unit_reports(self, event: events.UnitReports, now: float) -> None:
        if slot := self._present(event):
            slot.silent = ""
            self._well_again(slot, now)
            self._life.found_alive(slot, now, "its heartbeats arrive again")
            self._life.touch(slot)

    def _well_again(self, slot: Slot, now: float) -> None:
        if slot.state is S.SUSPECT and not slot.silent and not slot.unhealthy:
            self._life.move(slot, S.READY, "is well again", now)

    def _unit_hung(self, event: events.UnitHung, now: float) -> None:
        slot = self._present(event)
        if slot is None:
            return
        if slot.state is S.DRAINING:
            unit_stops.kill(self._life, slot, f"killed while draining: {event.because}", now)
        else:
            unit_stops.hang(self._life, slot, event.because, now)

    # ---- time ----

    def _deaths_aged(self, event: events.DeathsAged, now: float) -> None:
        slot = self.state.slots.get(event.unit)
        if slot is not None and restarts.forget_aged(slot, self.times, now):
            self._life.touch(slot)

    def _retired_aged(self, event: events.RetiredAged, now: float) -> None:
        state, out = self.state, self._life.out
        retired = [s for s in state.slots.values() if s.state is S.STOPPED and s.tree_gone and not s.ghosts]
        retired = [s for s in retired if not s.wanted]
        for slot in sorted(retired, key=lambda slot: -slot.since)[event.keep :]:
            state.forget(slot)
            out += [Persist("run", ""), Persist("slot", slot.unit, gone=True), Publish("unit", slot.unit)]
        for name, group in list(state.groups.items()):
            if group.removed and not state.of_group(name):
                if group.spec.gang:
                    state.run.epochs[name] = group.gang_epoch
                del state.groups[name]
                out += [Persist("run", ""), Persist("group", name, gone=True)]

    def _timer_fired(self, event: events.TimerFired, now: float) -> None:
        slot = self.state.slots.get(event.unit)
        if slot is None or slot.timer != event.at:
            return
        slot.timer = 0.0
        if slot.state is S.STARTING:
            assert slot.spec is not None
            slot.stopping_because = f"never came up: not ready within {now - slot.since:.1f} s"
            unit_stops.terminate(self._life, slot, slot.stopping_because, now)
        elif slot.state in (S.READY, S.SUSPECT):
            if slot.stopped_process:
                unit_stops.hang(self._life, slot, "its process was stopped by a signal and did not continue", now)
            elif slot.unhealthy:
                unit_stops.hang(self._life, slot, slot.unhealthy, now)
        elif slot.state is S.DRAINING:
            unit_stops.terminate(self._life, slot, f"{slot.reason}; did not finish in {now - slot.since:.1f} s", now)
        elif slot.state is S.STOPPING:
            unit_stops.kill(self._life, slot, slot.reason, now)
        self._life.touch(slot)
