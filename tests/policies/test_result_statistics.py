"""Figures of repeated attempts: checked by counting all cases, and by simulation of models that are equal."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agentrl.policies.result_statistics import EXACT_UP_TO, compare, margin, mean, pass_at

PASSED = some.lists(some.booleans(), min_size=1, max_size=7)


@given(PASSED, some.integers(1, 7))
def test_the_chance_to_pass_is_that_of_all_choices_of_attempts(passed: list[bool], k: int) -> None:
    scores = [float(one) for one in passed]
    if k > len(scores):
        assert pass_at(k, [scores]) is None
        return
    choices = [any(choice) for choice in itertools.combinations(passed, k)]
    assert pass_at(k, [scores]) == pytest.approx(sum(choices) / len(choices))


def test_tasks_count_alike_however_often_they_were_tried() -> None:
    assert pass_at(1, [[1.0], [0.0, 0.0, 0.0]]) == 0.5
    assert pass_at(3, [[1.0], [0.0, 0.0, 1.0]]) == 1.0  # of the one that was tried three times


def test_more_attempts_at_the_same_tasks_do_not_narrow_what_tasks_leave_open() -> None:
    once, often = margin([[1.0], [0.0]] * 20), margin([[1.0] * 50, [0.0] * 50] * 20)
    assert once == often
    assert margin([[1.0]]) is None
    sure = margin([[1.0]] * 64)
    assert sure is not None
    assert sure > 0.03


def test_equal_models_rarely_seem_to_differ_and_others_do() -> None:
    chance = random.Random(5)

    def found(shift: float) -> float:
        shown = 0
        for _ in range(300):
            hard = [chance.random() for _ in range(40)]
            one, other = (
                {
                    str(task): [float(chance.random() < min(1.0, p + add)) for _ in range(4)]
                    for task, p in enumerate(hard)
                }
                for add in (0.0, shift)
            )
            compared = compare(one, other)
            assert compared is not None
            shown += compared.shown
        return shown / 300

    assert 0.02 <= found(0.0) <= 0.09
    assert found(0.2) > 0.9


@given(some.lists(some.integers(-4, 4), min_size=1, max_size=EXACT_UP_TO))
def test_the_sign_test_is_the_same_in_both_directions_and_never_beyond_its_bounds(differences: list[int]) -> None:
    zero = {str(task): [0.0] for task in range(len(differences))}
    moved = {str(task): [float(one)] for task, one in enumerate(differences)}
    there, back = compare(zero, moved), compare(moved, zero)
    assert there is not None
    assert back is not None
    assert there.chance == pytest.approx(back.chance)
    assert 2.0 ** -len(differences) <= there.chance <= 1.0
    assert there.difference == pytest.approx(mean(map(float, differences)))
    assert there.better == back.worse


def test_the_exact_test_and_the_normal_one_meet() -> None:
    chance = random.Random(3)
    for _ in range(20):
        differences = [chance.gauss(0.3) for _ in range(EXACT_UP_TO)]
        exact = compare(
            {str(task): [0.0] for task in range(14)}, {str(at): [one] for at, one in enumerate(differences)}
        )
        assert exact is not None
        normal = math.erfc(abs(sum(differences)) / math.sqrt(2 * sum(one * one for one in differences)))
        assert math.isclose(exact.chance, normal, abs_tol=0.03)


def test_models_without_a_common_task_are_not_compared() -> None:
    assert compare({"a": [1.0]}, {"b": [0.0]}) is None
    only = compare({"a": [1.0], "b": [0.0]}, {"b": [1.0], "c": []})
    assert only is not None
    assert (only.tasks, only.difference, only.margin, only.shown) == (1, 1.0, math.inf, False)
