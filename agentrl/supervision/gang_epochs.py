"""Starts the epochs of gangs and ends them, by the rules in `gangs`.

Invariants:
- All ranks of an epoch start in one turn, after the epoch was persisted.
- The end of an epoch reaches every rank: living ranks are ended, and finished ranks no longer count as done.
"""

from __future__ import annotations

from agentrl.protocol.rows import UnitState as S
from agentrl.supervision import gangs, restarts
from agentrl.supervision.instructions import Persist, Publish
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import GroupState, Slot


def start(life: Lifecycle, name: str, now: float) -> None:
    """Start all ranks. Call it only if there is a seat for each, and no process of an earlier epoch is left."""
    group, slots = life.state.groups[name], life.state.of_group(name)
    members = [slot for slot in slots if life.runs(slot)]
    for slot in members:
        if not slot.tree_gone:
            life.abandon(slot)
    seats, _ = life.pending.seats(name)
    group.gang_epoch = group.gang_started = max(group.gang_epoch, gangs.next_epoch(group, slots))
    group.gang_died = False
    life.out += [Persist("group", name), Publish("group", name)]
    for slot, seat, rank in gangs.ranks_of(life.state.run_id, group, members, seats, group.gang_epoch):
        if slot.state not in (S.PENDING, S.BACKOFF):
            life.move(slot, S.PENDING, "its gang starts", now)
        life.start(slot, seat, now, rank)


def end_if_over(life: Lifecycle, name: str) -> None:
    """End the present epoch if a rank no longer belongs to it."""
    group = life.state.groups.get(name)
    if group is not None and group.spec.gang:
        why = gangs.fault(life.state, group, life.state.of_group(name), life.runs)
        if why:
            _end(life, group, why)


def break_up(life: Lifecycle, slot: Slot, why: str) -> None:
    """End the epoch because one rank ended unplanned."""
    group = life.state.groups.get(slot.group)
    if group is None or not group.spec.gang or slot.started_epoch != group.gang_epoch:
        return
    group.gang_died = True
    for other in life.state.of_group(slot.group):
        restarts.share_history(slot, other)
    _end(life, group, f"{slot.name} {why}")


def _end(life: Lifecycle, group: GroupState, why: str) -> None:
    slots = life.state.of_group(group.spec.name)
    group.gang_epoch, group.gang_why = gangs.next_epoch(group, slots), why
    life.out += [Persist("group", group.spec.name), Publish("group", group.spec.name)]
    for slot in slots:
        slot.done = False
        life.touch(slot)
