"""When a fall of evaluation or reward is a collapse, and when it is noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.policies.learning_collapse import (
    REWARDS_KEPT,
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
        # A large fall counts at once, a smaller one only if the next evaluation confirms it.
        ((0.1, 0.97, 0.0), True),
        ((0.97, 0.6), False),
        ((0.97, 0.6, 0.62), True),
        ((0.97, 0.6, 0.95), False),
        # The reference is always the best evaluation, however old it is.
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


def lately(rewards: Sequence[float]) -> list[Measurement]:
    """The recent reward at each step that has enough steps before it."""
    found = (reward_lately(rewards[:step], step) for step in range(1, len(rewards) + 1))
    return [one for one in found if one is not None]


def worst_reward_collapse(rewards: Sequence[float]) -> float:
    """The largest collapse of the reward that the run reports."""
    measured = lately(rewards)
    bests = list(accumulate(measured, lambda best, one: best_of([best, one]) or one))
    return max(
        reward_collapse(best, measured[max(0, number - REWARDS_KEPT) : number])
        for number, best in enumerate(bests, start=1)
    )


def test_reward_counts_only_if_half_of_it_is_lost() -> None:
    well = [0.95, 0.96] * 5
    assert worst_reward_collapse([*well, *[0.7, 0.71] * 10]) <= 1, "harder tasks may explain a smaller fall"
    assert worst_reward_collapse([*well, *[0.0] * 10]) <= 1, "one measurement alone is no collapse"
    assert worst_reward_collapse([*well, *[0.0] * 20]) > 1
    assert reward_lately([0.5] * 9, 9) is None
    assert reward_collapse(Measurement(1, 1.0, 0.0), []) == 0.0


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.02, 0.05, 0.2]), st.sampled_from([8, 32, 64]))
@settings(max_examples=20, deadline=None)
def test_reward_of_a_healthy_run_with_rare_rewards_is_no_collapse(seed: int, share: float, many: int) -> None:
    """Several runs are simulated, because one in some hundreds may be unlucky."""
    chance = random.Random(seed)
    pages = sum(worst_reward_collapse(rare_rewards(chance, share, many, steps=200)) > 1 for _ in range(5))
    assert pages <= 1


@pytest.mark.parametrize(("share", "many"), [(0.1, 64), (0.3, 32), (0.9, 8)])
def test_reward_that_is_lost_is_a_collapse(share: float, many: int) -> None:
    rewards = rare_rewards(random.Random(3), share, many, steps=100)
    assert worst_reward_collapse([*rewards, *[0.0] * 20]) > 1


def rare_rewards(chance: random.Random, share: float, many: int, *, steps: int) -> list[float]:
    return [sum(chance.random() < share for _ in range(many)) / many for _ in range(steps)]
