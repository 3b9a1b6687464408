"""Handles what hosts report of themselves, and what is known of absent ones.

Invariants:
- A new hello of a host says everything: what its ledger has of the present incarnations counts, other processes there
  are ended, and what it does not have has ended.
- A host is forgotten only when no incarnation may live on it.
"""

from __future__ import annotations

from agentrl.protocol.messages import UnitOnHost
from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import Role, incarnation_name
from agentrl.supervision import events, unit_ends, unit_events, unit_stops
from agentrl.supervision.devices import share_of
from agentrl.supervision.instructions import Forget, KillTree, Persist, Spawn
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import Ghost, HostState, Slot


def host_connected(life: Lifecycle, event: events.HostConnected, now: float) -> None:
    host = HostState(event.host, event.facts, True, _up_since(life, event, now), minor=event.minor)
    life.state.hosts[event.host] = host
    life.state.awaited.pop(event.host, None)
    life.state.in_vain.discard(event.host)
    life.host_changed(event.host)
    _identify(life, event)
    if event.host not in life.state.run.hosts:
        life.state.run.hosts.add(event.host)
        life.out.append(Persist("run", ""))
    on_host = {(entry.unit, entry.incarnation): entry for entry in event.inventory}
    for (unit, incarnation), entry in on_host.items():
        slot = life.state.slots.get(unit)
        if slot is not None and slot.incarnation == incarnation and slot.host == event.host:
            _in_ledger(life, slot, entry, now, event.dice)
        else:
            _end_stranger(life, event.host, slot, entry)
    for slot in list(life.state.slots.values()):
        if slot.host == event.host and not slot.tree_gone and (slot.unit, slot.incarnation) not in on_host:
            _missing_from_ledger(life, slot, now, event.dice)
        for ghost in slot.ghosts:
            if ghost.host == event.host and (slot.unit, ghost.incarnation) not in on_host:
                life.forget_ghost(slot, ghost.host, ghost.incarnation)
    # Last, because the ledger of the host says which units hold its devices.
    life.devices_held(host, event.devices)


def devices_held(life: Lifecycle, event: events.DevicesHeld, now: float) -> None:
    host = life.state.hosts.get(event.host)
    if host is not None and host.connected:
        life.devices_held(host, event.devices)


def _identify(life: Lifecycle, event: events.HostConnected) -> None:
    """Take incarnation and host of units that the journal could not identify from the ledger of their host."""
    for entry in sorted(event.inventory, key=lambda entry: -entry.incarnation):
        slot = life.state.slots.get(entry.unit)
        if slot is None or entry.group_empty or not (slot.unidentified or slot.host == event.host):
            continue
        _assign(life, slot, event.host if slot.unidentified else slot.host, entry.incarnation, entry)
    connected = {name for name, host in life.state.hosts.items() if host.connected}
    for slot in life.state.slots.values():
        if slot.unidentified and _possible_hosts(life, slot) <= connected:
            # No ledger has it, so no process of it is left, and the report of this host is enough.
            _assign(life, slot, event.host, slot.incarnation)


def _assign(life: Lifecycle, slot: Slot, host: str, incarnation: int, entry: UnitOnHost | None = None) -> None:
    """Complete the slot of a unit that the journal could not identify or whose spec it could not read."""
    if slot.state is not S.LOST:
        return
    life.host_use.change(slot, -1)
    if slot.spec is None:
        group = life.state.groups.get(slot.group)
        slot.spec, slot.started_epoch = (group.spec, group.gang_epoch) if group else (None, 0)
    if slot.unidentified:
        slot.incarnation, slot.host, slot.started_generation = incarnation, host, slot.generation
        if entry is not None:
            slot.devices, slot.rank = entry.devices, entry.rank
        if slot.rank is not None:
            slot.started_epoch = slot.rank.epoch
        life.devices.hold(host, slot.name, slot.devices, share_of(slot))
    life.host_use.change(slot, 1)


