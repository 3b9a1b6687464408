"""How much may be sampled ahead of training.

Invariants:
- the formula is stateless (every number is counted, none accumulated), so a process that dies holds no capacity;
- capacity is granted to whole groups and in order, so small groups never starve a large one;
- if `batch` is groups * largest group, there is always room to admit a group that a batch still lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import ConfigError

TRIED = 16
"""Records that are admitted at a time during a hold: enough to see whether they still fail."""
TRIED_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    bound: int
    """The staleness bound η, in publications."""
    batch: int
    """Records of one step: see `batch_records`."""
    max_concurrent: int
    """Most records under way at the same time."""
    publish_every: int = 1
    """Steps per publication."""

    @property
    def ahead(self) -> int:
        """Records that may exist untrained without breaking the bound."""
        return (self.bound + 1) * self.batch * self.publish_every


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of purpose train and branch, counted by query. Evaluations and probes need no admission."""

    open: int = 0
    running: int = 0
    finished: int = 0
    unscored: int = 0
    ready: int = 0
    """Records of closed groups with signal, and scored records of groups that are not closed yet."""
    leased: int = 0

    @property
    def in_flight(self) -> int:
        return self.open + self.running + self.finished + self.unscored

    def sentence(self) -> str:
        return f"{self.in_flight} records under way, {self.ready} ready, {self.leased} leased"


def batch_records(groups: int, sizes: Iterable[int]) -> int:
    """The records of a step if every group had the largest size."""
    return groups * max(sizes)


def capacity(plan: Plan, counts: Counts) -> int:
    """Records that may be admitted now; negative after a bound or a limit was lowered."""
    free_places = plan.max_concurrent - counts.in_flight
    free_of_bound = plan.ahead - (counts.ready + counts.leased + counts.in_flight)
    return min(free_places, free_of_bound)


def largest_group(plan: Plan, n: int) -> int:
    """The size of the largest group that there is always room to admit while a batch lacks a group, even if all groups
    of the batch have this size. `n`: the size of a usual group."""
    return max(n, min(plan.max_concurrent, plan.ahead * n // plan.batch))


def granted(waiting: Iterable[tuple[int, int]]) -> int:
    """How many of the waiting groups, in their order, are admitted now. Each pair is the room under its bound and the
    size of a group. A group that must wait is not overtaken, or a stricter bound would never be served."""
    taken = number = 0
    for room, size in waiting:
        if taken + size > room:
            break
        taken += size
        number += 1
    return number


def groups_on_trial(size: int, counts: Counts, waited_s: float) -> int:
    """How many groups of this size are admitted during a hold: a few, and only after the groups before them have ended.
    `waited_s`: the time since the last admission."""
    if counts.in_flight or waited_s < TRIED_EVERY_S:
        return 0
    return math.ceil(TRIED / size)


def refuse_impossible(plan: Plan, sizes: Iterable[int]) -> None:
    """Raises ConfigError if the largest group could never be admitted."""
    if plan.bound < 0 or plan.publish_every < 1:
        raise ConfigError(
            f"The bound must be at least 0 and publish_every at least 1, not {plan.bound} and {plan.publish_every}."
        )
    largest = max(sizes, default=0)
    if plan.ahead < largest:
        raise ConfigError(
            f"A group of {largest} can never be admitted: (bound + 1) * batch * publish_every is {plan.ahead}.",
            hint="Raise bound or groups, or lower n.",
        )
    if plan.max_concurrent < largest:
        raise ConfigError(
            f"A group of {largest} can never be admitted: only {plan.max_concurrent} records may be under way.",
            hint=f"Raise max_in_flight to {largest} or more, or lower n.",
        )
