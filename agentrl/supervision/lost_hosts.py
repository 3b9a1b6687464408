"""Handles hosts that leave, that are absent, and that are forgotten.

Invariants:
- A unit is declared dead only if its host cannot be reached.
- A host is forgotten only when no incarnation may live on it.
"""

from __future__ import annotations

from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.supervision.instructions import Died, Persist
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import Slot


def leaving(life: Lifecycle, event: events.HostLeaving, now: float) -> None:
    host = life.state.hosts.get(event.host)
    if host is not None and host.connected:
        host.leaving, host.leaves_at = event.why, event.until
        life.host_leaves(event.host, now)


def awaited(life: Lifecycle, event: events.HostAwaited) -> None:
    """Handle the report of a placement on why a host is absent."""
    known = life.state.awaited
    if event.in_vain and event.why:
        life.state.in_vain.add(event.host)
    else:
        life.state.in_vain.discard(event.host)
    if known.get(event.host, "") == event.why:
        return
    known[event.host] = event.why
    if not event.why:
        del known[event.host]
    life.host_changed(event.host)


def forgotten(life: Lifecycle, event: events.HostForgotten, now: float) -> None:
    state = life.state
    for slot in list(state.slots.values()) if event.by or event.gone else ():
        if slot.host == event.host:
            declare_dead(life, slot, event.by or slot.desired_by, now, gone=event.gone)
        for ghost in slot.ghosts:
            if ghost.host == event.host:
                life.forget_ghost(slot, ghost.host, ghost.incarnation)
    if state.holds_units(event.host):
        return
    state.hosts.pop(event.host, None)
    # The drain must not apply to the next machine with that name.
    state.run.draining_hosts.discard(event.host)
    if not any(slot.unidentified for slot in state.slots.values()):
        state.run.hosts.discard(event.host)
    life.out.append(Persist("run", ""))
    life.host_changed(event.host)


def declare_dead(life: Lifecycle, slot: Slot, by: str, now: float, *, gone: str = "") -> None:
    """Declare a unit dead. `gone`: what took its host away; empty if an operator declares the death."""
    if slot.tree_gone or not life.state.is_out_of_reach(slot):
        return
    life.abandon(slot)
    slot.desired_by = by
    life.out.append(Died(slot.unit, slot.incarnation))
    if slot.state is not UnitState.LOST:
        return
    because = f"lost with its host: {gone}" if gone else "declared dead by an operator"
    life.move(slot, UnitState.PENDING if life.runs(slot) else UnitState.STOPPED, because, now)
