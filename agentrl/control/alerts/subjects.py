"""The subjects that alert rules judge: units, parts of units, hosts, the run. Pure.

Invariant: a subject has one name wherever an alert is shown, so that one alert can explain another. The part of a unit
is `UNIT/PART`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from agentrl.control.alerts.rule_types import RunSnapshot
from agentrl.formatting.amounts import counted
from agentrl.protocol.control_commands import WaitChain
from agentrl.protocol.messages import UnitPart
from agentrl.protocol.rows import HostRow, RunRow, UnitRow, UnitState
from agentrl.telemetry.control_plane_metrics import Metric
from agentrl.telemetry.data_plane_metrics import named_in


def units(snapshot: RunSnapshot) -> Mapping[str, UnitRow]:
    return snapshot.units


def units_at_work(role: str) -> Callable[[RunSnapshot], Mapping[str, UnitRow]]:
    return lambda snapshot: {
        name: unit
        for name, unit in snapshot.units.items()
        if unit.role == role and unit.state is UnitState.READY and not unit.paused
    }


def hosts(snapshot: RunSnapshot) -> Mapping[str, HostRow]:
    return snapshot.hosts


def run(snapshot: RunSnapshot) -> Mapping[str, RunRow]:
    return {snapshot.run.name: snapshot.run} if snapshot.run is not None else {}


# ---- parts of units ----


def parts(role: str) -> Callable[[RunSnapshot], Mapping[str, UnitPart]]:
    """What units of a role keep alive by themselves, such as the tool servers of a toolbox."""
    at_work = units_at_work(role)
    return lambda snapshot: {
        f"{name}/{part.name}": part for name, unit in at_work(snapshot).items() for part in unit.parts
    }


class Reported(NamedTuple):
    """A number that a unit reports for a part of it, such as a tool or a program."""

    unit: str
    part: str
    value: float


def reported(role: str, metric: Metric) -> Callable[[RunSnapshot], Mapping[str, Reported]]:
    """A metric that units of a role report for each of their parts."""
    at_work = units_at_work(role)
    return lambda snapshot: {
        f"{name}/{part}": Reported(name, part, value)
        for name in at_work(snapshot)
        for part, value in named_in(snapshot.metrics.values(name), metric)
    }


# ---- sentences about units ----


def reason(unit: UnitRow) -> str:
    return unit.reason or "no reason is known"


def end_evidence(unit: UnitRow) -> Iterator[str]:
    if unit.last_exit is not None:
        yield f"last end: {unit.last_exit}"
    deaths = counted(unit.restarts, "unplanned deaths")
    yield f"{deaths} since it was started or changed by a person, {unit.deaths_in_window} in the restart window"


def ends_of(snapshot: RunSnapshot, chains: Iterable[WaitChain]) -> tuple[str, ...]:
    """The subjects of alerts about the units, tools and tool servers in wait chains."""
    names = {name for chain in chains for name in (chain.culprit, *(link.who for link in chain.links))}
    tools = {name.removeprefix("tool server ").removeprefix("tool ") for name in names if name.startswith("tool ")}
    parts = tools | {tool.partition(".")[0] for tool in tools}
    subjects = {f"{toolbox}/{part}" for toolbox in units_at_work("toolbox")(snapshot) for part in parts}
    return tuple(sorted(subjects | (names & snapshot.units.keys())))
