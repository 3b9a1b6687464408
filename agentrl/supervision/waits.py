"""Who waits for whom, and who is the culprit.

Invariants: pure and total: any set of facts gives an answer, circles included; every wait occurs in exactly one chain;
a chain ends at a culprit with a reason in words, and chains with the same culprit are one. Resources that no unit
stands for, and that the same units wait for, count as one: of them nothing else is known.

A culprit is looked for along the waits. Something broken ends the search; a circle of waits comes next; then something
that is late; then a resource that no unit stands for; and last somebody who is simply at work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from agentrl.protocol.commands import WaitChain, WaitLink
from agentrl.protocol.messages import Wait
from agentrl.protocol.rows import UnitState

MOST_SHOWN = 8
"""Names in the path of a sentence; the links have them all."""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What has to be known of one unit. All times are durations until now."""

    name: str
    group: str
    state: UnitState
    reason: str = ""
    age_s: float = 0.0
    """How long it has been in this state."""
    waits: tuple[Wait, ...] = ()
    report_age_s: float = 0.0
    """How long ago it reported the waits; they have grown older since."""
    after: tuple[str, ...] = ()
    """Groups that must be ready before it is started."""
    silent_s: float = 0.0
    """How long nothing was heard of it, if that is too long; else 0."""
    stopped: bool = False
    """The process is stopped (state T)."""
    paused: bool = False
    phase: str = ""
    phase_over_s: float = 0.0
    """How far it is beyond the deadline of its phase; 0 if it is not."""
    progress_age_s: float | None = None
    next_what: str = ""


def explain(units: Mapping[str, UnitFacts], no_progress_s: float = 300.0) -> list[WaitChain]:
    """All waits of the run as chains, the oldest wait first."""
    graph = _graph(units, no_progress_s)
    ends = _Ends()
    _reach(graph, ends, {name: because for name in graph.nodes if (because := broken(units.get(name)))})
    _circles(graph, ends)
    # Somebody late who waits only for people at work, or for nobody known, is late by itself.
    _reach(graph, ends, {name: why for name in graph.nodes - ends.culprit.keys() if (why := _late(units.get(name)))})
    undecided = (name for name in graph.nodes if name not in ends.culprit and not graph.out.get(name))
    loose = {name: _why(name, units, len(graph.stands_for(name)) - 1) for name in undecided}
    for late in (True, False):
        _reach(graph, ends, {name: why for name, (why, is_late) in loose.items() if is_late is late})
    ends.busy = {
        name
        for name, (_, is_late) in loose.items()
        if not is_late and (moved_s := units[name].progress_age_s) is not None and moved_s <= no_progress_s
    }
    chains = _chains(graph, ends)
    return sorted(chains, key=lambda chain: (-max(link.age_s for link in chain.links), chain.culprit))


def broken(unit: UnitFacts | None) -> str:
    """Why nobody can get past this unit, in words; empty if it could go on if only its own waits ended."""
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
        return f"hangs: nothing was heard of it for {unit.silent_s:.0f} s"
    if unit.paused:
        return "is paused"
    return ""


# ---- the graph ----


@dataclass(frozen=True, slots=True)
class _Edge:
    target: str
    link: WaitLink
    limited: bool
    """Whoever waits said how long is too long."""


@dataclass(slots=True)
class _Graph:
    nodes: set[str] = field(default_factory=set)
    out: dict[str, list[_Edge]] = field(default_factory=dict)
    """Waits by who waits, the oldest first."""
    into: dict[str, list[str]] = field(default_factory=dict)

    def add(self, edge: _Edge) -> None:
        who = edge.link.who
        self.nodes |= {who, edge.target}
        self.out.setdefault(who, []).append(edge)
        self.into.setdefault(edge.target, []).append(who)

    def stands_for(self, name: str) -> set[str]:
        """What is waited for where waits lead to this node."""
        return {edge.link.on for who in set(self.into[name]) for edge in self.out[who] if edge.target == name}


