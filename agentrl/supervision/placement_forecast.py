"""Predicts on which hosts the units of a plan would run, before any of them is started.

Invariants:
- The forecast uses the rule by which units are placed, in the same order, with the resources that the plan frees and
  takes.
- A unit that could not run now gets the reason.
- A run on one host, on which everything fits, gets no sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.protocol.effects import few_names
from agentrl.protocol.specs import GroupSpec, split_unit
from agentrl.supervision.devices import HeldDevices
from agentrl.supervision.gang_placement import Seat, place_gang
from agentrl.supervision.scheduling import HostUse, Use, place
from agentrl.supervision.unit_slots import State

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
