"""From token trees to rows of tokens that share what they have in common.

Invariants:
- the packed tree of a group has only ids: two members that sampled the same ids share the forward pass and nothing
  else;
- tokens are in depth-first order, position = depth, key j is visible to query i if j <= i < end[j];
- the logits of a pair are those at the parent of its token;
- every trained token of a trajectory is exactly one pair, however rows are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from agentrl.training.batch import Array, Segment, Trajectory, path_to, version_of_each_token

Layout = Literal["tree", "linear"]
"""`tree`: a group shares what it has in common. `linear`: every branch is a row of its own, for models whose layers
carry a state along the row."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """(record, token) pairs as columns."""

    asked: Array
    """Index into the row's `asked_at`."""
    target: Array
    record: Array
    """Index of the trajectory in its batch."""
    behaviour: Array
    version: Array
    order: Array
    """The place of the token among those that its record trains, in the order of time."""

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    ids: Array
    positions: Array
    ends: Array
    asked_at: Array
    """The places at which logits are needed; siblings need the same logits."""
    temperatures: Array
    """The temperature at each of these places."""
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.ids)


def rows(trajectories: Sequence[Trajectory], layout: Layout = "tree", *, row_tokens: int = 1 << 30) -> list[Row]:
    """Rows that hold every pair once.

    `row_tokens`: the longest row; a single trajectory is never cut.
    """
    branches = [list(_branches(index, one)) for index, one in enumerate(trajectories)]
    if layout == "linear":
        made = [_linear_row(branch) for of_one in branches for branch in of_one]
        return [row for row in made if len(row.pairs)]
    made = []
    for members in _by_group(trajectories):
        tree = _PrefixTree()
        for index in members:
            if tree.length and tree.length + tree.new_tokens(branches[index]) > row_tokens:
                made.append(tree.row())
                tree = _PrefixTree()
            tree.insert(branches[index])
        made.append(tree.row())
    return [row for row in made if len(row.pairs)]


def micro_batches(rows: Sequence[Row], tokens: int, layout: Layout = "tree") -> list[list[Row]]:
    """At most `tokens` each, unless a single row is longer. Trees are concatenated; linear rows are padded to the
    longest, so rows of similar length are put together."""
    batches: list[list[Row]] = []
    used = 0
    for row in sorted(rows, key=len, reverse=True):
        # The first row of a batch is its longest.
        size = len(row) if layout == "tree" or not batches else len(batches[-1][0])
        if not batches or used + size > tokens:
            batches.append([])
            used, size = 0, len(row)
        batches[-1].append(row)
        used += size
    return batches


def _by_group(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.group_key, []).append(index)
    return list(groups.values())


class _Shown(NamedTuple):
    segment: Segment
    start: int
    """The place in the branch at which it begins."""
    first: int
    """How many tokens its record trains before it."""


class _Branch(NamedTuple):
    """The ids from the root to a leaf of a trajectory."""

    trajectory: int
    """Index of the trajectory in its batch."""
    ids: Array
    shown: list[_Shown]
    """The segments that no earlier branch contains."""

    def new_tokens(self, known: int) -> int:
        """How many tokens no earlier branch contains, without the first `known` ones."""
        ends = ((one.start, one.start + len(one.segment.ids)) for one in self.shown)
        return sum(max(0, end - max(start, known)) for start, end in ends)


def _branches(index: int, trajectory: Trajectory) -> Iterator[_Branch]:
    parents = {segment.parent for segment in trajectory.segments}
    before: dict[int, int] = {}
    trained = 0
    for at in trajectory.trained_segments:
        before[at] = trained
        trained += len(trajectory.segments[at].ids)
    done: set[int] = set()
    for leaf in range(len(trajectory.segments)):
        if leaf in parents:
            continue
        shown: list[_Shown] = []
        start = 0
        path = path_to(trajectory, leaf)
        for at in path:
            segment = trajectory.segments[at]
            if at not in done:
                shown.append(_Shown(segment, start, before.get(at, 0)))
            start += len(segment.ids)
        done.update(path)
        yield _Branch(index, _joined([trajectory.segments[at].ids for at in path]), shown)


class _Node:
    """A run of ids within which no branch diverges."""

    __slots__ = ("children", "ids", "start")

    def __init__(self, ids: Array) -> None:
        self.ids = ids
        self.children: dict[int, _Node] = {}
        """Children by their first id."""
        self.start = 0
        """Place of the first id in the row."""

    def split(self, at: int) -> None:
        """Moves the ids from `at` on into an only child."""
        rest = _Node(self.ids[at:])
        rest.children, self.children = self.children, {int(rest.ids[0]): rest}
        self.ids = self.ids[:at]


