"""What a step trains: token trees with everything that the loss needs to know about each token.

Tokens and log-probs are arrays, so no later module loops over tokens.

Invariants:
- a trajectory is complete in itself, so a batch from a file trains like one from the store;
- behavior log-probs, versions and temperature belong to the tokens of segments that train;
- a parent stands before its children.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from agentrl.errors import AgentrlError
from agentrl.tokens import version_runs
from agentrl.tokens.spans import ROOT
from agentrl.tokens.version_runs import Runs

Array = np.ndarray[Any, Any]
_NO_LOG_PROBS = np.empty(0)


class BrokenTrajectoryError(AgentrlError):
    """Stored token data does not fit together."""


class Segment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A span with its tokens. Arrays are kept as they are: those of a record are views of its stored bytes, and packing
    gives all of them the types of a step. Other sequences are turned into arrays."""

    parent: int
    """Index of the segment before it; ROOT if it begins a sequence."""
    ids: Array
    trains: bool = False
    log_probs: Array = _NO_LOG_PROBS
    """For a segment that trains: the engine's log-probs at `temperature`."""
    versions: Runs = []
    """For a segment that trains: runs of (version, tokens)."""
    temperature: float = 1.0
    call: int = 0
    """The model call that it belongs to. Calls are numbered in the order of time; branches need not be stored in this
    order."""
    advantage: float | None = None
    """For a segment that trains: the advantage of its turn; None means the advantage of the record."""
    reward: float = 0.0
    """The reward that the environment gave after its last token. Only a critic uses it."""

    def __post_init__(self) -> None:
        for name, kind in (("ids", np.int64), ("log_probs", np.float64)):
            if not isinstance(given := getattr(self, name), np.ndarray):
                msgspec.structs.force_setattr(self, name, np.asarray(given, dtype=kind))


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The token tree of one record."""

    record: str
    group: str = ""
    """Members of a group are packed together, because they begin alike."""
    segments: list[Segment]
    advantage: float = 0.0
    decays: bool = False
    """Whether the bounds of its ratios tighten with age."""
    capped: bool = False
    """No token of it gets a positive advantage, whatever the values of a critic are."""

    @property
    def group_key(self) -> str:
        """A record without a group is a group of its own."""
        return self.group or self.record

    @property
    def trained_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.trains)

    @property
    def trained_segments(self) -> list[int]:
        """Indices of the segments that train, in the order of time."""
        trained = [index for index, segment in enumerate(self.segments) if segment.trains]
        return sorted(trained, key=lambda index: self.segments[index].call)

    @property
    def tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def versions(self) -> Counter[int]:
        """How many trained tokens each version generated."""
        found: Counter[int] = Counter()
        for segment in self.segments:
            for version, count in segment.versions if segment.trains else ():
                found[version] += count
        return found

    def problem(self) -> str:
        """Empty, or what does not fit together."""
        for index, segment in enumerate(self.segments):
            where = f"segment {index} of {self.record}"
            if not ROOT <= segment.parent < index:
                return f"{where} stands before its parent {segment.parent}"
            if not segment.trains:
                continue
            if segment.parent == ROOT:
                return f"{where} trains, but no token stands before it to predict it from"
            if len(segment.log_probs) != len(segment.ids):
                return f"{where} has {len(segment.ids)} tokens and {len(segment.log_probs)} log-probs"
            if version_runs.total(segment.versions) != len(segment.ids):
                return f"{where} has {len(segment.ids)} tokens, but its versions cover another number"
        return ""


class Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one step trains."""

    step: int
    base_version: int
    trajectories: list[Trajectory]
    ages: Mapping[int, int] = {}
    """For every version of a trained token: publications from it to `base_version`."""
    ages_s: Mapping[int, float] = {}
    """For the same versions, if decay goes by time: seconds from the announcement to the lease of the step."""
    images: Mapping[int, bytes] = {}
    """Each image that tokens show, by its number, in the size that the model sees."""

    @property
    def trained_tokens(self) -> int:
        return sum(trajectory.trained_tokens for trajectory in self.trajectories)


def split_by_groups(batch: Batch, count: int) -> list[Batch]:
    """Disjoint parts of whole groups, in order and as even as possible; fewer parts if there are fewer groups."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in batch.trajectories:
        groups.setdefault(trajectory.group_key, []).append(trajectory)
    members = list(groups.values())
    count = max(1, min(count, len(members)))
    edges = [place * len(members) // count for place in range(count + 1)]
    parts = [itertools.chain.from_iterable(members[low:high]) for low, high in itertools.pairwise(edges)]
    return [msgspec.structs.replace(batch, trajectories=list(part)) for part in parts]


def path_to(trajectory: Trajectory, leaf: int) -> list[int]:
    """Indices of the segments from the root to `leaf`."""
    path: list[int] = []
    at = leaf
    while at != ROOT:
        path.append(at)
        at = trajectory.segments[at].parent
    return path[::-1]


def checked(trajectory: Trajectory) -> Trajectory:
    """Returns the trajectory, or raises BrokenTrajectoryError."""
    if problem := trajectory.problem():
        raise BrokenTrajectoryError(f"{problem}.")
    return trajectory


def version_of_each_token(segments: Sequence[Segment]) -> Array:
    """The versions of the tokens of these segments."""
    runs = [run for segment in segments for run in segment.versions]
    return np.repeat([version for version, _ in runs], [count for _, count in runs]).astype(np.int64)


def whole_sequence(index: int, ids: Sequence[int]) -> Trajectory:
    """A trajectory of one sequence, of which all tokens except the first are scored."""
    first, rest = np.asarray(ids[:1]), np.asarray(ids[1:])
    scored = Segment(parent=0, ids=rest, trains=True, log_probs=np.zeros(len(rest)), versions=[(0, len(rest))])
    return Trajectory(record=str(index), segments=[Segment(parent=-1, ids=first), scored])
