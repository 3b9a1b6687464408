"""Computes what `up` would change: compares desired state with a run file, and predicts where units would run.

Invariants:
- The plan after `up` with the same file is empty.
- A count that an operator set with `scale` stays, unless the count in the run file has changed since.
- The forecast uses the rule by which units are placed, in the same order, with the resources that the plan frees and
  takes.
- A unit that could not run now gets the reason.
- A run on one host, on which everything fits, gets no sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from agentrl.protocol.effects import few_names
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import READ_FROM, GroupSpec, split_unit, unit_name
from agentrl.supervision.devices import HeldDevices
from agentrl.supervision.gangs import Seat, place_gang
from agentrl.supervision.scheduling import HostUse, Use, place, victims
from agentrl.supervision.unit_slots import MAY_STAY, GroupState, Slot, State

MOST_SENTENCES = 8


def forecast(
    state: State, specs: Iterable[GroupSpec], starting: Iterable[str], ending: Iterable[str], *, without: str = ""
) -> tuple[str, ...]:
    """Sentences about the units in `starting`, assuming that those in `ending` have ended, and that the host `without`
    takes no units.
    """
    draining = {*state.run.draining_hosts, without}
    by_group = {spec.name: spec for spec in specs}
    gone = {*starting, *ending}
    staying = [slot for slot in state.slots.values() if slot.unit not in gone]
    used, devices = HostUse(staying).by_host, HeldDevices(staying)
    placed: dict[str, list[str]] = {}
    waiting: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    seats: dict[str, Seat] = {}
    order = sorted(starting, key=lambda unit: (_rank(by_group, split_unit(unit)[0]), *split_unit(unit)))
    for unit in order:
        spec = by_group[split_unit(unit)[0]]
        if spec.gang and unit not in seats and spec.name not in refused:
            ranks = [other for other in order if split_unit(other)[0] == spec.name]
            found, refused[spec.name] = place_gang(
                spec, len(ranks), state.hosts, draining, used, state.data_host, devices, state.awaited
            )
            seats |= dict(zip(ranks, found, strict=False))
        # If one unit does not fit, no later unit of its group does.
        host, reason = (seats[unit].host if unit in seats else ""), refused.get(spec.name, "")
        if not host and not reason:
            host, reason = place(spec, state.hosts, draining, used, state.data_host, devices, state.awaited)
        if host:
            used.setdefault(host, Use()).change(spec, 1)
            need = spec.resources.gpus
            given = seats[unit].devices if unit in seats else devices.choose(need, state.hosts[host])
            devices.hold(host, unit, given, min(1.0, need or 1.0))
            placed.setdefault(host, []).append(unit)
        else:
            refused[spec.name] = reason
            waiting.setdefault(reason, []).append(unit)
    sentences = [f"waits at first: {few_names(units)}: {reason}" for reason, units in waiting.items()]
    if len(state.hosts) > 1:
        sentences += [f"on {host}: {few_names(placed[host])}" for host in sorted(placed)]
    more = len(sentences) - MOST_SENTENCES
    return (*sentences[:MOST_SENTENCES], *([f"and {more} more hosts or reasons"] if more > 0 else []))


def _rank(specs: Mapping[str, GroupSpec], group: str) -> int:
    """A sort key: groups start after the groups that they need, and units that start together are sorted by name."""
    needed = [name for name in specs[group].after if name in specs]
    return 1 + max((_rank(specs, name) for name in needed), default=0)


class Plan(msgspec.Struct, frozen=True):
    """Names of units, each in one list."""

    kept: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    """New units, and units that are started again after a stop or a final failure."""
    stopped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Units that are replaced because their spec changed."""
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.started or self.stopped or self.changed)


def plan(state: State, specs: tuple[GroupSpec, ...], *, reading: bool = False) -> Plan:
    """Compare without changing anything. `reading` compares only the groups that are needed to read the run."""
    kept: list[str] = []
    started: list[str] = []
    stopped: list[str] = []
    changed: list[str] = []
    notes: list[str] = []
    for spec in specs:
        before = len(kept), len(started) + len(stopped) + len(changed)
        if reading and spec.role not in READ_FROM:
            continue
        group = state.groups.get(spec.name)
        members = [s for s in state.of_group(spec.name) if s.wanted]
        count = count_after(group, spec)
        if group is not None and count != spec.count:
            back = f"agentrl scale {spec.name} {spec.count}"
            notes.append(f"{spec.name} stays at {count}, as it was scaled; back to the run file's number: {back}")
        leaving = {s.unit for s in victims(members, len(members) - count, (), gang=spec.gang)}
        stopped += sorted(leaving)
        same = group is not None and group.spec.fingerprint() == spec.fingerprint()
        for slot in members:
            if slot.unit in leaving:
                continue
            down = not state.run.up or state.left_alone(spec.name)
            if slot.state not in MAY_STAY and (down or slot.held or slot.state is UnitState.FATAL):
                started.append(slot.unit)
            elif not same:
                changed.append(slot.unit)
            else:
                kept.append(slot.unit)
        for unit in new_units({s.unit for s in members}, spec.name, count - len(members)):
            # A unit that was scaled down a moment ago may still live. Then its stop is cancelled.
            retired = state.slots.get(unit)
            if retired is None or retired.state not in MAY_STAY:
                started.append(unit)
            elif same:
                kept.append(unit)
            else:
                changed.append(unit)
        if spec.gang and before[1] < len(started) + len(stopped) + len(changed):
            # The others start again with them.
            kept, changed = kept[: before[0]], [*changed, *kept[before[0] :]]
    wanted = {spec.name for spec in specs}
    stopped += [s.unit for s in state.slots.values() if s.wanted and s.group not in wanted]
    if state.hosts:
        notes += forecast(state, specs, [*started, *changed], [*stopped, *changed])
    return Plan(tuple(kept), tuple(started), tuple(stopped), tuple(changed), tuple(notes))


def count_after(group: GroupState | None, spec: GroupSpec) -> int:
    """Return the count after `up` with this spec."""
    if group is None or group.removed or group.file_count != spec.count:
        return spec.count
    return group.spec.count


def new_units(taken: Collection[str], group: str, how_many: int) -> list[str]:
    """Return the lowest free names."""
    fresh: list[str] = []
    number = 0
    while len(fresh) < how_many:
        if (name := unit_name(group, number)) not in taken:
            fresh.append(name)
        number += 1
    return fresh


def missing_dependencies(spec: GroupSpec, state: State) -> list[str]:
    """Return the groups in `after` that are not ready yet."""
    return [name for name in spec.after if not _is_ready(state.of_group(name))]


def _is_ready(members: Iterable[Slot]) -> bool:
    wanted = [slot for slot in members if slot.wanted]
    return bool(wanted) and all(slot.state is UnitState.READY or slot.done for slot in wanted)
