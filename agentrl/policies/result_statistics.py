"""What repeated attempts at tasks say about a model, and whether two models differ.

Invariants:
- Attempts at one task are not independent, so every interval and test goes by tasks, never by attempts.
- The same scores give the same figures: nothing here is random.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

RIGHT = 0.5
"""An attempt with a higher score passed."""
EXACT_UP_TO = 14
"""Differences whose signs are all tried; with more, the normal distribution is close enough."""
_SURE = 1.96
"""Standard errors to either side, for 95 %."""


def mean(values: Iterable[float]) -> float:
    """Raises ZeroDivisionError without values."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def margin(scores: Sequence[Sequence[float]]) -> float | None:
    """Half of the 95 % interval of the mean over tasks; `scores` has the scores of each task. None for fewer than two
    tasks.

    If all scores are from 0 to 1, two tasks with 0 and two with 1 are added: the interval of 64 right answers out of 64
    is not empty.
    """
    if len(scores) < 2:
        return None
    means = [mean(of_task) for of_task in scores]
    if all(0 <= one <= 1 for one in means):
        means += [0.0, 0.0, 1.0, 1.0]
    return _SURE * _error(means)


def pass_at(k: int, scores: Sequence[Sequence[float]]) -> float | None:
    """The chance that one of `k` attempts passes, without bias, over the tasks with that many; None if there are none.

    Of `n` attempts with `c` that passed, it is 1 minus the share of choices of `k` that have none of the `c`.
    """
    chances = [
        1.0 - math.comb(len(of_task) - sum(one > RIGHT for one in of_task), k) / math.comb(len(of_task), k)
        for of_task in scores
        if len(of_task) >= k
    ]
    return mean(chances) if chances else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares two models on the tasks that both attempted."""

    tasks: int
    difference: float
    """The second's mean minus the first's."""
    margin: float
    """Half of its 95 % interval; infinite for a single task."""
    chance: float
    """The probability of such a difference, or of a larger one, if the models are equal."""
    better: int
    """Tasks that the second does better."""
    worse: int

    @property
    def shown(self) -> bool:
        """Whether the difference is more than chance."""
        return self.chance < 0.05


def compare(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> Comparison | None:
    """Compares by task. Returns None if no task has scores of both models."""
    differences = [mean(second[task]) - mean(first[task]) for task in first if second.get(task) and first[task]]
    if not differences:
        return None
    return Comparison(
        tasks=len(differences),
        difference=mean(differences),
        margin=_SURE * _error(differences) if len(differences) > 1 else math.inf,
        chance=_chance(differences),
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
    )


def _chance(differences: Sequence[float]) -> float:
    """If the models are equal, each difference could just as well have the other sign."""
    moved = [difference for difference in differences if difference]
    if not moved:
        return 1.0
    seen = abs(math.fsum(moved))
    if len(moved) <= EXACT_UP_TO:
        signs = itertools.product((-1.0, 1.0), repeat=len(moved))
        sums = [abs(math.fsum(sign * one for sign, one in zip(of_one, moved, strict=True))) for of_one in signs]
        return sum(one >= seen * (1 - 1e-9) for one in sums) / len(sums)
    return math.erfc(seen / math.sqrt(2 * math.fsum(one * one for one in moved)))


def _error(values: Sequence[float]) -> float:
    """The standard error of their mean."""
    middle = mean(values)
    return math.sqrt(math.fsum((one - middle) ** 2 for one in values) / (len(values) - 1) / len(values))
