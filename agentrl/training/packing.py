"""From token trees to rows of tokens that share what they have in common.

Invariants: the packed trie of a group holds ids only, so two members that sampled the same ids share the forward pass
and nothing else; depth-first order, position = depth, key j is visible to query i iff j <= i < end[j]; a pair's logits
are those at its token's parent. Every trained token of a trajectory is exactly one pair, however rows are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentrl.tokens.spans import ROOT
from agentrl.training.batch import Segment, Trajectory

Layout = Literal["tree", "linear"]
"""`tree`: a group shares what it has in common. `linear`: every branch is a row of its own, for models whose layers
carry a state along the row."""

ALWAYS_SHARE = float("inf")


@dataclass(slots=True)
class Pairs:
    """(record, token) pairs, column by column."""

    asked: list[int] = field(default_factory=list)
    """Index into the row's `asked`."""
    target: list[int] = field(default_factory=list)
    record: list[int] = field(default_factory=list)
    """Index of the trajectory in its batch."""
    behaviour: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.target)


@dataclass(slots=True)
class Row:
    """One packed sequence."""

    ids: list[int]
    positions: list[int]
    ends: list[int]
    asked: list[tuple[int, float]] = field(default_factory=list)
    """Where logits are wanted, and at which temperature; siblings want the same ones."""
    pairs: Pairs = field(default_factory=Pairs)

    def __len__(self) -> int:
        return len(self.ids)


def rows(
    trajectories: Sequence[Trajectory],
    layout: Layout = "tree",
    *,
    row_tokens: int = 1 << 30,
    token_cost: float = ALWAYS_SHARE,
) -> list[Row]:
    """Rows that hold every pair once.

    `row_tokens`: how long a row may become; a single trajectory is never cut. `token_cost`: what a token costs outside
    of attention, in keys that are looked at; it decides whether sharing is worth the longer row.
    """
    if layout == "linear":
        return [row for index, one in enumerate(trajectories) for row in _linear(index, one)]
    made: list[Row] = []
    for members in _by_group(trajectories):
        trie = _Trie()
        for index in members:
            if len(trie) and not _worth_sharing(trie, trajectories[index], row_tokens, token_cost):
                made.append(trie.row())
                trie = _Trie()
            trie.insert(index, trajectories[index])
        made.append(trie.row())
    return [row for row in made if len(row.pairs)]


def _worth_sharing(trie: _Trie, more: Trajectory, row_tokens: int, token_cost: float) -> bool:
    """A dense mask is computed in full: a longer row costs attention among tokens that do not see each other."""
    length, new, alone = len(trie), trie.new_tokens(more), more.tokens
    if length + new > row_tokens:
        return False
    if token_cost == ALWAYS_SHARE:
        return True
    return token_cost * new + (length + new) ** 2 - length**2 <= token_cost * alone + alone**2


