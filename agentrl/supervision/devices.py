"""Decides which devices of a host a unit gets.

Invariants:
- An incarnation holds its devices from its start until no process of it is left, whatever its state is.
- The holders of a device hold at most the whole of it together.
- If a process that belongs to none of its holders computes on a device, no further unit gets the device.
- The same facts give the same choice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from agentrl.protocol.messages import Device, DeviceUse, HostFacts
from agentrl.protocol.specs import incarnation_name
from agentrl.supervision.unit_slots import HostState, Slot

WHOLE = 1000
"""Shares are counted in thousandths, so that adding and subtracting leaves no rounding error."""
MOST_NAMED = 2
"""The number of devices whose holders a sentence names."""
_COMMAND_CHARS = 40


class Choices(msgspec.Struct):
    """The choices on one host. They are valid until its devices, the processes on them or the holders change."""

    facts: HostFacts
    occupied: dict[str, str]
    by_need: dict[float, tuple[tuple[str, ...], int]] = {}
    """The devices, and the number of their islands."""
    refusals: dict[float, str] = {}
    """Why a unit cannot get what it needs."""


class HeldDevices:
    """The holders of all devices, updated at each start and end."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._held: dict[str, dict[str, dict[str, int]]] = {}
        """By host and device: the incarnations that hold it, and how much of it."""
        self._choices: dict[str, Choices] = {}
        for slot in slots:
            if not slot.tree_gone:
                self.hold(slot.host, slot.name, slot.devices, share_of(slot))
            for ghost in slot.ghosts:
                name = incarnation_name(slot.unit, ghost.incarnation)
                self.hold(ghost.host, name, ghost.devices, ghost.share)

    def hold(self, host: str, holder: str, devices: Collection[str], share: float) -> None:
        if devices:
            self._choices.pop(host, None)
        for device in devices:
            self._held.setdefault(host, {}).setdefault(device, {})[holder] = round(share * WHOLE)

    def release(self, host: str, holder: str) -> None:
        """No process of this incarnation is left on the host."""
        devices = self._held.get(host, {})
        for device, holders in list(devices.items()):
            if holders.pop(holder, None) is not None:
                self._choices.pop(host, None)
            if not holders:
                del devices[device]

    def holders(self, host: str) -> dict[str, tuple[str, ...]]:
        """The incarnations that hold each device of the host."""
        return {device: tuple(sorted(holders)) for device, holders in self._held.get(host, {}).items()}

    def given_twice(self, host: str) -> list[str]:
        """The devices of which the holders have more than the whole."""
        return [device for device, holders in self._held.get(host, {}).items() if sum(holders.values()) > WHOLE]

    def free(self, host: HostState) -> dict[str, int]:
        """How much of each device can be given, in thousandths."""
        held = self._held.get(host.host, {})
        return {
            device.id: 0 if device.id in host.occupied else max(0, WHOLE - sum(held.get(device.id, {}).values()))
            for device in devices_of(host.facts)
        }

    def choose(self, need: float, host: HostState) -> tuple[str, ...]:
        """The devices for a unit that starts on this host; empty if it needs none, or cannot get what it needs."""
        return self._choose(need, host)[0] if need else ()

    def islands_used(self, need: float, host: HostState) -> int:
        """The number of islands of the devices that it would get."""
        return self._choose(need, host)[1] if need else 0

    def _known(self, host: HostState) -> Choices:
        """Kept between calls: thousands of units may be placed at once, and each asks all hosts, few of which have
        changed."""
        known = self._choices.get(host.host)
        if known is None or known.facts is not host.facts or known.occupied != host.occupied:
            known = self._choices[host.host] = Choices(host.facts, host.occupied)
        return known

    def _choose(self, need: float, host: HostState) -> tuple[tuple[str, ...], int]:
        known = self._known(host)
        choice = known.by_need.get(need)
        if choice is None:
            devices = devices_of(host.facts)
            chosen = choose(need, devices, self.free(host))
            choice = known.by_need[need] = (chosen, islands_used(chosen, devices))
        return choice

    def whole(self, host: HostState) -> int:
        """How many whole devices are free. Slices count as one, because a program sees at most one slice."""
        free = self.free(host)
        return sum(1 for device in devices_of(host.facts) if free[device.id] == WHOLE and device.kind != "mig")

    def choose_whole(self, count: int, host: HostState) -> tuple[str, ...]:
        """Choose this many whole devices, ordered so that those of an island are adjacent."""
        devices = [device for device in devices_of(host.facts) if device.kind != "mig"]
        chosen = choose(count, devices, self.free(host)) if count else ()
        return tuple(device.id for island in islands_of(devices) for device in island if device.id in chosen)

    def refusal(self, need: float, host: HostState) -> str:
        """Why a unit that needs this many cannot get them here; empty if it can."""
        if not need:
            return ""
        known = self._known(host)
        if need not in known.refusals:
            known.refusals[need] = "" if self.choose(need, host) else self._why_not(need, host)
        return known.refusals[need]

    def _why_not(self, need: float, host: HostState) -> str:
        devices, free = devices_of(host.facts), self.free(host)
        fit = sum(1 for device in devices if free[device.id] >= min(WHOLE, round(need * WHOLE)))
        return f"needs {need:g} GPU, {fit} of {len(devices)} free{self._in_the_way(devices, free, host)}"

    def _in_the_way(self, devices: Sequence[Device], free: Mapping[str, int], host: HostState) -> str:
        held = self._held.get(host.host, {})
        names = [
            f"{device.visible}: {host.occupied.get(device.id) or ', '.join(sorted(held.get(device.id, {})))}"
            for device in devices
            if free[device.id] < WHOLE
        ]
        if not names:
            return " (slices are given one at a time)" if any(device.kind == "mig" for device in devices) else ""
        more = f"; and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f" ({'; '.join(names[:MOST_NAMED])}{more})"

    def occupied(self, host: str, measured: Iterable[DeviceUse]) -> dict[str, str]:
        """By device: a process on it that belongs to none of its holders, in words."""
        held = self._held.get(host, {})
        found: dict[str, str] = {}
        for use in measured:
            holders = held.get(use.id, {})
            for process in use.processes:
                # In a container a process may have no name. It is then taken for one of the unit that holds the device.
                if process.incarnation not in holders and (process.command or not holders):
                    whose = f" of {process.incarnation}" if process.incarnation else ""
                    found[use.id] = f"pid {process.pid}{whose} {process.command[:_COMMAND_CHARS]}".rstrip()
                    break
        return found


