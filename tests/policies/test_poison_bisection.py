"""Bisection finds the group that ends trainers, and clears all others."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.policies.poison_bisection import Death, judge

FOUR = {"a": 1, "b": 2, "c": 3, "d": 4}


def died(order: float, tasks: str) -> Death:
    return Death(order, frozenset(tasks), alone=len(tasks) == 1)


def test_one_death_makes_no_suspects() -> None:
    assert judge(FOUR, [died(1, "abcd")], {}).suspects == ()
    assert judge(FOUR, [died(1, "ab"), died(2, "cd")], {}).suspects == (), "two batches with one death each"


def test_a_batch_that_ends_two_trainers_is_bisected_lighter_half_first() -> None:
    verdict = judge({"a": 9, "b": 2, "c": 3, "d": 4}, [died(1, "abcd"), died(2, "abcd")], {})
    assert verdict.suspects == ("b", "c", "d", "a")
    assert verdict.trial == ("b", "c")


def test_a_group_that_trained_after_a_death_is_cleared() -> None:
    deaths = [died(1, "abcd"), died(2, "abcd")]
    assert judge(FOUR, deaths, {"a": 3, "b": 3}).suspects == ("c", "d")
    assert judge(FOUR, deaths, {"a": 1.5}).suspects == ("b", "c", "d"), "a trainer died with the group after it trained"


def test_only_a_group_that_ended_a_trainer_alone_is_poison() -> None:
    deaths = [died(1, "abcd"), died(2, "abcd")]
    last = judge(FOUR, deaths, {"a": 3, "b": 3, "c": 4})
    assert (last.poison, last.trial) == ((), ("d",)), "two accidents also leave a last suspect"
    assert judge({"d": 4}, deaths, {}).trial == ("d",), "the other groups are not ready any more"
    assert judge(FOUR, [*deaths, died(5, "d")], {"a": 3, "b": 3, "c": 4}).poison == ("d",)
    assert judge({"a": 1}, [died(1, "a"), died(2, "a")], {}).poison == ("a",), "batches of one group"


@given(
    st.integers(1, 16).flatmap(
        lambda n: st.tuples(st.lists(st.integers(1, 99), min_size=n, max_size=n), st.sets(st.integers(0, n - 1)))
    ),
    st.integers(1, 16),
    st.sets(st.integers(0, 20), max_size=2),
)
@example(([1, 1], {1}), 2, {2})
def test_poison_is_found_and_everything_else_is_trained(
    groups: tuple[list[int], set[int]], at_once: int, accidents: set[int]
) -> None:
    """A trainer dies with some groups, and sometimes by accident. Each new trainer continues from the store."""
    weights = {f"t{number:02d}": weight for number, weight in enumerate(groups[0])}
    bad = {f"t{number:02d}" for number in groups[1]}
    ready, deaths, trained, dead = dict(weights), [], {}, set()
    lives = 0
    for turn in range(1000):
        if not ready:
            break
        known = [each for each in deaths if not each.tasks & dead]
        verdict = judge(ready, known, trained)
        if verdict.poison:
            dead |= set(verdict.poison)
            for name in verdict.poison:
                del ready[name]
            continue
        step = set(verdict.trial or sorted(ready)[:at_once])
        if step & bad or turn in accidents:
            lives += 1
            deaths.append(Death(turn, frozenset(step), alone=len(step) == 1))
            continue
        for name in step:
            del ready[name]
            trained[name] = turn
    assert not ready, "every group ends as trained or dead"
    assert bad <= dead
    # Two accidents with a group look like poison. One is enough if the group was in steps that died of another group.
    assert len(dead - bad) <= (len(accidents) if bad else len(accidents) // 2)
    halvings = math.ceil(math.log2(max(2, min(at_once, len(weights)))))
    assert lives <= len(bad) * (3 + halvings) + 3 * len(accidents)


def test_a_heaviest_poison_costs_one_more_death() -> None:
    weights = {f"t{number}": number for number in range(8)}
    all_groups = frozenset(weights)
    deaths, trained, lives = [Death(0, all_groups), Death(1, all_groups)], {}, 2
    for turn in range(2, 20):
        left = {name: weight for name, weight in weights.items() if name not in trained}
        verdict = judge(left, deaths, trained)
        if verdict.poison:
            break
        if "t7" in verdict.trial:
            lives += 1
            deaths.append(Death(turn, frozenset(verdict.trial), alone=len(verdict.trial) == 1))
        else:
            trained |= dict.fromkeys(verdict.trial, turn)
    assert verdict.poison == ("t7",)
    assert lives == 3
