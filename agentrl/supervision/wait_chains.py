"""Finds wait chains: which unit waits for which, up to the cause.

Invariants:
- Any set of facts gives an answer, also with cycles.
- Every wait is in exactly one chain. Chains with the same cause are one.
- A chain ends at a cause with a reason in words.

The search follows the waits. Something broken is preferred as the cause; then a cycle of waits; then a unit that is
late; then a resource that is not a unit; last a unit at work. A resource with a report of its own (a task, a record, a
tool) is preferred to the unit that works on it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from agentrl.protocol.control_commands import WaitChain, WaitLink
from agentrl.protocol.rows import UnitState
from agentrl.supervision.wait_graph import Edge, Graph, UnitFacts, broken, build

MOST_SHOWN = 8
"""The number of names in the path of a sentence; the links contain all."""


def explain(units: Mapping[str, UnitFacts], no_progress_s: float = 300.0) -> list[WaitChain]:
    """Return all waits of the run as chains. Chains that need attention come first: they end at something broken, a
    cycle or a late unit, or contain a wait that is past its limit. Chains that end at work or at an unknown resource
    follow. In both parts the oldest wait comes first.
    """
    graph = build(units, no_progress_s)
    ends = _Ends()
    _reach(graph, ends, {name: because for name in graph.nodes if (because := broken(units.get(name)))})
    _circles(graph, ends)
    # A late unit that waits only for busy units, or for unknown resources, is itself the cause.
    _reach(graph, ends, {name: why for name in graph.nodes - ends.culprit.keys() if (why := _late(units.get(name)))})
    amiss = set(ends.culprit.values())
    # If a task, record or call waits for a unit that nothing blocks, it says more than the unit.
    held_up = ends.culprit.keys() | _behind(graph, {name for name in graph.nodes if not _is_ready(units.get(name))})
    graph = graph.without(lambda edge: edge.by_other and edge.link.who not in units and edge.target not in held_up)
    undecided = (name for name in graph.nodes if name not in ends.culprit and not graph.out.get(name))
    loose = {name: _why(name, units, graph) for name in undecided}
    for late in (True, False):
        _reach(graph, ends, {name: why for name, (why, is_late) in loose.items() if is_late is late})
    ends.busy = {name for name, (_, is_late) in loose.items() if not is_late and _gets_on(units[name], no_progress_s)}
    amiss |= {culprit for culprit, edge in _to_culprits(graph, ends) if edge.limited and edge.link.overdue}
    chains = _chains(graph, ends, amiss)
    return sorted(chains, key=lambda chain: (chain.culprit not in amiss, -_oldest_s(chain.links), chain.culprit))


def _oldest_s(links: Iterable[WaitLink]) -> float:
    return max(link.age_s for link in links)


@dataclass(slots=True)
class _Ends:
    """Holds for every decided node where its waits lead."""

    culprit: dict[str, str] = field(default_factory=dict)
    onward: dict[str, str] = field(default_factory=dict)
    because: dict[str, str] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Causes that make progress: a wait for them is overdue only if it has a limit."""


# ---- the search for the cause ----


def _reach(graph: Graph, ends: _Ends, culprits: Mapping[str, str]) -> None:
    """Decide every node that reaches one of these causes, by the shortest path."""
    todo = deque(sorted(culprits, key=lambda name: (-graph.waited_s(name), name)))
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


def _circles(graph: Graph, ends: _Ends) -> None:
    """Decide every node that leads into a cycle of waits."""
    left = {name for name in graph.nodes if name not in ends.culprit}
    open_waits = {name: sum(edge.target in left for edge in graph.out.get(name, ())) for name in left}
    done = deque(name for name in left if not open_waits[name])
    # Remove nodes without waits, then nodes that waited only for those; the rest leads into a cycle.
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
    """Follow one step per node to a decided node or to the cycle."""
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


def _gets_on(unit: UnitFacts, no_progress_s: float) -> bool:
    """Return whether the node makes progress. A unit that starts or drains has a deadline of its own."""
    if unit.state in (UnitState.STARTING, UnitState.DRAINING):
        return True
    return unit.progress_age_s is not None and unit.progress_age_s <= no_progress_s


def _is_ready(unit: UnitFacts | None) -> bool:
    return unit is not None and unit.state is UnitState.READY


def _behind(graph: Graph, names: set[str]) -> set[str]:
    """Return these nodes, and all nodes whose waits lead to one of them."""
    found, todo = set(names), list(names)
    while todo:
        new = set(graph.into.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


def _why(name: str, units: Mapping[str, UnitFacts], graph: Graph) -> tuple[str, bool]:
    """Return the reason at the end of a chain, and whether the end is late rather than at work.

    A resource in words may stand for others.
    """
    unit = units.get(name)
    if unit is None and (reported := graph.reported_wait(name)):
        return reported, True
    if unit is None:
        others = len(graph.names_used_for(name)) - 1
        if not others and (expected := graph.longest_wait(name)):
            return f"is no unit of the run; all that is known is that {expected}", True
        like = f"is, like {others} other{'s' if others > 1 else ''}," if others > 0 else "is"
        return f"{like} no unit of the run, so nothing more is known of it", True
    because = f": {unit.reason}" if unit.reason else ""
    if unit.state is UnitState.PENDING:
        return f"is not started yet, for {unit.age_s:.0f} s{because}", True
    if unit.state in (UnitState.STARTING, UnitState.DRAINING):
        # Its own status, such as the progress of a warm-up, says more than the reason of its state.
        return f"is {unit.state} for {unit.age_s:.0f} s{f': {unit.status}' if unit.status else because}", False
    doing = f" (phase {unit.phase})" if unit.phase else ""
    moved = "" if unit.progress_age_s is None else f", last progress {unit.progress_age_s:.0f} s ago"
    return f"is at work{doing}{moved}", False


# ---- chains ----


def _to_culprits(graph: Graph, ends: _Ends) -> Iterator[tuple[str, Edge]]:
    """Return every wait with the cause that it leads to."""
    for who, edges in graph.out.items():
        # The waits of a broken unit end at the unit itself.
        broken_itself = ends.culprit[who] == who and who not in ends.onward
        for edge in edges:
            yield ends.culprit[who if broken_itself else edge.target], edge


def _chains(graph: Graph, ends: _Ends, amiss: Collection[str]) -> list[WaitChain]:
    links: dict[str, list[WaitLink]] = {}
    for culprit, edge in _to_culprits(graph, ends):
        in_time = culprit in ends.busy and not edge.limited
        link = replace(edge.link, overdue=False) if in_time else edge.link
        links.setdefault(culprit, []).append(link)
    return [
        _chain(culprit, found, ends, amiss=culprit in amiss or any(link.overdue for link in found))
        for culprit, found in links.items()
    ]


def _chain(culprit: str, links: list[WaitLink], ends: _Ends, *, amiss: bool) -> WaitChain:
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
    return WaitChain(tuple(links), culprit, because, sentence, amiss)


def _follow(link: WaitLink, ends: _Ends) -> list[str]:
    """The names from the waiting node to the cause; a cycle is followed once."""
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
    # `record 3 on sampler-0 ← sampler-0` would name a unit twice in a row.
    names = [name.removesuffix(f" on {after}") for name, after in itertools.zip_longest(names, names[1:])]
    if len(names) > MOST_SHOWN:
        names = [*names[: MOST_SHOWN - 2], "…", *names[-2:]]
    return " ← ".join(names)
