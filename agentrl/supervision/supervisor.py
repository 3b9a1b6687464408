"""Implements the supervisor, whose only entry point is `handle(event, now)`.

An event finds its function in one of two tables: by its type in `RUN_EVENTS`, or by its type and the state of its unit
in `unit_events.TRANSITIONS`. Then every unit that was touched moves toward desired state (`reconciliation`).

Invariants:
- After `handle` returns, every slot has made all transitions that were possible.
- An event about another incarnation than the present one never moves a slot.
- What a host reports of a unit counts only if that host holds it.
- The same events at the same times give the same instructions.
- Every instruction names the event that caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import GroupSpec
from agentrl.supervision import desired_state, events, hosts, unit_events
from agentrl.supervision.instructions import Instruction, Persist, Publish, StartTimer
from agentrl.supervision.invariants import Violation, violations
from agentrl.supervision.reconciliation import settle
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import WITH_PROCESS, State
from agentrl.supervision.up_plan import Plan, plan


def _retired_aged(life: Lifecycle, event: events.RetiredAged, now: float) -> None:
    state, out = life.state, life.out
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


RUN_EVENTS: Mapping[type[events.Event], Callable[[Lifecycle, Any, float], None]] = {
    events.Applied: desired_state.applied,
    events.Scaled: desired_state.scaled,
    events.StopWanted: desired_state.stop_wanted,
    events.DrainCancelled: desired_state.drain_cancelled,
    events.RestartWanted: desired_state.restart_wanted,
    events.HostDrained: desired_state.host_drained,
    events.Paused: desired_state.paused,
    events.DownWanted: desired_state.down_wanted,
    events.HostConnected: hosts.host_connected,
    events.HostSilent: hosts.host_silent,
    events.DevicesHeld: hosts.devices_held,
    events.HostLeaving: hosts.host_leaving,
    events.HostAwaited: hosts.host_awaited,
    events.HostForgotten: hosts.host_forgotten,
    events.RetiredAged: _retired_aged,
}
"""What happens at an event that is not about one unit. `unit_events.TRANSITIONS` has the events about one unit."""


class Supervisor:
    """Desired and actual state of a run; turns their difference into instructions."""

    def __init__(self, state: State, times: SupervisionTimes) -> None:
        self.state = state
        self._life = Lifecycle(state, times)
        self._handled_at = 0.0

    @property
    def times(self) -> SupervisionTimes:
        return self._life.times

    @times.setter
    def times(self, times: SupervisionTimes) -> None:
        self._life.times = times

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Handle one event; returns the instructions that follow."""
        self._life.stimulus = event.stimulus
        if isinstance(event, events.UnitEvent):
            unit_events.handle(self._life, event, now)
        else:
            RUN_EVENTS[type(event)](self._life, event, now)
        return self._finish(now)

    def resume(self, now: float, stimulus: str = "") -> list[Instruction]:
        """Restart the timers after a restart of the coordinator. The hosts will report the state of their units."""
        self._life.stimulus = stimulus
        for slot in self.state.slots.values():
            if slot.timer:
                self._life.out.append(StartTimer(slot.unit, slot.timer))
            self._life.out.append(Publish("unit", slot.unit))
        self._life.touch_all()
        return self._finish(now)

    def validate(self) -> list[Violation]:
        """Check all invariants; returns those that do not hold since the last event, with the units' histories."""
        return violations(self._life, self._handled_at)

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
        settle(self._life, now)
        self._handled_at = now
        out, self._life.out = self._life.out, []
        stimulus = self._life.stimulus
        return [replace(instruction, stimulus=stimulus) for instruction in out] if stimulus else out
