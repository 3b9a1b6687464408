"""When a fall of evaluation or reward is a collapse, and when it is noise."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from agentrl.policies.learning_collapse import (
    Measurement,
    best_of,
    evaluation_collapse,
    reward_collapse,
    reward_lately,
)


def evaluations(*means: float, margin: float = 0.1) -> list[Measurement]:
    return [Measurement(version, mean, margin) for version, mean in enumerate(means, 1)]


def test_best_is_the_one_that_is_surely_best() -> None:
    lucky = Measurement(1, 1.0, 0.5)
    assert best_of([lucky, *evaluations(0.8, 0.6)]) == Measurement(1, 0.8, 0.1)
    assert best_of([]) is None


@pytest.mark.parametrize(
    ("means", "collapsed"),
    [
        ((), False),
        ((0.1, 0.5, 0.97), False),
        ((0.97, 0.9), False),
        # A large fall counts at once, a smaller one if the next evaluation confirms it.
        ((0.1, 0.97, 0.0), True),
        ((0.97, 0.6), False),
        ((0.97, 0.6, 0.62), True),
        ((0.97, 0.6, 0.95), False),
        # The reference stays the best, however long it is ago.
        ((0.97, *[0.1] * 50), True),
        ((0.97, *[0.1] * 50, 0.95), False),
    ],
)
def test_evaluation_is_compared_with_the_best_of_the_run(means: tuple[float, ...], collapsed: bool) -> None:
    assert (evaluation_collapse(evaluations(*means)) > 1) is collapsed


def test_noise_of_a_long_healthy_run_is_no_collapse() -> None:
    chance = random.Random(5)
    for truth in (0.1, 0.5, 0.9, 0.99):
        measured = []
        for version in range(200):
            scores = [float(chance.random() < truth) for _ in range(64)]
            extended = [*scores, 0.0, 0.0, 1.0, 1.0]
            spread = fmean((score - fmean(extended)) ** 2 for score in extended)
            measured.append(Measurement(version, fmean(scores), 1.96 * (spread / len(extended)) ** 0.5))
            assert evaluation_collapse(measured) <= 1, (truth, version)


def test_reward_counts_only_if_half_of_it_is_lost() -> None:
    best = reward_lately([0.95, 0.96] * 5, 10)
    harder, lost = reward_lately([0.7, 0.71] * 5, 20), reward_lately([0.0] * 10, 30)
    assert best is not None
    assert harder is not None
    assert lost is not None
    assert reward_collapse(best, harder) <= 1, "harder tasks"
    assert reward_collapse(best, lost) > 1
    assert reward_lately([0.5] * 9, 9) is None