def micro_batches(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Rows of similar length together, padding included at most `tokens` in each where a row alone is not longer."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=len, reverse=True):
        # The first of a batch is its longest: all others are padded to it.
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def _by_group(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.group_key, []).append(index)
    return list(groups.values())


def _versions(segment: Segment) -> Iterator[int]:
    for version, count in segment.versions:
        for _ in range(count):
            yield version


class _Trie:
    """Nodes are numbered as they come; `row` brings them into depth-first order."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._child: dict[tuple[int, int], int] = {}
        self._trained: list[tuple[int, Segment, list[int]]] = []
        """Trajectory, segment, and the nodes of its tokens."""

    def __len__(self) -> int:
        return len(self._tokens)

    def insert(self, index: int, trajectory: Trajectory) -> None:
        ends: list[int] = []
        for segment in trajectory.segments:
            node = ROOT if segment.parent == ROOT else ends[segment.parent]
            nodes: list[int] = []
            for token in segment.ids:
                node = self._onward(node, token)
                nodes.append(node)
            ends.append(node)
            if segment.trains and nodes:
                self._trained.append((index, segment, nodes))

    def new_tokens(self, trajectory: Trajectory) -> int:
        """How many nodes it would add, at most: branches of its own may share more."""
        ends: list[int | None] = []
        new = 0
        for segment in trajectory.segments:
            node: int | None = ROOT if segment.parent == ROOT else ends[segment.parent]
            for token in segment.ids:
                node = None if node is None else self._child.get((node, token))
                new += node is None
            ends.append(node)
        return new

    def row(self) -> Row:
        order = self._depth_first()
        place = [0] * len(order)
        for at, node in enumerate(order):
            place[node] = at
        parents = [ROOT if self._parents[node] == ROOT else place[self._parents[node]] for node in order]
        row = Row([self._tokens[node] for node in order], _depths(parents), _ends(parents))
        asked: dict[tuple[int, float], int] = {}
        for index, segment, nodes in self._trained:
            for at, log_prob, version in zip(nodes, segment.log_probs, _versions(segment), strict=True):
                wanted = (parents[place[at]], segment.temperature)
                _add_pair(row.pairs, asked.setdefault(wanted, len(asked)), self._tokens[at], index, log_prob, version)
        row.asked = list(asked)
        return row

    def _onward(self, node: int, token: int) -> int:
        known = self._child.setdefault((node, token), len(self._tokens))
        if known == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(node)
        return known

    def _depth_first(self) -> list[int]:
        children: list[list[int]] = [[] for _ in self._tokens]
        roots: list[int] = []
        for node, parent in enumerate(self._parents):
            (roots if parent == ROOT else children[parent]).append(node)
        order: list[int] = []
        todo = roots[::-1]
        while todo:
            node = todo.pop()
            order.append(node)
            todo.extend(reversed(children[node]))
        return order


def _add_pair(pairs: Pairs, asked: int, target: int, record: int, log_prob: float, version: int) -> None:
    pairs.asked.append(asked)
    pairs.target.append(target)
    pairs.record.append(record)
    pairs.behaviour.append(log_prob)
    pairs.version.append(version)


def _depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent == ROOT else found[parent] + 1)
    return found


def _ends(parents: Sequence[int]) -> list[int]:
    """Where each subtree ends in depth-first order."""
    found = list(range(1, len(parents) + 1))
    for index in range(len(parents) - 1, -1, -1):
        if parents[index] != ROOT:
            found[parents[index]] = max(found[parents[index]], found[index])
    return found


def _linear(index: int, trajectory: Trajectory) -> Iterator[Row]:
    """One row for each branch; a segment trains in the first branch that shows it."""
    parents = {segment.parent for segment in trajectory.segments}
    done: set[int] = set()
    for leaf in range(len(trajectory.segments)):
        if leaf in parents:
            continue
        way = _way(trajectory, leaf)
        row = _branch(index, trajectory, way, done)
        done.update(way)
        if len(row.pairs):
            yield row


def _way(trajectory: Trajectory, leaf: int) -> list[int]:
    way: list[int] = []
    at = leaf
    while at != ROOT:
        way.append(at)
        at = trajectory.segments[at].parent
    return way[::-1]


def _branch(index: int, trajectory: Trajectory, way: Sequence[int], done: set[int]) -> Row:
    ids = [token for at in way for token in trajectory.segments[at].ids]
    row = Row(ids, list(range(len(ids))), [len(ids)] * len(ids))
    asked: dict[tuple[int, float], int] = {}
    start = 0
    for at in way:
        segment = trajectory.segments[at]
        if segment.trains and at not in done:
            columns = zip(segment.ids, segment.log_probs, _versions(segment), strict=True)
            for offset, (token, log_prob, version) in enumerate(columns):
                wanted = (start + offset - 1, segment.temperature)
                _add_pair(row.pairs, asked.setdefault(wanted, len(asked)), token, index, log_prob, version)
        start += len(segment.ids)
    row.asked = list(asked)
    return row