def _possible_hosts(life: Lifecycle, slot: Slot) -> set[str]:
    group = life.state.groups.get(slot.group)
    if group is not None and group.spec.role is not Role.SIDECAR and life.state.data_host:
        return {*group.spec.hosts, life.state.data_host}
    return {*life.state.run.hosts, life.state.data_host} - {""}


def _up_since(life: Lifecycle, event: events.HostConnected, now: float) -> float:
    """Return since when the host is up. A second hello of the same agent does not change it, unless the agent was
    silent.
    """
    known, began = life.state.hosts.get(event.host), now - event.age_s
    if known is None:
        return began
    return max(known.since, began) if known.connected else now


def _in_ledger(life: Lifecycle, slot: Slot, entry: UnitOnHost, now: float, dice: float) -> None:
    """Handle a host whose ledger contains the present incarnation."""
    if slot.tree_gone:
        # Its end is known, or it was replaced, so the entry of the host is a ghost.
        _end_stranger(life, slot.host, slot, entry)
        return
    slot.pid, slot.start_ticks, slot.spawned = entry.pid, entry.start_ticks, entry.pid > 0
    if entry.exit is None:
        unit_events.found_alive(life, slot, now, "its host is back")
        unit_events.ready_without_report(life, slot, entry.ready is True, now)
        if slot.state is S.STOPPING:
            unit_stops.go_on(life, slot, now)
    else:
        unit_ends.leader_ended(life, slot, entry.exit, now, dice)
    if entry.group_empty:
        unit_ends.tree_gone(life, slot, now, dice)
    life.touch(slot)


def _end_stranger(life: Lifecycle, host: str, slot: Slot | None, entry: UnitOnHost) -> None:
    """End an earlier incarnation or an unknown unit that a host reports."""
    if entry.group_empty:
        life.out.append(Forget(host, entry.unit, entry.incarnation))
        if slot is not None:
            life.forget_ghost(slot, host, entry.incarnation)
        return
    if slot is not None and (host, entry.incarnation) not in [(g.host, g.incarnation) for g in slot.ghosts]:
        slot.ghosts = [*slot.ghosts, Ghost(host, entry.incarnation, entry.devices)]
        life.devices.hold(host, incarnation_name(slot.unit, entry.incarnation), entry.devices, 1.0)
        life.touch(slot)
    life.out.append(KillTree(host, entry.unit, entry.incarnation))


def _missing_from_ledger(life: Lifecycle, slot: Slot, now: float, dice: float) -> None:
    if slot.state is S.STARTING and not slot.spawned:
        # The Spawn was lost. It is idempotent, so it can be repeated.
        life.out.append(Spawn(slot.host, slot.unit, slot.incarnation))
        return
    unit_ends.tree_gone(life, slot, now, dice)


def host_silent(life: Lifecycle, event: events.HostSilent, now: float) -> None:
    host = life.state.hosts.setdefault(event.host, HostState(event.host))
    host.connected, host.since = False, now
    life.host_changed(event.host)
    for slot in list(life.state.slots.values()):
        if slot.host != event.host or slot.tree_gone:
            continue
        life.touch(slot)
        if slot.unit not in event.reporting:
            life.lose(slot, f"host {event.host} is silent for {event.for_s:.0f} s", now)


def host_leaving(life: Lifecycle, event: events.HostLeaving, now: float) -> None:
    host = life.state.hosts.get(event.host)
    if host is not None and host.connected:
        host.leaving, host.leaves_at = event.why, event.until
        life.host_leaves(event.host, now)


def host_awaited(life: Lifecycle, event: events.HostAwaited, now: float) -> None:
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


def host_forgotten(life: Lifecycle, event: events.HostForgotten, now: float) -> None:
    state = life.state
    for slot in list(state.slots.values()) if event.by or event.gone else ():
        if slot.host == event.host:
            unit_ends.declare_dead(life, slot, event.by or slot.desired_by, now, gone=event.gone)
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
