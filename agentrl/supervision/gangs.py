"""Decides when a gang may start, when its epoch is over, and which units an act on one of its ranks concerns.

Invariants:
- An epoch ends for all ranks: as soon as one of them no longer belongs to it, the others must end.
- A gang starts only if no process of it is left on any reachable host. A process on an unreachable host does not delay
  the start if its writes are fenced.
- No two starts of a gang have the same epoch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import Rank
from agentrl.supervision.gang_placement import Seat
from agentrl.supervision.unit_slots import WITH_PROCESS, GroupState, Slot, State

FIRST_PORT, PORTS = 29_500, 1_000
"""The ports at which the ranks of gangs meet, below the ports that the kernel gives to clients."""
_GOES_ON = frozenset({S.STARTING, S.READY, S.SUSPECT, S.DRAINING, S.LOST})
"""A drain may be cancelled, and a lost rank may return. Until then the others may wait for it."""
Runs = Callable[[Slot], bool]


def members_with(state: State, slot: Slot) -> Sequence[Slot]:
    """The units that are stopped, restarted and paused with this one: all ranks of its gang, or itself."""
    group = state.groups.get(slot.group)
    if group is None or not group.spec.gang:
        return (slot,)
    return tuple(s for s in state.of_group(slot.group) if s.wanted or s is slot)


def next_epoch(group: GroupState, slots: Sequence[Slot]) -> int:
    """The epoch after all that were used."""
    return 1 + max(group.gang_started, *(slot.started_epoch for slot in slots), 0)


def fault(state: State, group: GroupState, slots: Sequence[Slot], runs: Runs) -> str:
    """Return why the present epoch is over although no rank has died; empty if it goes on."""
    of_epoch = [s for s in slots if s.state in WITH_PROCESS and s.started_epoch == group.gang_epoch]
    members = [s for s in slots if runs(s)] if of_epoch else []
    for slot in members:
        if slot.done:
            continue
        if slot.generation != slot.started_generation:
            return f"{slot.unit} is replaced"
        if slot.state not in _GOES_ON or slot.started_epoch != group.gang_epoch:
            return f"{slot.unit} does not run ({slot.reason})"
        if slot.host in state.run.draining_hosts:
            return f"host {slot.host} is drained"
        if state.is_leaving(slot.host):
            return f"host {slot.host} is leaving"
        if slot.rank is not None and slot.rank.ranks != len(members):
            return f"it has {len(members)} ranks now"
    return ""


def lacks_a_rank(state: State, slot: Slot) -> bool:
    """Return whether a drain cannot succeed, because a rank of the epoch of this one has died."""
    group = state.groups.get(slot.group)
    return group is not None and group.gang_died and slot.started_epoch != group.gang_epoch


def left_of(state: State, slot: Slot, *, of_gang: bool = False) -> str:
    """Return the earlier incarnations of a unit that must end before the next one starts. A rank of a gang that is out
    of reach and whose writes are fenced is not among them."""
    out_of_reach = not slot.tree_gone and state.is_out_of_reach(slot)
    given_up = of_gang and out_of_reach and slot.spec is not None and slot.spec.fenced
    if not slot.tree_gone and not given_up:
        silent = f"; host {slot.host} is silent" if out_of_reach else ""
        return f"waits until nothing of {slot.name} is left{silent}"
    for ghost in slot.ghosts:
        # A host that has not connected to a new coordinator yet may still do so.
        if not state.is_silent(ghost.host):
            return f"waits until {slot.unit}.{ghost.incarnation} on {ghost.host} has ended"
    return ""


def obstacle(state: State, slots: Sequence[Slot], runs: Runs, now: float) -> str:
    """Return why no rank of the gang may start now; empty if all may."""
    for slot in slots:
        if left := left_of(state, slot, of_gang=True):
            return left
    for slot in slots:
        if not runs(slot):
            continue
        if slot.state is S.FATAL and slot.generation == slot.started_generation:
            return f"its gang is broken: {slot.unit} is fatal ({slot.reason})"
        if slot.state is S.BACKOFF and slot.timer > now:
            return f"waits for its gang: {slot.unit} starts later"
    return ""


def ranks_of(
    run: str, group: GroupState, members: Sequence[Slot], seats: Sequence[Seat], epoch: int
) -> list[tuple[Slot, Seat, Rank]]:
    """The place of each member. The seats of one host are adjacent in `seats`."""
    hosts = list(dict.fromkeys(seat.host for seat in seats))
    private = group.spec.private if len(hosts) > 1 else {}
    by_host = {host: [seat for seat in seats if seat.host == host] for host in hosts}
    found, local = [], dict.fromkeys(hosts, 0)
    for number, (slot, seat) in enumerate(zip(sorted(members, key=lambda s: s.number), seats, strict=True)):
        rank = Rank(
            epoch=epoch,
            rank=number,
            ranks=len(seats),
            port=_port(run, group.spec.name, epoch),
            local_rank=local[seat.host],
            local_ranks=len(by_host[seat.host]),
            node=hosts.index(seat.host),
            nodes=len(hosts),
            address=private.get(hosts[0], ""),
            own_address=private.get(seat.host, ""),
            visible=tuple(device for other in by_host[seat.host] for device in other.devices),
        )
        local[seat.host] += 1
        found.append((slot, seat, rank))
    return found


def _port(run: str, group: str, epoch: int) -> int:
    """A different port in each epoch, because a leftover process of the last one, or another program, may have the
    port."""
    return FIRST_PORT + (zlib.crc32(f"{run}/{group}".encode()) + epoch) % PORTS
