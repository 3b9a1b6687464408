"""Which group ends the trainer: found by bisection over the batches that trainers died with.

Invariants: one death accuses nobody; a group is poison only when a trainer has died with it alone, at least for the
second time; what was trained after a death is cleared of it, also if that Step was rolled back later. The lighter half
is tried first: what ends a trainer is mostly what is largest, so the search mostly costs one death more and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ACCUSED_FROM = 2
"""Deaths in which a group must have been."""


class Death(NamedTuple):
    """A Step that was leased when its trainer died."""

    order: float
    """When, in the same count as what was trained."""
    tasks: frozenset[str]
    """As far as they are still ready with the same records. No death that a found poison explains is among them."""
    alone: bool = False
    """Whether the Step had one group and no other."""


@dataclass(frozen=True, slots=True)
class Verdict:
    poison: tuple[str, ...] = ()
    """What is proven."""
    suspects: tuple[str, ...] = ()
    """What has to be tried, the lightest first."""
    trial: tuple[str, ...] = ()
    """Those of the suspects that make the next Step, with nothing else."""


def judge(weights: Mapping[str, int], deaths: Sequence[Death], trained: Mapping[str, float]) -> Verdict:
    """`weights`: how heavy each ready group is; `trained`: when a group was last trained."""
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
