"""Chooses the host for a unit, and the units that a scale-down stops.

Invariants:
- A unit is placed only on a connected, allowed host that is neither draining nor leaving and has the resources.
- The data plane is placed on the host that has the data (the embedded database, checkpoints and weights), except groups
  that the run file places elsewhere.
- A unit that cannot be placed gets one sentence with the reason.
- A scale-down stops the units whose loss costs least.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

import msgspec

from agentrl.protocol.messages import RANKS_SINCE
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.devices import HeldDevices
from agentrl.supervision.unit_slots import WITH_PROCESS, HostState, Slot

MOST_NAMED = 3
"""The number of hosts with the same reason that a sentence names."""
MOST_REFUSALS = 5
_MICRO = 1_000_000
NONE_AWAITED: Mapping[str, str] = {}


class Use(msgspec.Struct):
    """The resources that the living units of one host use, except devices."""

    units: int = 0
    micro_cpus: int = 0
    """A whole number, so that adding and subtracting leaves no rounding error."""
    memory: int = 0
    groups: dict[str, int] = {}
    """The number of units of each group."""

    @property
    def cpus(self) -> float:
        return self.micro_cpus / _MICRO

    def change(self, spec: GroupSpec, sign: int) -> None:
        self.units += sign
        self.micro_cpus += sign * round(spec.resources.cpus * _MICRO)
        self.memory += sign * spec.resources.memory_max_bytes
        self.groups[spec.name] = self.groups.get(spec.name, 0) + sign
        if not self.groups[spec.name]:
            del self.groups[spec.name]


class HostUse:
    """The resources in use on every host, updated at each start and end."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.by_host: dict[str, Use] = {}
        for slot in slots:
            if slot.state in WITH_PROCESS:
                self.change(slot, 1)

    def change(self, slot: Slot, sign: int) -> None:
        """Count a process of the slot that starts (1) or has ended (-1) on its host."""
        if slot.spec is None:
            return
        use = self.by_host.setdefault(slot.host, Use())
        use.change(slot.spec, sign)
        if not use.units:
            del self.by_host[slot.host]

    def units_on(self, host: str) -> int:
        return self.by_host.get(host, NOTHING).units


def place(
    spec: GroupSpec,
    hosts: Mapping[str, HostState],
    draining: Collection[str],
    used: Mapping[str, Use],
    data_host: str,
    held: HeldDevices,
    awaited: Mapping[str, str] = NONE_AWAITED,
) -> tuple[str, str]:
    """Return (host, "") or ("", reason). The host whose devices are linked is preferred, then what the group prefers,
    then the first name. `awaited` has the reasons why hosts are absent.
    """
    allowed = allowed_hosts(spec, data_host)
    among = frozenset(allowed)
    if not hosts:
        return "", NO_HOST
    refusals: dict[str, list[str]] = {}
    fits: list[tuple[int, int, int, int, str]] = []
    for name, host in hosts.items():
        use = used.get(name, NOTHING)
        if among and name not in among:
            refusals.setdefault(why_not_allowed(spec), []).append(name)
        elif refusal := refusal_of(spec, host, name in draining, use, held):
            refusals.setdefault(refusal, []).append(name)
        else:
            islands = held.islands_used(spec.resources.gpus, host)
            fits.append((islands, *_preference(spec, use), name))
    if fits:
        return min(fits)[-1], ""
    add_absent(refusals, allowed, hosts, awaited)
    return "", f"no host can take it ({sentence(refusals)})"


def _preference(spec: GroupSpec, use: Use) -> tuple[int, int, int]:
    """A sort key, lower is better: near its group, then spread or packed, then with few other units."""
    own = use.groups.get(spec.name, 0)
    if spec.spread == "pack":
        return -use.groups.get(spec.near, 0), -own, -use.units
    return -use.groups.get(spec.near, 0), own if spec.spread else 0, use.units


NOTHING = Use()
NO_HOST = "no host agent is connected"


def allowed_hosts(spec: GroupSpec, data_host: str) -> tuple[str, ...]:
    """The hosts that may take a unit; empty means any."""
    return spec.hosts or ((data_host,) if spec.role is not Role.SIDECAR and data_host else ())


def cannot_be_placed(spec: GroupSpec, data_host: str, in_vain: Collection[str]) -> bool:
    """Return whether every host that may take a unit is one whose start fails."""
    allowed = allowed_hosts(spec, data_host)
    return bool(allowed) and all(host in in_vain for host in allowed)


def why_not_allowed(spec: GroupSpec) -> str:
    return "not among its hosts" if spec.hosts else "has no data of the run"


def add_absent(
    refusals: dict[str, list[str]], allowed: Iterable[str], hosts: Container[str], awaited: Mapping[str, str]
) -> None:
    """Add the hosts that may take a unit but are absent."""
    for name in allowed:
        if name not in hosts:
            refusals.setdefault(awaited.get(name, "has not registered"), []).append(name)


def sentence(refusals: Mapping[str, list[str]]) -> str:
    """Return the reason as a sentence that is short for any number of hosts, because every waiting unit shows it."""
    parts: list[str] = []
    for refusal, names in list(refusals.items())[:MOST_REFUSALS]:
        named = ", ".join(sorted(names)[:MOST_NAMED])
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        parts.append(f"{named}{more}: {refusal}")
    if len(refusals) > MOST_REFUSALS:
        left = sum(len(names) for names in list(refusals.values())[MOST_REFUSALS:])
        parts.append(f"{left} more hosts for similar reasons")
    return "; ".join(parts)


def refusal_of(spec: GroupSpec, host: HostState, draining: bool, use: Use, held: HeldDevices) -> str:
    """Return why one unit cannot start on this host; empty if it can."""
    need, facts = spec.resources, host.facts
    if not host.connected:
        return "silent"
    if host.leaving:
        return f"leaving ({host.leaving})"
    if draining:
        return "draining"
    if spec.gang and host.minor < RANKS_SINCE:
        return (
            f"its host agent (agentrl {facts.agent_version or 'unknown'}) starts no gangs; restart it with this version"
        )
    if lacking := held.refusal(need.gpus, host):
        return lacking
    if need.cpus > facts.cpus - use.cpus:
        return f"needs {need.cpus:g} CPU, {max(0.0, facts.cpus - use.cpus):g} of {facts.cpus} free"
    if facts.memory_bytes and need.memory_max_bytes > facts.memory_bytes - use.memory:
        free = max(0, facts.memory_bytes - use.memory)
        return f"needs {need.memory_max_bytes >> 20} MiB, {free >> 20} MiB free"
    return ""


def victims(slots: Iterable[Slot], how_many: int, idle: Collection[str], *, gang: bool = False) -> list[Slot]:
    """Return the units to stop: draining ones first, then those not ready, then the newest idle one, then the
    newest. For a gang, which starts again anyway, those with the highest numbers.
    """

    def cost(slot: Slot) -> tuple[int, float, int]:
        if gang:
            return 0, 0.0, -slot.number
        if slot.held or slot.state in (UnitState.DRAINING, UnitState.STOPPING, UnitState.STOPPED):
            rank = 0
        elif slot.state is not UnitState.READY:
            rank = 1
        else:
            rank = 2 if slot.unit in idle else 3
        return rank, -slot.ready_since, -slot.number

    return sorted(slots, key=cost)[: max(0, how_many)]
