"""Writes what operators want into desired state, without touching a process. One function for each event of theirs.

Invariants:
- A change that is applied twice has the same effect as once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import READ_FROM, GroupSpec, split_unit
from agentrl.supervision import events
from agentrl.supervision.gangs import members_with
from agentrl.supervision.instructions import Persist, Publish
from agentrl.supervision.scheduling import victims
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import WITH_PROCESS, GroupState, Slot
from agentrl.supervision.up_plan import count_after, new_units


def applied(life: Lifecycle, event: events.Applied, now: float) -> None:
    """Make desired state equal to this configuration."""
    run = life.state.run
    was_up = run.up and run.reading == event.reading
    if not run.up:
        run.hosts = {name for name, host in life.state.hosts.items() if host.connected}
    if not was_up:
        run.up_since_at = now
    run.up, run.reading, run.stop_now, run.desired_by = True, event.reading, False, event.by
    life.out.append(Persist("run", ""))
    life.touch_all()
    for spec in event.specs:
        if not event.reading or spec.role in READ_FROM:
            _apply_group(life, spec, event.by, was_up)
    wanted = {spec.name for spec in event.specs}
    for name, group in life.state.groups.items():
        if name not in wanted and not group.removed:
            group.removed = True
            life.out += [Persist("group", name), Publish("group", name)]
            for slot in life.state.of_group(name):
                _no_longer_wanted(life, slot, event.by)


def _apply_group(life: Lifecycle, spec: GroupSpec, by: str, was_up: bool) -> None:
    group = life.state.groups.get(spec.name)
    count = count_after(group, spec)
    same = group is not None and group.spec.fingerprint() == spec.fingerprint()
    if group is None:
        epoch = life.state.run.epochs.get(spec.name, 0)
        group = GroupState(spec, file_count=spec.count, counted_by=by, gang_epoch=epoch, gang_started=epoch)
        life.state.groups[spec.name] = group
    elif group.spec.count != count:
        group.counted_by = by
    group.file_count, group.removed = spec.count, False
    group.spec = msgspec.structs.replace(spec, count=count)
    life.out += [Persist("group", spec.name), Publish("group", spec.name)]
    _resize(life, spec.name, count, by, frozenset())
    for slot in life.state.of_group(spec.name):
        if not slot.wanted:
            continue
        wanted_again = not was_up or bool(slot.held) or slot.state is UnitState.FATAL
        if wanted_again:
            _fresh_budget(slot)
        if not same:
            # Another spec needs another incarnation; a finished job with another spec runs again.
            slot.reset_history()
            slot.generation += 1
            slot.done = False
        elif not wanted_again:
            continue
        slot.desired_by = by
        life.touch(slot)


def scaled(life: Lifecycle, event: events.Scaled, now: float) -> None:
    group = life.state.groups[event.group]
    if group.spec.count != event.count:
        group.counted_by = event.by
    group.spec = msgspec.structs.replace(group.spec, count=event.count)
    life.out += [Persist("group", event.group), Publish("group", event.group)]
    _resize(life, event.group, event.count, event.by, event.idle)


def _resize(life: Lifecycle, name: str, count: int, by: str, idle: frozenset[str]) -> None:
    members = [s for s in life.state.of_group(name) if s.wanted]
    gang = life.state.groups[name].spec.gang
    for slot in victims(members, len(members) - count, idle, gang=gang):
        _no_longer_wanted(life, slot, by)
    if gang and len(members) != count:
        for slot in members:
            slot.desired_by = by  # All ranks start again, because each knows their number.
            life.touch(slot)
    for unit in new_units({s.unit for s in members}, name, count - len(members)):
        if unit not in life.state.slots:
            life.state.new_slot(unit, name, split_unit(unit)[1])
            life.recheck_pending()
        fresh = life.state.slots[unit]
        fresh.wanted, fresh.desired_by = True, by
        _fresh_budget(fresh)
        life.touch(fresh)


def _no_longer_wanted(life: Lifecycle, slot: Slot, by: str) -> None:
    slot.wanted, slot.desired_by, slot.held = False, by, ""
    life.touch(slot)
    # Other units may wait for the group, which is ready without this unit.
    life.recheck_pending()


def _fresh_budget(slot: Slot) -> None:
    slot.held = ""
    slot.reset_history()
    if slot.tree_gone or not slot.leader_gone:
        slot.last_exit = None  # It belongs to an earlier incarnation, unless this one is ending.
    if slot.state in (UnitState.FATAL, UnitState.BACKOFF, UnitState.STOPPING) or slot.done:
        # A unit that is stopping may be lost and come back alive. It must not stay then.
        slot.generation += 1
    slot.done = slot.stop_now = slot.patient = False


def stop_wanted(life: Lifecycle, event: events.StopWanted, now: float) -> None:
    for slot in members_with(life.state, life.state.slots[event.unit]):
        slot.held, slot.desired_by = event.because, event.by
        slot.stop_now, slot.patient = event.now, event.patient and not event.now
        life.touch(slot)


def drain_cancelled(life: Lifecycle, event: events.DrainCancelled, now: float) -> None:
    for slot in members_with(life.state, life.state.slots[event.unit]):
        slot.held, slot.desired_by, slot.patient = "", event.by, False
        life.touch(slot)


def restart_wanted(life: Lifecycle, event: events.RestartWanted, now: float) -> None:
    members = [slot for unit in event.units for slot in members_with(life.state, life.state.slots[unit])]
    for slot in {slot.unit: slot for slot in members}.values():
        _fresh_budget(slot)
        if slot.state in WITH_PROCESS and slot.generation == slot.started_generation:
            slot.generation += 1
        slot.desired_by, slot.stop_now = event.by, event.at_once
        life.touch(slot)


def host_drained(life: Lifecycle, event: events.HostDrained, now: float) -> None:
    draining = life.state.run.draining_hosts
    (draining.add if event.draining else draining.discard)(event.host)
    life.out += [Persist("run", ""), Publish("host", event.host)]
    for there in _on_host(life, event.host):
        for slot in members_with(life.state, there):
            slot.desired_by = event.by or slot.desired_by
            life.touch(slot)
    life.recheck_pending()


def paused(life: Lifecycle, event: events.Paused, now: float) -> None:
    state = life.state
    if event.target == "run":
        state.run.paused = event.paused
        life.out += [Persist("run", ""), Publish("run", "")]
        concerned: Iterable[Slot] = state.slots.values()
    elif event.target in state.groups:
        state.groups[event.target].paused = event.paused
        life.out += [Persist("group", event.target), Publish("group", event.target)]
        concerned = state.of_group(event.target)
    else:
        concerned = members_with(state, state.slots[event.target])
        for slot in concerned:
            slot.paused = event.paused
            life.touch(slot)
    for slot in concerned:
        life.send_paused(slot)


def down_wanted(life: Lifecycle, event: events.DownWanted, now: float) -> None:
    run = life.state.run
    run.up, run.desired_by = False, event.by
    run.stop_now = run.stop_now or event.at_once
    life.out += [Persist("run", ""), Publish("run", "")]
    for slot in life.state.slots.values():
        slot.desired_by = event.by
    life.touch_all()


def _on_host(life: Lifecycle, host: str) -> list[Slot]:
    return [s for s in life.state.slots.values() if s.host == host and s.state in WITH_PROCESS]
