"""Places all ranks of a gang, or none.

Invariants:
- A rank gets whole devices of its own. The ranks of one host have consecutive numbers.
- A gang is on as few hosts as possible, with equal parts on each of them if that is possible.
- A gang is on several hosts only if each of them has a private address.
- A gang that cannot be placed gets one sentence, which says which rank has no place and what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from agentrl.protocol.specs import GroupSpec
from agentrl.supervision import scheduling
from agentrl.supervision.devices import HeldDevices, devices_of, islands_used
from agentrl.supervision.scheduling import Use
from agentrl.supervision.unit_slots import HostState

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
