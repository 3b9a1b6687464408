"""Handles the events about one unit: a table from the event and the state of the unit to the function that handles it.

Invariants:
- The name of each function begins with the name of its event.
- An event about another incarnation than the present one, or from a host that does not hold it, reaches no function.
  Only the list of ghosts may change.
- An event that the table does not have for a state changes nothing. A function that makes a move which `STATE_MOVES`
  does not have raises, with the history of the unit.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.protocol.rows import UnitState as S
from agentrl.supervision import events, restarts, unit_ends, unit_stops
from agentrl.supervision.instructions import Forget, Persist, Publish, Signal
from agentrl.supervision.stop_order import before_its_host_leaves
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import WITH_PROCESS, Slot

Transition = Callable[[Lifecycle, Slot, Any, float], None]


def handle(life: Lifecycle, event: events.UnitEvent, now: float) -> None:
    """Call the function of the table for this event and the state of its unit."""
    slot = life.state.slots.get(event.unit)
    if slot is not None and is_about_present(slot, event):
        if transition := TRANSITIONS[type(event)].get(slot.state):
            transition(life, slot, event, now)
    elif isinstance(event, events.TreeGone):
        if slot is not None:
            life.forget_ghost(slot, event.host, event.incarnation)
            life.recheck_pending()
        life.out.append(Forget(event.host, event.unit, event.incarnation))


def is_about_present(slot: Slot, event: events.UnitEvent) -> bool:
    """Return whether the event is about the present incarnation, and comes from the host that holds it."""
    match event:
        case events.TimerFired(at=at):
            return slot.timer == at
        case events.DeathsAged():
            return True
        case events.TreeGone() if slot.tree_gone:
            return False
        case events.HostEvent(host=host, incarnation=incarnation):
            return slot.incarnation == incarnation and slot.host == host
        case events.IncarnationEvent(incarnation=incarnation):
            return slot.incarnation == incarnation
    return False


# ---- processes ----


def spawned(life: Lifecycle, slot: Slot, event: events.Spawned, now: float) -> None:
    slot.pid, slot.start_ticks, slot.spawned = event.pid, event.start_ticks, True
    slot.refused_starts = 0
    ready_without_report(life, slot, False, now)
    life.touch(slot)


def ready_without_report(life: Lifecycle, slot: Slot, probe_succeeds: bool, now: float) -> None:
    """Decide readiness of a unit without the unit runtime: when its probe succeeds, or at once if it has no probe."""
    if slot.spec is None or slot.spec.speaks:
        return
    if probe_succeeds:
        life.came_up(slot, "its probe says ready", now)
    elif slot.spec.ready is None:
        life.came_up(slot, "started", now)


def spawn_failed_while_starting(life: Lifecycle, slot: Slot, event: events.SpawnFailed, now: float) -> None:
    unit_ends.never_spawned(life, slot, event.reason, event.final, now, event.dice)


def spawn_failed_later(life: Lifecycle, slot: Slot, event: events.SpawnFailed, now: float) -> None:
    if not slot.leader_gone:
        unit_ends.tree_gone(life, slot, now, event.dice)


def exited(life: Lifecycle, slot: Slot, event: events.Exited, now: float) -> None:
    unit_ends.leader_ended(life, slot, event.exit, now, event.dice)


def tree_gone(life: Lifecycle, slot: Slot, event: events.TreeGone, now: float) -> None:
    unit_ends.tree_gone(life, slot, now, event.dice, event.swept)


def probe_changed_while_starting(life: Lifecycle, slot: Slot, event: events.ProbeChanged, now: float) -> None:
    if event.kind == "ready" and event.ok:
        life.came_up(slot, "its probe says ready", now)


def probe_changed_in_service(life: Lifecycle, slot: Slot, event: events.ProbeChanged, now: float) -> None:
    if event.kind == "ready":
        return
    if event.ok:
        slot.unhealthy = ""
        _well_again(life, slot, now)
        return
    slot.unhealthy = f"liveness probe: {event.detail or 'no'}"
    if slot.state is S.READY:
        life.move(slot, S.SUSPECT, slot.unhealthy, now)
    life.set_timer(slot, now + _patience_s(life))


def probe_changed_later(life: Lifecycle, slot: Slot, event: events.ProbeChanged, now: float) -> None:
    if event.kind != "ready" and event.ok:
        slot.unhealthy = ""


def _patience_s(life: Lifecycle) -> float:
    """Return the time from suspect to replaced, for a unit whose liveness probe fails."""
    return life.times.dead_after_s - life.times.suspect_after_s


def process_stopped(life: Lifecycle, slot: Slot, event: events.ProcessStopped, now: float) -> None:
    slot.stopped_process = event.stopped
    if not event.stopped:
        slot.timer = 0.0
        if slot.unhealthy:
            life.set_timer(slot, now + _patience_s(life))
    elif now - slot.continued_at < life.times.dead_after_s:
        unit_stops.hang(life, slot, "its process was stopped by a signal again after it was continued", now)
    else:
        slot.continued_at = now
        life.out.append(Signal(slot.host, slot.unit, slot.incarnation, int(signal.SIGCONT)))
        life.set_timer(slot, now + 3 * life.times.stats_every_s)


# ---- reports of the unit, and checks of its heartbeats ----


def found_alive(life: Lifecycle, slot: Slot, now: float, why: str) -> None:
    """Handle a sign of life of the present incarnation, if it was lost."""
    if slot.state is S.LOST and not slot.leader_gone:
        slot.silent = ""
        if slot.came_up:
            life.move(slot, S.READY, why, now)
        else:
            life.move(slot, S.STARTING, why, now)
            assert slot.spec is not None
            life.set_timer(slot, now + slot.spec.start_deadline_s)
        if slot.stopping_because:
            # It was being replaced when its host became silent.
            unit_stops.kill(life, slot, slot.stopping_because, now)
    life.out.append(Publish("unit", slot.unit))


def unit_ready(life: Lifecycle, slot: Slot, event: events.UnitReady, now: float) -> None:
    # Found alive first: a lost unit that had not come up is starting again, and then ready.
    found_alive(life, slot, now, "its heartbeats arrive again")
    if event.ready:
        life.came_up(slot, "says it is ready", now)
    life.touch(slot)


def unit_bye(life: Lifecycle, slot: Slot, event: events.UnitBye, now: float) -> None:
    slot.bye_code, slot.bye_reason = event.code, event.reason
    life.touch(slot)
    if life.state.is_silent(slot.host):
        life.lose(slot, f"ended ({event.reason or event.code}) while host {slot.host} is silent", now)


def stop_extended(life: Lifecycle, slot: Slot, event: events.StopExtended, now: float) -> None:
    until = min(now + event.by_s, slot.since + life.times.drain_patience_s)
    until = before_its_host_leaves(life.state, slot, until, now)
    if until > slot.timer:
        life.set_timer(slot, until)


def start_extended(life: Lifecycle, slot: Slot, event: events.StartExtended, now: float) -> None:
    if event.until > slot.timer:
        life.set_timer(slot, event.until)


def phase_announced(life: Lifecycle, slot: Slot, event: events.PhaseAnnounced, now: float) -> None:
    if event.until > slot.phase_until:
        # The margin keeps a loop of equal phases from being persisted at each phase.
        slot.phase_until = event.until + (event.until - now) / 2
        life.out.append(Persist("slot", slot.unit))


def unit_suspect_in_service(life: Lifecycle, slot: Slot, event: events.UnitSuspect, now: float) -> None:
    if life.state.is_silent(slot.host):
        unit_suspect_with_its_host(life, slot, event, now)
        return
    slot.silent = event.because
    if slot.state is S.READY:
        life.move(slot, S.SUSPECT, event.because, now)


def unit_suspect_with_its_host(life: Lifecycle, slot: Slot, event: events.UnitSuspect, now: float) -> None:
    if life.state.is_silent(slot.host):
        life.lose(slot, f"{event.because}; host {slot.host} is silent too", now)


def unit_reports(life: Lifecycle, slot: Slot, event: events.UnitReports, now: float) -> None:
    slot.silent = ""
    _well_again(life, slot, now)
    found_alive(life, slot, now, "its heartbeats arrive again")
    life.touch(slot)


def _well_again(life: Lifecycle, slot: Slot, now: float) -> None:
    if slot.state is S.SUSPECT and not slot.silent and not slot.unhealthy:
        life.move(slot, S.READY, "is well again", now)


def unit_hung_in_service(life: Lifecycle, slot: Slot, event: events.UnitHung, now: float) -> None:
    unit_stops.hang(life, slot, event.because, now)


def unit_hung_while_draining(life: Lifecycle, slot: Slot, event: events.UnitHung, now: float) -> None:
    unit_stops.kill(life, slot, f"killed while draining: {event.because}", now)


# ---- operators, and time ----


def death_confirmed(life: Lifecycle, slot: Slot, event: events.DeathConfirmed, now: float) -> None:
    unit_ends.declare_dead(life, slot, event.by, now)


def deaths_aged(life: Lifecycle, slot: Slot, event: events.DeathsAged, now: float) -> None:
    if restarts.forget_aged(slot, life.times, now):
        life.touch(slot)


def timer_fired_while_starting(life: Lifecycle, slot: Slot, event: events.TimerFired, now: float) -> None:
    slot.timer = 0.0
    slot.stopping_because = f"never came up: not ready within {now - slot.since:.1f} s"
    unit_stops.terminate(life, slot, slot.stopping_because, now)
    life.touch(slot)


def timer_fired_in_service(life: Lifecycle, slot: Slot, event: events.TimerFired, now: float) -> None:
    slot.timer = 0.0
    if slot.stopped_process:
        unit_stops.hang(life, slot, "its process was stopped by a signal and did not continue", now)
    elif slot.unhealthy:
        unit_stops.hang(life, slot, slot.unhealthy, now)
    life.touch(slot)


def timer_fired_while_draining(life: Lifecycle, slot: Slot, event: events.TimerFired, now: float) -> None:
    slot.timer = 0.0
    unit_stops.terminate(life, slot, f"{slot.reason}; did not finish in {now - slot.since:.1f} s", now)
    life.touch(slot)


def timer_fired_while_stopping(life: Lifecycle, slot: Slot, event: events.TimerFired, now: float) -> None:
    slot.timer = 0.0
    unit_stops.kill(life, slot, slot.reason, now)
    life.touch(slot)


def timer_fired_otherwise(life: Lifecycle, slot: Slot, event: events.TimerFired, now: float) -> None:
    slot.timer = 0.0
    life.touch(slot)


_SERVING, _LEAVING = (S.READY, S.SUSPECT), (S.DRAINING, S.STOPPING, S.LOST)

TRANSITIONS: Mapping[type[events.UnitEvent], Mapping[S, Transition]] = {
    events.Spawned: dict.fromkeys(WITH_PROCESS, spawned),
    events.SpawnFailed: {
        S.STARTING: spawn_failed_while_starting,
        **dict.fromkeys((*_SERVING, *_LEAVING), spawn_failed_later),
    },
    events.Exited: dict.fromkeys(WITH_PROCESS, exited),
    events.TreeGone: dict.fromkeys(S, tree_gone),
    events.ProbeChanged: {
        S.STARTING: probe_changed_while_starting,
        **dict.fromkeys(_SERVING, probe_changed_in_service),
        **dict.fromkeys(_LEAVING, probe_changed_later),
    },
    events.ProcessStopped: dict.fromkeys(_SERVING, process_stopped),
    events.UnitReady: dict.fromkeys(WITH_PROCESS, unit_ready),
    events.UnitBye: dict.fromkeys(S, unit_bye),
    events.StopExtended: {S.DRAINING: stop_extended},
    events.StartExtended: {S.STARTING: start_extended},
    events.PhaseAnnounced: dict.fromkeys(WITH_PROCESS, phase_announced),
    events.UnitSuspect: {
        **dict.fromkeys(_SERVING, unit_suspect_in_service),
        **dict.fromkeys((S.STARTING, S.DRAINING, S.STOPPING), unit_suspect_with_its_host),
    },
    events.UnitReports: dict.fromkeys(WITH_PROCESS, unit_reports),
    events.UnitHung: {
        **dict.fromkeys(_SERVING, unit_hung_in_service),
        S.DRAINING: unit_hung_while_draining,
    },
    # What is left of an incarnation on a silent host can be in any state.
    events.DeathConfirmed: dict.fromkeys(S, death_confirmed),
    events.DeathsAged: dict.fromkeys(S, deaths_aged),
    events.TimerFired: {
        S.STARTING: timer_fired_while_starting,
        **dict.fromkeys(_SERVING, timer_fired_in_service),
        S.DRAINING: timer_fired_while_draining,
        S.STOPPING: timer_fired_while_stopping,
        **dict.fromkeys((S.PENDING, S.LOST, S.BACKOFF, S.STOPPED, S.FATAL), timer_fired_otherwise),
    },
}
"""By event and state of the unit: what happens."""
