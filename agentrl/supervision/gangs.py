"""Decides when and where a gang starts, when its epoch is over, and which units an act on one of its ranks concerns.

Invariants:
- An epoch ends for all ranks: as soon as one of them no longer belongs to it, the others must end.
- A gang starts only if no process of it is left on any reachable host. A process on an unreachable host does not delay
  the start if its writes are fenced.
- No two starts of a gang have the same epoch.
- A rank gets whole devices of its own. The ranks of one host have consecutive numbers.
- A gang is on as few hosts as possible, with equal parts on each of them if that is possible.
- A gang is on several hosts only if each of them has a private address.
- A gang that cannot be placed gets one sentence, which says which rank has no place and what it lacks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import GroupSpec, Rank
from agentrl.supervision import scheduling
from agentrl.supervision.devices import HeldDevices, devices_of, islands_used
from agentrl.supervision.scheduling import Use
from agentrl.supervision.unit_slots import WITH_PROCESS, GroupState, HostState, Slot, State

_MICRO = 1_000_000


class Seat(msgspec.Struct, frozen=True):
    """Where a rank runs."""

    host: str
    devices: tuple[str, ...] = ()


class _Room(msgspec.Struct, frozen=True):
    """How many ranks a host can take, and why it cannot take another one."""

    ranks: int
    limit: str
    units: int = 0


def place_gang(
    spec: GroupSpec,
    ranks: int,
    hosts: Mapping[str, HostState],
    draining: Collection[str],
    used: Mapping[str, Use],
    data_host: str,
    held: HeldDevices,
    awaited: Mapping[str, str] = scheduling.NONE_AWAITED,
) -> tuple[list[Seat], str]:
    """Return a seat for each rank, in their order, and ""; or no seats and the reason."""
    if not hosts:
        return [], scheduling.NO_HOST
    allowed = scheduling.allowed_hosts(spec, data_host)
    rooms: dict[str, _Room] = {}
    for name, host in hosts.items():
        if allowed and name not in allowed:
            rooms[name] = _Room(0, scheduling.why_not_allowed(spec))
        else:
            rooms[name] = _room(spec, ranks, host, name in draining, used.get(name, scheduling.NOTHING), held)

    def cost(name: str) -> tuple[int, int, str]:
        chosen = held.choose_whole(ranks * int(spec.resources.gpus), hosts[name])
        return islands_used(chosen, devices_of(hosts[name].facts)) if chosen else 0, rooms[name].units, name

    alone = [name for name, room in rooms.items() if room.ranks >= ranks]
    apart = {name: room for name, room in rooms.items() if room.ranks and spec.private.get(name)}
    if alone:
        parts = {min(alone, key=cost): ranks}
    elif sum(room.ranks for room in apart.values()) >= ranks:
        parts = _parts(ranks, apart)
    else:
        refusals = _refusals(rooms, apart)
        scheduling.add_absent(refusals, allowed, hosts, awaited)
        placed = max(sum(room.ranks for room in apart.values()), *(room.ranks for room in rooms.values()))
        return [], f"no host can take rank {placed} of its {ranks} ({scheduling.sentence(refusals)})"
    # Rank 0 is on the host with the data, if a part of the gang is there.
    order = sorted(parts, key=lambda name: (name != data_host, name))
    return [seat for name in order for seat in _seats(spec, parts[name], hosts[name], held)], ""


def _room(spec: GroupSpec, ranks: int, host: HostState, draining: bool, use: Use, held: HeldDevices) -> _Room:
    if refusal := scheduling.refusal_of(spec, host, draining, use, held):
        return _Room(0, refusal)
    need, facts = spec.resources, host.facts
    limits = [(ranks, "")]
    if spec.ranks_per_host:
        limits.append((spec.ranks_per_host, f"takes {spec.ranks_per_host} at most"))
    if each := int(need.gpus):
        whole = held.whole(host)
        limits.append((whole // each, f"needs {need.gpus:g} GPU for each, {whole} free"))
    if need.cpus:
        free = round((facts.cpus - use.cpus) * _MICRO)
        limits.append((free // round(need.cpus * _MICRO), f"needs {need.cpus:g} CPU for each, {free / _MICRO:g} free"))
    if facts.memory_bytes and need.memory_max_bytes:
        left, size = facts.memory_bytes - use.memory, need.memory_max_bytes
        limits.append((left // size, f"needs {size >> 20} MiB for each, {left >> 20} MiB free"))
    return _Room(*min(limits, key=lambda limit: limit[0]), units=use.units)


def _parts(ranks: int, rooms: Mapping[str, _Room]) -> dict[str, int]:
    """How many ranks each host gets. There is room for all."""
    largest = sorted(rooms, key=lambda name: (-rooms[name].ranks, rooms[name].units, name))
    count, room = 0, 0
    while room < ranks:
        room += rooms[largest[count]].ranks
        count += 1
    used = largest[:count]
    each, left = divmod(ranks, count)
    if not left and rooms[used[-1]].ranks >= each:
        return dict.fromkeys(used, each)
    parts, left = {}, ranks
    for name in used:
        parts[name] = min(left, rooms[name].ranks)
        left -= parts[name]
    return parts


def _seats(spec: GroupSpec, ranks: int, host: HostState, held: HeldDevices) -> list[Seat]:
    each = int(spec.resources.gpus)
    devices = held.choose_whole(ranks * each, host)
    return [Seat(host.host, devices[number * each : (number + 1) * each]) for number in range(ranks)]


def _refusals(rooms: Mapping[str, _Room], apart: Mapping[str, _Room]) -> dict[str, list[str]]:
    refusals: dict[str, list[str]] = {}
    for name, room in rooms.items():
        why = f"has room for {room.ranks}: {room.limit}" if room.ranks else room.limit
        if room.ranks and name not in apart:
            why += "; and has no private address, which ranks on several hosts need"
        refusals.setdefault(why, []).append(name)
    return refusals


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
