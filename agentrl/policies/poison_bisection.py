"""Finds the group that ends the trainer, by bisection over the batches that trainers died with.

The lighter half is tried first: the largest group is the most likely cause, so the search usually costs one more death.

Invariants:
- one death alone makes no group a suspect;
- a group is poison only if a trainer has died with it alone, and at least twice;
- a group that was trained after a death is cleared of it, also if that step was rolled back later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ACCUSED_FROM = 2
"""A group is suspected after this many deaths."""


class Death(NamedTuple):
    """A step that was leased when its trainer died."""

    order: float
    """Its time, in the same unit as for trained groups."""
    tasks: frozenset[str]
    """The tasks of the step that are still ready with the same records."""
    alone: bool = False
    """Whether the step had a single group."""


@dataclass(frozen=True, slots=True)
class Verdict:
    poison: tuple[str, ...] = ()
    """Proven groups."""
    suspects: tuple[str, ...] = ()
    """Groups that have to be tried, the lightest first."""
    trial: tuple[str, ...] = ()
    """The suspects of the next step, which has no other groups."""


def judge(weights: Mapping[str, int], deaths: Sequence[Death], trained: Mapping[str, float]) -> Verdict:
    """`weights`: the size of each ready group; `trained`: when a group was last trained."""
    accused: Counter[str] = Counter()
    alone: set[str] = set()
    for death in deaths:
        here = [task for task in death.tasks if task in weights and death.order > trained.get(task, float("-inf"))]
        accused.update(here)
        if death.alone:
            alone.update(here)
    most = max(accused.values(), default=0)
    if most < ACCUSED_FROM:
        return Verdict()
    suspects = sorted((task for task, times in accused.items() if times == most), key=lambda one: (weights[one], one))
    proven = tuple(task for task in suspects if task in alone)
    if proven:
        return Verdict(poison=proven)
    return Verdict(suspects=tuple(suspects), trial=tuple(suspects[: max(1, len(suspects) // 2)]))