def share_of(slot: Slot) -> float:
    """How much a unit holds of each of its devices."""
    return min(1.0, float(slot.spec.resources.gpus) or 1.0) if slot.spec is not None else 1.0


def devices_of(facts: HostFacts) -> tuple[Device, ...]:
    """The devices of a host. The agent of an earlier version reports only their number."""
    return facts.devices or tuple(Device(str(n), str(n), "declared") for n in range(facts.gpus))


def islands_of(devices: Iterable[Device]) -> list[list[Device]]:
    """The devices that have fast links to each other."""
    found: dict[str, list[Device]] = {}
    for device in devices:
        found.setdefault(device.island or f"alone {device.id}", []).append(device)
    return list(found.values())


def choose(need: float, devices: Sequence[Device], free: Mapping[str, int]) -> tuple[str, ...]:
    """Choose whole devices of as few islands as possible, or a share of one device. Prefers what breaks up least:
    the smallest island that has enough, the device of which least is left.
    """
    if need < 1:
        share = round(need * WHOLE)
        whole = [device for device in devices if free[device.id] == WHOLE]
        # Among devices that no unit shares yet, those of the smallest island come first.
        enough = [device for device in devices if WHOLE > free[device.id] >= share]
        enough = sorted(enough, key=lambda device: free[device.id]) + [
            d for i in sorted(islands_of(whole), key=len) for d in i
        ]
        return (enough[0].id,) if enough else ()
    count = int(need)
    # A program sees one slice at most.
    whole = [device for device in devices if free[device.id] == WHOLE and (count == 1 or device.kind != "mig")]
    if len(whole) < count:
        return ()
    if count == 1:
        whole = [device for device in whole if device.kind != "mig"] or whole
    islands = sorted(islands_of(whole), key=len)
    for island in islands:
        if len(island) >= count:
            return tuple(device.id for device in island[:count])
    spread = [device.id for island in sorted(islands, key=len, reverse=True) for device in island]
    return tuple(spread[:count])


def islands_used(chosen: Iterable[str], devices: Iterable[Device]) -> int:
    """How many islands these devices are in."""
    wanted = set(chosen)
    return len(islands_of(device for device in devices if device.id in wanted))