@dataclass(slots=True)
class _Ends:
    """For every node that was decided: where its waits lead."""

    culprit: dict[str, str] = field(default_factory=dict)
    onward: dict[str, str] = field(default_factory=dict)
    because: dict[str, str] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Culprits that are at work and get on with it: waiting for them is late only where a limit was given."""


def _graph(units: Mapping[str, UnitFacts], no_progress_s: float) -> _Graph:
    members: dict[str, list[UnitFacts]] = {}
    for unit in units.values():
        members.setdefault(unit.group, []).append(unit)
    worst = {group: min(of, key=_health) for group, of in members.items()}
    edges = [
        _edge(units, worst, unit, wait, no_progress_s) for unit in units.values() for wait in _waits(unit, members)
    ]
    edges.sort(key=lambda edge: (-edge.link.age_s, edge.target, edge.link.who))
    graph = _Graph()
    for edge in sorted(_folded(edges, units), key=lambda edge: edge.link.who):
        graph.add(edge)
    return graph


def _folded(edges: list[_Edge], units: Mapping[str, UnitFacts]) -> list[_Edge]:
    """Resources that no unit stands for and that the same units wait for become one target, the oldest of them."""
    waiters: dict[str, set[str]] = {}
    for edge in edges:
        if edge.target not in units:
            waiters.setdefault(edge.target, set()).add(edge.link.who)
    first: dict[frozenset[str], str] = {}
    folded: list[_Edge] = []
    for edge in edges:
        known_by = waiters.get(edge.target)
        target = first.setdefault(frozenset(known_by), edge.target) if known_by else edge.target
        folded.append(_Edge(target, edge.link, edge.limited))
    return folded


def _waits(unit: UnitFacts, members: Mapping[str, list[UnitFacts]]) -> Iterable[Wait]:
    for wait in unit.waits:
        yield Wait(wait.on, wait.what, wait.age_s + unit.report_age_s, wait.at_most_s)
    if unit.state is UnitState.PENDING:
        for group in unit.after:
            if any(other.state is not UnitState.READY for other in members.get(group, [])):
                yield Wait(group, f"{group} to be ready", unit.age_s)


def _edge(
    units: Mapping[str, UnitFacts], worst: Mapping[str, UnitFacts], unit: UnitFacts, wait: Wait, no_progress_s: float
) -> _Edge:
    target = wait.on
    if target not in units and target in worst:
        target = worst[target].name
    limit_s = no_progress_s if wait.at_most_s is None else wait.at_most_s
    return _Edge(
        target, WaitLink(unit.name, target, wait.what, wait.age_s, wait.age_s > limit_s), wait.at_most_s is not None
    )


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
    """Sorts the least healthy unit of a group to the front."""
    return (not broken(unit), _RANK[unit.state], -max(unit.silent_s, unit.phase_over_s), unit.name)


# ---- where the waits lead ----


def _reach(graph: _Graph, ends: _Ends, culprits: Mapping[str, str]) -> None:
    """Decide every node that can reach one of the culprits, by the shortest way."""
    todo = deque(sorted(culprits))
    for name in todo:
        ends.culprit[name] = name
        ends.because[name] = culprits[name]
    while todo:
        target = todo.popleft()
        for who in graph.into.get(target, ()):
            if who not in ends.culprit:
                ends.culprit[who] = ends.culprit[target]
                ends.onward[who] = target
                todo.append(who)


def _circles(graph: _Graph, ends: _Ends) -> None:
    """Decide every node that leads into a circle of waits."""
    left = {name for name in graph.nodes if name not in ends.culprit}
    open_waits = {name: sum(edge.target in left for edge in graph.out.get(name, ())) for name in left}
    done = deque(name for name in left if not open_waits[name])
    # Whoever waits for nobody goes, then whoever waited only for those; what stays leads into a circle.
    while done:
        name = done.popleft()
        left.discard(name)
        for who in graph.into.get(name, ()):
            if who in left:
                open_waits[who] -= 1
                if not open_waits[who]:
                    done.append(who)
    step = {name: next(edge.target for edge in graph.out[name] if edge.target in left) for name in left}
    for start in sorted(left):
        _walk(start, step, ends)


def _walk(start: str, step: Mapping[str, str], ends: _Ends) -> None:
    """Follow one step per node until something decided, or the circle, is met."""
    path: list[str] = []
    at = start
    seen: set[str] = set()
    while at not in ends.culprit and at not in seen:
        seen.add(at)
        path.append(at)
        at = step[at]
    if at not in ends.culprit:
        circle = path[path.index(at) :]
        first = min(circle)
        turn = circle.index(first)
        named = [*circle[turn:], *circle[:turn], first]
        for name in circle:
            ends.culprit[name] = first
            ends.onward[name] = step[name]
        ends.because[first] = f"a circle of waits: {_path(named)}"
    for name in reversed(path):
        if name not in ends.culprit:
            ends.culprit[name] = ends.culprit[step[name]]
            ends.onward[name] = step[name]


def _late(unit: UnitFacts | None) -> str:
    if unit is None:
        return ""
    if unit.phase_over_s > 0:
        return f"is {unit.phase_over_s:.0f} s beyond the deadline of its phase {unit.phase or 'without a name'}"
    if unit.state is UnitState.SUSPECT:
        return f"is suspect for {unit.age_s:.0f} s{f': {unit.reason}' if unit.reason else ''}"
    return ""


def _why(name: str, units: Mapping[str, UnitFacts], others: int) -> tuple[str, bool]:
    """What is to be said of the end of a chain, and whether it is late rather than at work.

    A resource in words may stand for others.
    """
    unit = units.get(name)
    if unit is None:
        like = f"is, like {others} other{'s' if others > 1 else ''}," if others > 0 else "is"
        return f"{like} no unit of the run, so nobody here can say more", True
    because = f": {unit.reason}" if unit.reason else ""
    if unit.state is UnitState.PENDING:
        return f"is not started yet, for {unit.age_s:.0f} s{because}", True
    if unit.state in (UnitState.STARTING, UnitState.DRAINING):
        return f"is {unit.state} for {unit.age_s:.0f} s{because}", False
    doing = f" (phase {unit.phase})" if unit.phase else ""
    moved = "" if unit.progress_age_s is None else f", last progress {unit.progress_age_s:.0f} s ago"
    return f"is at work{doing}{moved}", False


# ---- chains ----


def _chains(graph: _Graph, ends: _Ends) -> list[WaitChain]:
    links: dict[str, list[WaitLink]] = {}
    for who, edges in graph.out.items():
        for edge in edges:
            # The waits of something broken are its last words; it is itself the end of them.
            broken_itself = ends.culprit[who] == who and who not in ends.onward
            culprit = ends.culprit[who if broken_itself else edge.target]
            in_time = culprit in ends.busy and not edge.limited
            link = replace(edge.link, overdue=False) if in_time else edge.link
            links.setdefault(culprit, []).append(link)
    return [_chain(culprit, found, ends) for culprit, found in links.items()]


def _chain(culprit: str, links: list[WaitLink], ends: _Ends) -> WaitChain:
    because = ends.because[culprit]
    waited_for = {link.on for link in links}
    roots = [link for link in links if link.who not in waited_for] or links
    main, path = max(((link, _follow(link, ends)) for link in roots), key=lambda way: (len(way[1]), way[0].age_s))
    oldest_s = max(link.age_s for link in links if link.who in path)
    behind = len({link.who for link in links} - set(path))
    more = f"; {behind} more wait{'s' if behind == 1 else ''} behind it" if behind else ""
    is_circle = culprit in ends.onward
    if main.who == culprit and not is_circle:
        sentence = f"{culprit} {because}; its last word was that it waits for {main.on}, {main.age_s:.0f} s"
    elif is_circle:
        sentence = f"{_path(path)}, {oldest_s:.0f} s: {because}{more}"
    else:
        sentence = f"{_path(path)}, {oldest_s:.0f} s: {culprit} {because}{more}"
    order = {name: place for place, name in enumerate(path)}
    links.sort(key=lambda link: (order.get(link.who, len(path)), -link.age_s, link.who))
    return WaitChain(tuple(links), culprit, because, sentence)


def _follow(link: WaitLink, ends: _Ends) -> list[str]:
    """The names from who waits to the culprit; a circle is gone round once."""
    path = {link.who: None}
    at = link.on
    if ends.culprit[link.who] == link.who and link.who not in ends.onward:
        return list(path)
    while at not in path:
        path[at] = None
        if at not in ends.onward:
            return list(path)
        at = ends.onward[at]
    return [*path, at]


def _path(names: list[str]) -> str:
    if len(names) > MOST_SHOWN:
        names = [*names[: MOST_SHOWN - 2], "…", *names[-2:]]
    return " ← ".join(names)
