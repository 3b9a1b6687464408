"""Knows what pending units wait for, and where those that can start will run.

Invariants:
- All units of a group wait for the same thing, except those that wait for their own earlier incarnations.
- What a group waits for is computed once between two changes, because thousands of units may wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.protocol.rows import UnitState as S
from agentrl.supervision import gangs
from agentrl.supervision.devices import HeldDevices
from agentrl.supervision.gangs import Seat, place_gang
from agentrl.supervision.scheduling import HostUse, place
from agentrl.supervision.unit_slots import Slot, State
from agentrl.supervision.up_plan import missing_dependencies


class PendingUnits:
    def __init__(self, state: State, use: HostUse, devices: HeldDevices, runs: Callable[[Slot], bool]) -> None:
        self._state = state
        self._use = use
        self._devices = devices
        self._runs = runs
        self._pending: dict[str, set[str]] = {}
        """The pending units by group."""
        self._blocked_alone: set[str] = set()
        """Units that wait for their own earlier incarnations."""
        self._placed: dict[str, tuple[str, str]] = {}
        """Where the next unit of a group starts now, or the obstacle that its units wait for."""
        self._shown: dict[str, str] = {}
        """The obstacle that every pending unit of the group gives as its reason."""
        self.to_recheck = False
        for slot in state.slots.values():
            if slot.state is S.PENDING:
                self.add(slot)

    def add(self, slot: Slot) -> None:
        self._pending.setdefault(slot.group, set()).add(slot.unit)

    def remove(self, slot: Slot) -> None:
        self._pending[slot.group].discard(slot.unit)
        self._blocked_alone.discard(slot.unit)

    def recheck(self) -> None:
        """Note a change for which units may have waited."""
        self._placed.clear()
        self.to_recheck = True

    def that_may_move(self, now: float) -> set[str]:
        """The pending units that can start, or whose shown reason is out of date. None if nothing has changed."""
        if not self.to_recheck:
            return set()
        self.to_recheck = False
        found = set(self._blocked_alone)
        for group, units in self._pending.items():
            if not units:
                continue
            _, obstacle = self._placing(group, now)
            if not obstacle or obstacle != self._shown.get(group):
                self._shown[group] = obstacle
                found |= units
        return found

    def where(self, slot: Slot, now: float) -> tuple[str, str]:
        """Return the host to start on, or the reason why the unit cannot start now. All ranks of a gang start if one of
        them can."""
        if obstacle := self._own_obstacle(slot):
            if slot.state is S.PENDING:
                self._blocked_alone.add(slot.unit)
            return "", obstacle
        self._blocked_alone.discard(slot.unit)
        host, obstacle = self._placing(slot.group, now)
        if obstacle and obstacle != self._shown.get(slot.group):
            # The other units of the group show this reason too.
            self.to_recheck = True
        return host, obstacle

    def seats(self, group: str) -> tuple[list[Seat], str]:
        """Where the ranks of a gang start; or no seats, and the reason."""
        state = self._state
        spec, ranks = state.groups[group].spec, sum(map(self._runs, state.of_group(group)))
        draining, use = state.run.draining_hosts, self._use.by_host
        return place_gang(spec, ranks, state.hosts, draining, use, state.data_host, self._devices, state.awaited)

    def choose_devices(self, group: str, host: str) -> tuple[str, ...]:
        return self._devices.choose(self._state.groups[group].spec.resources.gpus, self._state.hosts[host])

    def _own_obstacle(self, slot: Slot) -> str:
        if self._state.groups[slot.group].spec.gang:
            return ""  # Its gang waits as a whole.
        return gangs.left_of(self._state, slot)

    def _placing(self, group: str, now: float) -> tuple[str, str]:
        """Return where the next unit of the group starts, or the obstacle that all of them wait for."""
        placing = self._placed.get(group)
        if placing is None:
            placing = self._placed[group] = self._place(group, now)
        return placing

    def _place(self, group: str, now: float) -> tuple[str, str]:
        state = self._state
        spec, use = state.groups[group].spec, self._use.by_host
        if lacking := missing_dependencies(spec, state):
            return "", f"waits for {', '.join(lacking)} to be ready"
        if spec.gang and (in_the_way := gangs.obstacle(state, state.of_group(group), self._runs, now)):
            return "", in_the_way
        if spec.gang:
            seats, reason = self.seats(group)
            return seats[0].host if seats else "", reason
        return place(spec, state.hosts, state.run.draining_hosts, use, state.data_host, self._devices, state.awaited)