class _PrefixTree:
    """A radix tree of the ids of a group. Its nodes are runs of ids, so the work grows with branches, not tokens."""

    def __init__(self) -> None:
        self._root = _Node(np.empty(0, dtype=np.int64))
        self._branches: list[_Branch] = []
        self.length = 0

    def insert(self, branches: Sequence[_Branch]) -> None:
        for branch in branches:
            *_, (node, at, known) = self._follow(branch.ids)
            new = branch.ids[known:]
            if len(new):
                if at < len(node.ids):
                    node.split(at)
                node.children[int(new[0])] = _Node(new)
                self.length += len(new)
        self._branches.extend(branches)

    def new_tokens(self, branches: Sequence[_Branch]) -> int:
        """Upper bound of the tokens that the branches would add: they may share more with each other."""
        return sum(branch.new_tokens(self._known(branch.ids)) for branch in branches)

    def row(self) -> Row:
        order, depths, ends = self._depth_first()
        sizes = [len(node.ids) for node in order]
        positions = np.arange(self.length) + np.repeat(depths, sizes) - np.repeat([node.start for node in order], sizes)
        trained = [one for branch in self._branches for one in _trained(branch, self._places(branch.ids))]
        return _row(_joined([node.ids for node in order]), positions, np.repeat(ends, sizes), trained)

    def _follow(self, ids: Array) -> Iterator[tuple[_Node, int, int]]:
        """The nodes on the path of these ids, each with the number of its ids that match and of all ids that match so
        far."""
        node, done = self._root, 0
        yield node, 0, 0
        while done < len(ids) and (child := node.children.get(int(ids[done]))) is not None:
            size = min(len(ids) - done, len(child.ids))
            differs = ids[done : done + size] != child.ids[:size]
            same = int(differs.argmax()) if differs.any() else size
            node, done = child, done + same
            yield node, same, done
            if same < len(child.ids):
                return

    def _known(self, ids: Array) -> int:
        *_, (_, _, known) = self._follow(ids)
        return known

    def _places(self, ids: Array) -> Array:
        """The places of these ids in the row."""
        return _joined([np.arange(node.start, node.start + same) for node, same, _ in self._follow(ids)])

    def _depth_first(self) -> tuple[list[_Node], list[int], list[int]]:
        """The nodes in order, with the depth of their first id and the end of their subtree; sets their starts."""
        order: list[_Node] = []
        depths: list[int] = []
        stack = [(self._root, 0)]
        length = 0
        while stack:
            node, depth = stack.pop()
            node.start = length
            length += len(node.ids)
            order.append(node)
            depths.append(depth)
            stack.extend((child, depth + len(node.ids)) for child in reversed(node.children.values()))
        end_of: dict[_Node, int] = {}
        for node in reversed(order):
            end_of[node] = max((end_of[child] for child in node.children.values()), default=node.start + len(node.ids))
        return order, depths, [end_of[node] for node in order]


class _Trained(NamedTuple):
    trajectory: int
    """Its index in the batch."""
    segment: Segment
    parents: Array
    """The place of each token's parent in the row."""
    first: int
    """How many tokens the record trains before it."""


def _trained(branch: _Branch, places: Array) -> list[_Trained]:
    """`places`: the places of the branch's ids in the row."""
    return [
        _Trained(
            branch.trajectory, one.segment, places[one.start - 1 : one.start - 1 + len(one.segment.ids)], one.first
        )
        for one in branch.shown
        if one.segment.trains and len(one.segment.ids)
    ]


def _linear_row(branch: _Branch) -> Row:
    length = len(branch.ids)
    places = np.arange(length)
    return _row(branch.ids, places, np.full(length, length), _trained(branch, places))


def _row(ids: Array, positions: Array, ends: Array, trained: Sequence[_Trained]) -> Row:
    segments = [one.segment for one in trained]
    sizes = [len(segment.ids) for segment in segments]
    parents = _joined([one.parents for one in trained])
    temperatures = np.repeat([segment.temperature for segment in segments], sizes)
    # Siblings with one temperature need the same logits.
    asked, which = np.unique(np.stack((parents, temperatures)), axis=1, return_inverse=True)
    pairs = Pairs(
        asked=which.reshape(-1),
        target=_joined([segment.ids for segment in segments]).astype(np.int64),
        record=np.repeat([one.trajectory for one in trained], sizes).astype(np.int64),
        behaviour=_joined([segment.log_probs for segment in segments]).astype(np.float64),
        version=version_of_each_token(segments),
        order=_joined([one.first + np.arange(size) for one, size in zip(trained, sizes, strict=True)]),
    )
    return Row(ids.astype(np.int64), positions, ends, asked[0].astype(np.int64), asked[1], pairs)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
