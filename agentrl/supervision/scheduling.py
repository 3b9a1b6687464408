"""Two choices that the supervisor makes: which host takes a unit, and which unit goes when there are too many.

Invariants: a unit is placed only on a connected host that is allowed, not draining and has what it needs; a unit that
cannot be placed gets one sentence that says why; the victims of a scale-down are those whose loss costs least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import GroupSpec
from agentrl.supervision.transitions import WITH_PROCESS
from agentrl.supervision.unit_slots import HostState, Slot


class Use(msgspec.Struct):
    """What the living units of one host take up."""

    units: int = 0
    gpus: int = 0
    cpus: float = 0.0
    memory: int = 0

    def add(self, spec: GroupSpec) -> None:
        self.units += 1
        self.gpus += spec.resources.gpus
        self.cpus += spec.resources.cpus
        self.memory += spec.resources.memory_max_bytes


def use_of(slots: Iterable[Slot]) -> dict[str, Use]:
    """By host. To be made once for many placements: it looks at every slot."""
    used: dict[str, Use] = {}
    for slot in slots:
        if slot.state in WITH_PROCESS and slot.spec is not None:
            used.setdefault(slot.host, Use()).add(slot.spec)
    return used


def place(
    spec: GroupSpec, hosts: Mapping[str, HostState], draining: Collection[str], used: Mapping[str, Use]
) -> tuple[str, str]:
    """(host, "") or ("", why not). Prefers the host with the fewest units, then the first name."""
    if not hosts:
        return "", "no host agent is connected"
    refusals: list[str] = []
    fits: list[tuple[int, str]] = []
    for name, host in sorted(hosts.items()):
        use = used.get(name, _NOTHING)
        refusal = _refusal(spec, host, name in draining, use)
        if refusal:
            refusals.append(f"{name}: {refusal}")
        else:
            fits.append((use.units, name))
    if fits:
        return min(fits)[1], ""
    absent = [name for name in spec.hosts if name not in hosts]
    refusals += [f"{name}: has not registered" for name in absent]
    return "", "no host can take it (" + "; ".join(refusals) + ")"


_NOTHING = Use()


def _refusal(spec: GroupSpec, host: HostState, draining: bool, use: Use) -> str:
    need, facts = spec.resources, host.facts
    if spec.hosts and host.host not in spec.hosts:
        return "not among its hosts"
    if not host.connected:
        return "silent"
    if draining:
        return "draining"
    if need.gpus > facts.gpus - use.gpus:
        return f"needs {need.gpus} GPU, {max(0, facts.gpus - use.gpus)} of {facts.gpus} free"
    if need.cpus > facts.cpus - use.cpus:
        return f"needs {need.cpus:g} CPU, {max(0.0, facts.cpus - use.cpus):g} of {facts.cpus} free"
    if facts.memory_bytes and need.memory_max_bytes > facts.memory_bytes - use.memory:
        free = max(0, facts.memory_bytes - use.memory)
        return f"needs {need.memory_max_bytes >> 20} MiB, {free >> 20} MiB free"
    return ""


def victims(slots: Iterable[Slot], how_many: int, idle: Collection[str]) -> list[Slot]:
    """Draining first, then those not ready, then the newest idle one, then the newest."""

    def cost(slot: Slot) -> tuple[int, float, int]:
        if slot.held or slot.state in (UnitState.DRAINING, UnitState.STOPPING, UnitState.STOPPED):
            rank = 0
        elif slot.state is not UnitState.READY:
            rank = 1
        else:
            rank = 2 if slot.unit in idle else 3
        return rank, -slot.ready_since, -slot.number

    return sorted(slots, key=cost)[: max(0, how_many)]
