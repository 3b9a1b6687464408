"""What a Step trains, as plain values: token trees with everything that the loss needs to know of each token.

Invariants: a trajectory is complete in itself, so a batch that was written to a file trains like one from the store;
behaviour log-probs, versions and temperature belong to the tokens of a segment one by one, and only segments that train
have them; a parent stands before its children.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from agentrl.errors import AgentrlError
from agentrl.tokens.spans import ROOT


class BrokenTrajectoryError(AgentrlError):
    """Stored token data does not fit together."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A span with its tokens."""

    parent: int
    """Index of the segment before it, ROOT if it begins a sequence."""
    ids: list[int]
    trains: bool = False
    log_probs: list[float] = []
    """Of a segment that trains: what the engine sampled with, at `temperature`."""
    versions: list[tuple[int, int]] = []
    """Of a segment that trains: runs of (version, tokens)."""
    temperature: float = 1.0


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One record's token tree."""

    record: str
    group: str = ""
    """Members of a group are packed together: they begin alike."""
    segments: list[Segment]
    advantage: float = 0.0
    decays: bool = False
    """Whether the bounds of its ratios close with age."""

    @property
    def group_key(self) -> str:
        """A record without a group is one by itself."""
        return self.group or self.record

    @property
    def trained_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.trains)

    @property
    def tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def versions(self) -> dict[int, int]:
        """How many tokens that train each version generated."""
        found: dict[int, int] = {}
        for segment in self.segments:
            for version, count in segment.versions if segment.trains else ():
                found[version] = found.get(version, 0) + count
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
                return f"{where} trains, but nothing stands before it that it could be predicted from"
            if len(segment.log_probs) != len(segment.ids):
                return f"{where} has {len(segment.ids)} tokens and {len(segment.log_probs)} log-probs"
            if sum(count for _, count in segment.versions) != len(segment.ids):
                return f"{where} has {len(segment.ids)} tokens, and not as many versions"
        return ""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one Step trains."""

    step: int
    base_version: int
    trajectories: list[Trajectory]
    ages: Mapping[int, int] = {}
    """Of every version that a trained token has: publications from it to `base_version`."""
    ages_s: Mapping[int, float] = {}
    """Of the same versions, where decay goes by time: from the announcement to the lease of the Step."""

    @property
    def trained_tokens(self) -> int:
        return sum(trajectory.trained_tokens for trajectory in self.trajectories)


def in_parts(batch: Batch, count: int) -> list[Batch]:
    """Disjoint parts of whole groups, in the batch's order and with as even numbers of groups as there are; fewer
    parts if there are fewer groups."""
    groups: dict[str, list[Trajectory]] = {}
    for one in batch.trajectories:
        groups.setdefault(one.group_key, []).append(one)
    members = list(groups.values())
    count = max(1, min(count, len(members)))
    edges = [place * len(members) // count for place in range(count + 1)]
    cuts = [members[low:high] for low, high in itertools.pairwise(edges)]
    return [msgspec.structs.replace(batch, trajectories=_flat(cut)) for cut in cuts]


def _flat(groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    return [one for group in groups for one in group]


def checked(trajectory: Trajectory) -> Trajectory:
    """The same, or BrokenTrajectoryError."""
    if problem := trajectory.problem():
        raise BrokenTrajectoryError(f"{problem}.")
    return trajectory
