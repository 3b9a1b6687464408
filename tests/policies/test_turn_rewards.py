"""Advantages of turns: by their definition, and equal to those of records if turns have no rewards."""

from __future__ import annotations

import random

import pytest

from agentrl.policies.advantages import Estimator, advantage_of, baseline_of
from agentrl.policies.group_closing import GroupRule, Member, Played, advantages_by_turn, close
from agentrl.policies.outcomes import OutcomeClass

RESULT, LIMIT = OutcomeClass.POLICY, OutcomeClass.LIMIT


@pytest.mark.parametrize("estimator", ["grpo", "leave_one_out"])
def test_without_rewards_every_turn_has_the_advantage_of_its_record(estimator: Estimator) -> None:
    members = [Played(1.0, 3), Played(0.0, 1), Played(0.25, 2)]
    baseline = baseline_of([one.score for one in members])
    assert baseline is not None
    for one, found in zip(members, advantages_by_turn(members, estimator), strict=True):
        assert found == [advantage_of(one.score, baseline, estimator)] * one.turns


def test_a_turn_is_compared_with_the_rewards_after_the_same_turn_of_the_others() -> None:
    """The second member ends after its first turn. In later turns it counts with its score."""
    members = [Played(1.0, 3, (0.5, 0.0, 0.25)), Played(0.0, 1, (1.0,))]
    found = advantages_by_turn(members, "grpo", divide_by_std=False)
    assert found == [[0.375, 0.625, 0.625], [-0.375]]
    late = advantages_by_turn([Played(1.0, 2, (0.0, 1.0)), Played(0.0, 2)], "grpo", divide_by_std=False, discount=0.5)
    assert late == [[0.5, 1.0], [-0.5, -1.0]], "a reward one turn later counts half"


def test_advantages_do_not_depend_on_the_order_of_the_members() -> None:
    chance = random.Random(3)
    members = [Played(chance.random(), chance.randint(1, 5), [chance.random() for _ in range(3)]) for _ in range(7)]
    straight = advantages_by_turn(members, "grpo", discount=0.9)
    assert advantages_by_turn(members[::-1], "grpo", discount=0.9)[::-1] == straight


def closed(rule: GroupRule, *members: Member) -> dict[str, tuple[float | None, tuple[float, ...]]]:
    found = close(members, len(members), rule)
    assert found.signal
    return {name: (share.advantage, share.turns) for name, share in found.shares.items()}


def test_rewards_give_a_group_of_equal_scores_a_signal() -> None:
    members = (
        Member("a", RESULT, 1.0, turns=2, rewards=(0.0, 1.0)),
        Member("b", RESULT, 1.0, turns=2),
        Member("c", LIMIT, 1.0, turns=1, rewards=(3.0,)),
    )
    assert not close([Member(one.record, one.kind, 1.0, turns=one.turns) for one in members], 3, GroupRule()).signal
    found = closed(GroupRule(divide_by_std=False), *members)
    assert found["a"] == (0.0, pytest.approx((-1 / 3, 2 / 3)))
    assert found["b"] == (0.0, pytest.approx((-4 / 3, -1 / 3)))
    assert found["c"] == (0.0, (0.0,)), "no turn of a record at a limit has a positive advantage"
    assert closed(GroupRule(sign_clip=True), *members)["b"] == (0.0, (0.0, 0.0)), (
        "a right answer has no negative advantage"
    )


def test_a_critic_gets_unchanged_scores_and_rewards() -> None:
    members = (Member("a", RESULT, 1.0, turns=2, rewards=(0.5,)), Member("b", LIMIT, 1.0, turns=1))
    found = close(members, 2, GroupRule(estimator="gae"))
    assert found.signal, "equal scores have a signal for a critic, which may expect other values"
    assert (found.shares["a"].advantage, found.shares["a"].turns) == (1.0, (0.5,))
    assert (found.shares["b"].advantage, found.shares["b"].capped) == (1.0, True)
