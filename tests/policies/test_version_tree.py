"""Ages over publications, also when the trainer went back to an older checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ExitCode
from agentrl.policies.version_tree import UnknownVersionError, VersionTree


@st.composite
def parents(draw: st.DrawFn) -> dict[int, int | None]:
    """Numbers grow, sometimes with gaps; parents are any earlier version."""
    tree: dict[int, int | None] = {0: None}
    number = 0
    for _ in range(draw(st.integers(0, 12))):
        number += draw(st.integers(1, 3))
        tree[number] = draw(st.sampled_from(sorted(tree)))
    return tree


def ancestors(tree: dict[int, int | None], version: int) -> list[int]:
    way: list[int] = []
    at: int | None = version
    while at is not None:
        way.append(at)
        at = tree[at]
    return way


@given(parents(), st.data())
def test_an_age_is_the_path_over_the_common_ancestor(tree: dict[int, int | None], data: st.DataObject) -> None:
    versions = VersionTree(tree)
    some = st.sampled_from(sorted(tree))
    left, right, third = data.draw(some), data.draw(some), data.draw(some)
    up, down = ancestors(tree, left), ancestors(tree, right)
    meeting = next(version for version in up if version in down)
    assert versions.age(left, right) == up.index(meeting) + down.index(meeting) == versions.age(right, left)
    assert (versions.age(left, right) == 0) == (left == right)
    assert versions.age(left, third) <= versions.age(left, right) + versions.age(right, third)


@given(parents(), st.data())
def test_a_new_publication_makes_everything_one_older(tree: dict[int, int | None], data: st.DataObject) -> None:
    base = max(tree)
    old = data.draw(st.sampled_from(sorted(tree)))
    versions = VersionTree(tree)
    before = versions.age(old, base)
    versions.add(base + 1, base)
    assert versions.age(old, base + 1) == before + 1


def test_ages_after_a_resume_from_an_older_checkpoint() -> None:
    tree = VersionTree({version: version - 1 if version else None for version in range(121)})
    assert tree.age(118, 120) == 2
    tree.add(121, 100)
    assert tree.age(121, 121) == 0
    assert tree.age(100, 121) == 1
    assert tree.age(120, 121) == 21, "twenty versions back to the checkpoint and one forward"
    assert tree.staleness([105, 115, 121], 121) == 16, (
        "staleness is the greatest age and not that of the smallest number"
    )


def test_staleness_counts_what_trains() -> None:
    tree = VersionTree({1: None, 2: 1, 3: 2})
    assert tree.staleness([3, 2], 3) == 1
    assert tree.staleness([], 3) == 0


def test_contradictory_version_parents_are_refused() -> None:
    tree = VersionTree({1: None, 2: 1})
    tree.add(2, 1)
    with pytest.raises(ValueError, match="has parent 1, not None"):
        tree.add(2, None)
    with pytest.raises(ValueError, match="numbers only grow"):
        tree.add(3, 3)
    with pytest.raises(UnknownVersionError, match="comes from 7"):
        tree.add(8, 7)
    with pytest.raises(UnknownVersionError, match="version 9") as unknown:
        tree.age(9, 1)
    assert unknown.value.exit_code is ExitCode.UNKNOWN
    tree.add(5, None)
    with pytest.raises(UnknownVersionError, match="no common ancestor"):
        tree.age(2, 5)
    assert 5 in tree
    assert 4 not in tree
