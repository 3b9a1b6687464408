"""Builds the graph of waits: those that units report of themselves, and those that they report of others.

Invariants:
- Any set of facts gives a graph.
- A wait for a group is a wait for its least healthy unit.
- Resources that are not units and that no unit describes become one node if the same units wait for them.
- A wait reported by another unit counts only if a unit's own wait leads to it. If the reporter is broken, the wait
  leads to the reporter, because only the reporter could describe it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agentrl.protocol.control_commands import WaitLink
from agentrl.protocol.messages import Wait
from agentrl.protocol.rows import UnitState


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """The facts about one unit. All times are durations until now."""

    name: str
    group: str
    state: UnitState
    reason: str = ""
    age_s: float = 0.0
    """How long it has been in this state."""
    waits: tuple[Wait, ...] = ()
    report_age_s: float = 0.0
    """The age of the report that contains the waits."""
    after: tuple[str, ...] = ()
    """Groups that must be ready before it is started."""
    gang: bool = False
    """It starts only together with the other units of its group."""
    silent_s: float = 0.0
    """How long it has been silent, if longer than allowed; else 0."""
    stopped: bool = False
    """The process is stopped (state T)."""
    paused: bool = False
    phase: str = ""
    status: str = ""
    """The status that the unit reports."""
    phase_over_s: float = 0.0
    """How long it is past the deadline of its phase; else 0."""
    progress_age_s: float | None = None
    next_what: str = ""


def broken(unit: UnitFacts | None) -> str:
    """Return why this unit blocks others permanently, in words; empty if it can continue once its own waits end."""
    if unit is None:
        return ""
    because = f": {unit.reason}" if unit.reason else ""
    if unit.stopped:
        return "its process is stopped (SIGSTOP or a debugger)"
    match unit.state:
        case UnitState.FATAL:
            return f"is fatal and will not be started again{because}"
        case UnitState.LOST:
            return f"is lost{because}"
        case UnitState.BACKOFF:
            return f"died and waits to be restarted{f' ({unit.next_what})' if unit.next_what else ''}{because}"
        case UnitState.STOPPED:
            return f"is stopped{because}"
        case UnitState.STOPPING:
            return f"is being stopped for {unit.age_s:.0f} s{because}"
    if unit.silent_s > 0:
        return f"hangs: it sent nothing for {unit.silent_s:.0f} s"
    if unit.paused:
        return "is paused"
    return ""


@dataclass(frozen=True, slots=True)
class Edge:
    target: str
    link: WaitLink
    limited: bool
    """The waiting unit gave a limit."""
    by_other: bool = False
    """True if another unit than the waiting one reported it."""


@dataclass(slots=True)
class Graph:
    nodes: set[str] = field(default_factory=set)
    out: dict[str, list[Edge]] = field(default_factory=dict)
    """Waits by the waiting node, the oldest first."""
    into: dict[str, list[str]] = field(default_factory=dict)

    def add(self, edge: Edge) -> None:
        who = edge.link.who
        self.nodes |= {who, edge.target}
        self.out.setdefault(who, []).append(edge)
        self.into.setdefault(edge.target, []).append(who)

    def without(self, leave_out: Callable[[Edge], bool]) -> Graph:
        """The same graph without these edges and the nodes that only they connect."""
        kept = Graph()
        for edges in self.out.values():
            for edge in edges:
                if not leave_out(edge):
                    kept.add(edge)
        return kept

    def names_used_for(self, name: str) -> set[str]:
        """Return the names that waits for this node use."""
        return {edge.link.on for edge in self._edges_into(name)}

    def reported_wait(self, name: str) -> str:
        """Return the description of the oldest wait for this node that another unit reported."""
        reported = [edge.link for edge in self._edges_into(name) if edge.by_other]
        return max(reported, key=lambda link: link.age_s).what if reported else ""

    def longest_wait(self, name: str) -> str:
        """Return the description by the unit that waits longest for this node; empty if it is only the node's name."""
        links = [edge.link for edge in self._edges_into(name) if edge.link.what not in ("", name)]
        oldest = max(links, key=lambda link: (link.age_s, link.who), default=None)
        return f"{oldest.who} waits for {oldest.what}" if oldest else ""

    def waited_s(self, name: str) -> float:
        """The age of the oldest wait for this node."""
        return max((edge.link.age_s for edge in self._edges_into(name)), default=0.0)

    def _edges_into(self, name: str) -> Iterator[Edge]:
        return (edge for who in set(self.into.get(name, ())) for edge in self.out[who] if edge.target == name)


