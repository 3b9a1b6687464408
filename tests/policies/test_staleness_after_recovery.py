"""After any number of returns to a checkpoint, nothing trains past the bound, and nothing else is lost."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from agentrl.policies.batch_cut import BatchTarget, ReadyGroup, ReadyRecord, Situation, decide
from agentrl.policies.freshness import Freshness
from agentrl.policies.version_tree import VersionTree


def distance(edges: list[tuple[int, int]], start: int, goal: int) -> int:
    """The distance between two versions, by exhaustive search."""
    beside: dict[int, set[int]] = {}
    for one, other in edges:
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    known, queue = {start: 0}, deque([start])
    while queue:
        at = queue.popleft()
        for neighbour in beside.get(at, set()) - known.keys():
            known[neighbour] = known[at] + 1
            queue.append(neighbour)
    return known[goal]


@given(
    # The parent of a publication is the one before it, or after a death any older one.
    st.lists(st.none() | st.integers(0, 100), max_size=14),
    st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=3), min_size=1, max_size=12),
    st.integers(0, 4),
    st.integers(1, 4),
)
def test_ages_are_paths_through_all_lineages(
    deaths: list[int | None], sampled: list[list[int]], bound: int, wanted: int
) -> None:
    tree, edges, newest = VersionTree({1: None}), [], 1
    for resumed in deaths:
        parent = newest if resumed is None else 1 + resumed % newest
        newest += 1
        tree.add(newest, parent)
        edges.append((newest, parent))
    versions = [[1 + one % newest for one in record] for record in sampled]
    true_age = [max(distance(edges, version, newest) for version in record) for record in versions]
    ready = [
        ReadyGroup(f"t{number}", number, True, (ReadyRecord(str(number), tree.staleness(record, newest)),))
        for number, record in enumerate(versions)
    ]
    decision = decide(Situation(ready), BatchTarget(groups=wanted, max_refill=1), Freshness("drop", bound))
    trains = [int(record.record) for group in decision.groups for record in group.records]
    assert all(true_age[number] <= bound for number in trains)
    fresh = [number for number, age in enumerate(true_age) if age <= bound]
    assert trains == (fresh[:wanted] if len(fresh) >= wanted else [])
    assert sorted(decision.stale_groups) == sorted(f"t{number}" for number, age in enumerate(true_age) if age > bound)
