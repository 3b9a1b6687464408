"""Moves the units that an event touched toward desired state, one function for each state of a unit.

Invariants:
- After `settle` every slot has made all moves that are possible now.
- An incarnation is spawned only if no process of an earlier one lives on any reachable host.
- Two incarnations exist at once only if every write of the lost one is fenced.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import Life
from agentrl.supervision import gang_epochs, unit_stops
from agentrl.supervision.gangs import Seat
from agentrl.supervision.instructions import AllStopped, Publish, Report
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import Slot


def settle(life: Lifecycle, now: float) -> None:
    """Reconcile every slot that was touched."""
    if life.touched:
        # What a pending unit waits for may change without a move: another member of its gang is held, for example.
        life.pending.recheck()
    while life.touched or life.pending.to_recheck:
        life.touched |= life.pending.that_may_move(now)
        units, life.touched = sorted(life.touched), set()
        slots = [slot for unit in units if (slot := life.state.slots.get(unit))]
        for group in dict.fromkeys(slot.group for slot in slots):
            gang_epochs.end_if_over(life, group)
        for slot in slots:
            if not slot.since:
                slot.since, slot.reason = now, "is new"
            RECONCILE[slot.state](life, slot, now)
    _announce_end(life)


def _announce_end(life: Lifecycle) -> None:
    run = life.state.run
    if run.up or life.announced_end or not run.desired_by:
        return
    # A lost unit cannot be stopped. The report at the end of `down` names it as unproven.
    if all(slot.tree_gone or life.state.is_out_of_reach(slot) for slot in life.state.slots.values()):
        life.announced_end = True
        life.out.append(AllStopped())


def _pending(life: Lifecycle, slot: Slot, now: float) -> None:
    """Start the unit, or give the reason why it cannot start now."""
    if slot.spec is not None and slot.spec.fenced and not slot.tree_gone and life.state.is_out_of_reach(slot):
        life.abandon(slot)
    if not life.runs(slot):
        if slot.tree_gone:
            life.move(slot, S.STOPPED, slot.held or "not wanted", now)
        return
    host, obstacle = life.where(slot, now)
    if host and life.state.groups[slot.group].spec.gang:
        gang_epochs.start(life, slot.group, now)
    elif host:
        life.start(slot, Seat(host, life.pending.choose_devices(slot.group, host)), now)
    elif slot.state is S.BACKOFF and (slot.tree_gone or life.state.is_out_of_reach(slot)):
        life.move(slot, S.PENDING, obstacle, now)
    elif slot.reason != obstacle and slot.state is S.PENDING:
        slot.reason = obstacle
        life.out.append(Publish("unit", slot.unit))


def _backoff(life: Lifecycle, slot: Slot, now: float) -> None:
    due = not slot.timer or slot.timer <= now
    if due or not life.runs(slot) or slot.generation != slot.started_generation:
        _pending(life, slot, now)


def _in_service(life: Lifecycle, slot: Slot, now: float) -> None:
    if (not life.runs(slot) or life.outdated(slot)) and life.stop_order.is_next(slot):
        unit_stops.begin(life, slot, now)


def _stopping(life: Lifecycle, slot: Slot, now: float) -> None:
    at_once = slot.stop_now or life.state.run.stop_now
    if at_once and not slot.tree_gone and slot.reason != "killed":
        unit_stops.kill(life, slot, "killed", now)


def _lost(life: Lifecycle, slot: Slot, now: float) -> None:
    """Replace a lost unit, if every write of the lost incarnation is fenced."""
    if slot.spec is None or not slot.spec.fenced or not life.runs(slot):
        return
    if slot.spec.life is Life.JOB and slot.bye_code == 0 and not life.outdated(slot):
        # It has announced its successful end. The report of its host, or an operator, decides.
        return
    life.abandon(slot)
    slot.restarts += 1
    done = "replaced; the lost one is fenced and will be ended when its host comes back"
    life.out.append(Report(slot.unit, slot.incarnation, slot.host, f"lost: {slot.reason}", done))
    gang_epochs.break_up(life, slot, slot.reason)
    life.move(slot, S.PENDING, "replaces a lost incarnation", now)


def _fatal(life: Lifecycle, slot: Slot, now: float) -> None:
    if not life.runs(slot):
        life.move(slot, S.STOPPED, slot.reason, now)
    elif slot.generation != slot.started_generation:
        life.move(slot, S.PENDING, "wanted again", now)


def _stopped(life: Lifecycle, slot: Slot, now: float) -> None:
    if life.runs(slot) and not slot.done:
        life.move(slot, S.PENDING, "wanted again", now)


RECONCILE: dict[S, Callable[[Lifecycle, Slot, float], None]] = {
    S.PENDING: _pending,
    S.STARTING: _in_service,
    S.READY: _in_service,
    S.SUSPECT: _in_service,
    S.LOST: _lost,
    S.DRAINING: unit_stops.reconsider_drain,
    S.STOPPING: _stopping,
    S.BACKOFF: _backoff,
    S.STOPPED: _stopped,
    S.FATAL: _fatal,
}