def build(units: Mapping[str, UnitFacts], no_progress_s: float) -> Graph:
    members: dict[str, list[UnitFacts]] = {}
    for unit in units.values():
        members.setdefault(unit.group, []).append(unit)
    worst = {group: min(of, key=_health) for group, of in members.items()}
    own, others = [
        _sorted(_edge(units, worst, wait, no_progress_s, by_other=by_other) for wait in waits)
        for waits, by_other in ((_own_waits(units, members), False), (_waits_of_others(units), True))
    ]
    reported = {edge.link.who for edge in others}
    own = _folded(own, lambda target: target not in units and target not in reported)
    graph = Graph()
    for edge in sorted([*own, *_reached(own, others)], key=lambda edge: edge.link.who):
        graph.add(edge)
    return graph


def _sorted(edges: Iterable[Edge]) -> list[Edge]:
    """The oldest first."""
    return sorted(edges, key=lambda edge: (-edge.link.age_s, edge.target, edge.link.who))


def _own_waits(units: Mapping[str, UnitFacts], members: Mapping[str, list[UnitFacts]]) -> Iterator[Wait]:
    for unit in units.values():
        for wait in unit.waits:
            if not wait.who:
                yield Wait(wait.on, wait.what, wait.age_s + unit.report_age_s, wait.at_most_s, unit.name)
        if unit.state is UnitState.PENDING:
            for group in unit.after:
                if any(other.state is not UnitState.READY for other in members.get(group, [])):
                    yield Wait(group, f"{group} to be ready", unit.age_s, who=unit.name)
            if unit.gang and (other := min(members[unit.group], key=_health)) is not unit:
                yield Wait(other.name, "its gang", unit.age_s, who=unit.name)


def _waits_of_others(units: Mapping[str, UnitFacts]) -> Iterator[Wait]:
    for unit in units.values():
        for wait in unit.waits:
            if not wait.who:
                continue
            age_s = wait.age_s + unit.report_age_s
            if broken(unit):
                yield Wait(unit.name, "to say what is missing", age_s, who=wait.who)
            else:
                yield Wait(wait.on, wait.what, age_s, wait.at_most_s, wait.who)


def _reached(own: list[Edge], others: list[Edge]) -> Iterator[Edge]:
    """Return the waits reported by others to which a unit's own wait leads."""
    by_who: dict[str, list[Edge]] = {}
    for edge in others:
        by_who.setdefault(edge.link.who, []).append(edge)
    todo = [edge.target for edge in own]
    while todo:
        for edge in by_who.pop(todo.pop(), ()):
            yield edge
            todo.append(edge.target)


def _folded(edges: list[Edge], is_loose: Callable[[str], bool]) -> list[Edge]:
    """Merge unknown targets that the same units wait for into the oldest one."""
    waiters: dict[str, set[str]] = {}
    for edge in edges:
        if is_loose(edge.target):
            waiters.setdefault(edge.target, set()).add(edge.link.who)
    first: dict[frozenset[str], str] = {}
    folded: list[Edge] = []
    for edge in edges:
        known_by = waiters.get(edge.target)
        target = first.setdefault(frozenset(known_by), edge.target) if known_by else edge.target
        folded.append(Edge(target, edge.link, edge.limited))
    return folded


def _edge(
    units: Mapping[str, UnitFacts], worst: Mapping[str, UnitFacts], wait: Wait, no_progress_s: float, *, by_other: bool
) -> Edge:
    target = wait.on
    if target not in units and target in worst:
        target = worst[target].name
    limit_s = no_progress_s if wait.at_most_s is None else wait.at_most_s
    link = WaitLink(wait.who, target, wait.what, wait.age_s, wait.age_s > limit_s)
    return Edge(target, link, wait.at_most_s is not None, by_other)


_RANK = {
    state: rank
    for rank, state in enumerate(
        (
            UnitState.FATAL,
            UnitState.LOST,
            UnitState.STOPPED,
            UnitState.BACKOFF,
            UnitState.STOPPING,
            UnitState.SUSPECT,
            UnitState.PENDING,
            UnitState.STARTING,
            UnitState.DRAINING,
            UnitState.READY,
        )
    )
}


def _health(unit: UnitFacts) -> tuple[bool, int, float, str]:
    """A sort key: the least healthy unit of a group comes first."""
    return (not broken(unit), _RANK[unit.state], -max(unit.silent_s, unit.phase_over_s), unit.name)
