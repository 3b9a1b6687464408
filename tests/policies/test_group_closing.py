"""Closing a group: which members count, which train, and with which advantage."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.policies.advantages import Baseline, Overlong, Trained, balanced, normalized, turn_bonus
from agentrl.policies.group_closing import (
    REDRAWN,
    GroupRule,
    Member,
    another_round,
    close,
    may_close,
    refuse_impossible,
    required_valid,
    seat_settled,
)
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.status_tables import RecordStatus

GRPO = GroupRule()


def member(name: str, score: float | None, kind: OutcomeClass = OutcomeClass.POLICY, **more: object) -> Member:
    return Member(name, kind, score, **more)  # type: ignore[arg-type]


def group(*scores: float) -> list[Member]:
    return [member(f"r{place}", score) for place, score in enumerate(scores)]


members = st.lists(
    st.builds(
        Member,
        record=st.uuids().map(str),
        kind=st.sampled_from(OutcomeClass),
        score=st.none() | st.sampled_from((0.0, 0.1, 0.5, 1.0)) | st.floats(-10, 10) | st.just(math.nan),
        turns=st.integers(0, 5),
        tokens=st.integers(0, 30),
        malformed=st.booleans(),
        late=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda one: one.record,
)
rules = st.builds(
    GroupRule,
    estimator=st.sampled_from(("grpo", "leave_one_out")),
    divide_by_std=st.booleans(),
    min_valid=st.none() | st.integers(0, 4),
    limits=st.sampled_from(("cap", "mask", "keep")),
    min_range=st.sampled_from((0.0, 0.5)),
    sign_clip=st.booleans(),
    cap_malformed=st.booleans(),
    turn_spread=st.sampled_from((0.0, 0.2)),
    overlong=st.none() | st.just(Overlong(10, 20, 0.5)),
)


@given(members, rules, st.randoms(use_true_random=False))
def test_invariants_of_closing(some: list[Member], rule: GroupRule, chance: object) -> None:
    closed = close(some, 8, rule)
    assert set(closed.shares) == {one.record for one in some}
    valid = [one for one in some if one.valid]
    assert closed.enough == (len(valid) >= required_valid(8, rule.min_valid))
    assert closed.signal == any(share.advantage for share in closed.shares.values())
    assert bool(closed.why) != closed.signal
    if closed.baseline is not None:
        assert closed.baseline.valid == len(valid)
    for one in some:
        share = closed.shares[one.record]
        if one.kind in (OutcomeClass.INFRASTRUCTURE, OutcomeClass.UNSCORED) or one.late or one.score is None:
            assert share.advantage is None
        if share.advantage is not None:
            assert math.isfinite(share.advantage)
            assert not (share.capped and share.advantage > 0)
    shuffled = list(some)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert close(shuffled, 8, rule) == closed


@given(members, members, rules)
def test_infrastructure_moves_no_baseline(some: list[Member], others: list[Member], rule: GroupRule) -> None:
    failures = [replace(one, record=f"x{one.record}", kind=OutcomeClass.INFRASTRUCTURE) for one in others]
    with_them, without = close([*some, *failures], 8, rule), close(some, 8, rule)
    assert with_them.baseline == without.baseline
    assert {name: with_them.shares[name] for name in without.shares} == without.shares


def test_grpo() -> None:
    closed = close(group(1, 0, 0, 1, 1, 0, 0, 0), 8, GRPO)
    std = statistics.pstdev([1, 0, 0, 1, 1, 0, 0, 0])
    assert closed.baseline == Baseline(0.375, pytest.approx(std), 8)
    assert closed.shares["r0"].advantage == pytest.approx(0.625 / (std + 1e-4))
    assert closed.shares["r1"].advantage == pytest.approx(-0.375 / (std + 1e-4))
    without_std = close(group(1, 0), 2, GroupRule(divide_by_std=False))
    assert [share.advantage for share in without_std.shares.values()] == [0.5, -0.5]


def test_leave_one_out_compares_with_the_others_only() -> None:
    scores = (1.0, 0.0, 0.25, 0.5)
    closed = close(group(*scores), 4, GroupRule(estimator="leave_one_out"))
    for place, score in enumerate(scores):
        others = [other for at, other in enumerate(scores) if at != place]
        assert closed.shares[f"r{place}"].advantage == pytest.approx(score - statistics.mean(others))


@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_scores_are_no_signal(score: float) -> None:
    closed = close(group(*[score] * 7), 7, GRPO)
    assert closed.enough
    assert not closed.signal
    assert "all scores are" in closed.why
    assert closed.baseline is not None


def test_a_minimum_range_removes_the_signal_of_close_scores() -> None:
    assert close(group(0.5, 0.6), 2, GRPO).signal
    assert not close(group(0.5, 0.6), 2, GroupRule(min_range=0.2)).signal


def test_limits_are_in_the_baseline_and_never_gain() -> None:
    some = [member("a", 1.0, OutcomeClass.LIMIT), member("b", 0.0), member("c", 0.0, OutcomeClass.LIMIT)]
    capped = close(some, 3, GRPO)
    assert capped.baseline == Baseline(pytest.approx(1 / 3), pytest.approx(math.sqrt(2) / 3), 3)
    assert capped.shares["a"].advantage == 0
    assert capped.shares["a"].capped
    assert capped.shares["c"].advantage == capped.shares["b"].advantage < 0  # type: ignore[operator]
    masked = close(some, 3, GroupRule(limits="mask"))
    assert masked.baseline == capped.baseline
    assert masked.shares["a"].advantage is masked.shares["c"].advantage is None
    assert close(some, 3, GroupRule(limits="keep")).shares["a"].advantage > 1  # type: ignore[operator]
    nothing_left = [member("a", 1.0, OutcomeClass.LIMIT), member("b", 0.0, OutcomeClass.LIMIT)]
    assert not close(nothing_left, 2, GroupRule(limits="mask")).signal


def test_malformed_calls_and_signs_can_be_capped() -> None:
    some = [member("a", 1.0, malformed=True), member("b", 0.6), member("c", 0.0)]
    assert close(some, 3, GRPO).shares["a"].advantage > 0  # type: ignore[operator]
    assert close(some, 3, GroupRule(cap_malformed=True)).shares["a"].advantage == 0
    clipped = close(group(1.0, 0.9, 0.4, 0.0, 0.0, 0.0), 6, GroupRule(sign_clip=True))
    assert clipped.shares["r2"].advantage == 0, "a wrong answer has no positive advantage"
    assert close(group(1.0, 1.0, 0.6), 3, GroupRule(sign_clip=True)).shares["r2"].advantage == 0


def test_fewer_turns_are_better_when_right_and_worse_when_wrong() -> None:
    bonus = turn_bonus([2, 4, 4, 6, 1, 9], [True, True, True, True, False, False], 0.2)
    assert bonus == pytest.approx([0.1, 0, 0, -0.1, -0.1, 0.1])
    assert turn_bonus([3], [True], 0.2) == [0]
    shaped = close([member("a", 1.0, turns=2), member("b", 1.0, turns=5)], 2, GroupRule(turn_spread=0.2))
    assert shaped.signal, "equal scores have a signal if the turns differ"


def test_records_that_are_almost_too_long_lose_part_of_their_score() -> None:
    soft = Overlong(begins=100, full=200, penalty=0.5)
    assert [soft.of(tokens) for tokens in (0, 100, 150, 200, 900)] == [0, 0, 0.25, 0.5, 0.5]
    lengths = {"short": 50, "long": 150, "longest": 300}
    some = [replace(member(name, 1.0), tokens=tokens) for name, tokens in lengths.items()]
    closed = close(some, 3, GroupRule(divide_by_std=False, overlong=soft))
    assert {name: share.advantage for name, share in closed.shares.items()} == pytest.approx(
        {"short": 0.25, "long": 0.0, "longest": -0.25}
    )
    assert not close(some, 3, GroupRule()).signal
    for begins in (200, 300):
        with pytest.raises(ConfigError, match=r"overlong.begins|must grow over some tokens"):
            Overlong(begins, 200, 0.5)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8))
def test_turn_bonuses_add_up_to_nothing(some: list[tuple[int, bool]]) -> None:
    bonus = turn_bonus([turns for turns, _ in some], [right for _, right in some], 0.2)
    for half in (True, False):
        of_half = [more for more, (_, right) in zip(bonus, some, strict=True) if right is half]
        assert sum(of_half) == pytest.approx(0, abs=1e-12)
        assert all(abs(more) <= 0.1 for more in of_half)


def test_too_few_valid_members_train_no_record() -> None:
    some = [member("a", 1.0), member("b", 0.0), *(member(f"x{i}", None, OutcomeClass.INFRASTRUCTURE) for i in range(6))]
    closed = close(some, 8, GRPO)
    assert not closed.enough
    assert closed.baseline is None
    assert closed.why == "2 of 8 are valid, 4 are needed"
    assert close(some, 8, GroupRule(min_valid=2)).signal
    assert required_valid(5, None) == 3
    assert required_valid(2, 0) == 2


def test_evaluation_closes_with_any_number_of_members() -> None:
    partial = close(group(1.0), 4, GRPO, trains=False)
    assert partial.enough
    assert not partial.signal
    assert partial.baseline == Baseline(1.0, 0.0, 1)
    assert close([], 4, GRPO, trains=False).baseline is None


def test_groups_that_could_never_train_are_refused() -> None:
    refuse_impossible(2, GRPO)
    with pytest.raises(ConfigError, match="nothing to compare"):
        refuse_impossible(1, GRPO)
    with pytest.raises(ConfigError, match="only 4 members"):
        refuse_impossible(4, GroupRule(min_valid=5))


def test_a_seat_is_settled_by_a_score_or_when_no_attempt_can_follow() -> None:
    settled = {status for status in RecordStatus if seat_settled(status, may_redraw=True)}
    assert settled == {RecordStatus.SCORED, RecordStatus.UNSCORABLE}
    assert all(seat_settled(status, may_redraw=False) for status in REDRAWN)
    assert not seat_settled(RecordStatus.UNSCORED, may_redraw=False), "an unscored seat waits for its judge"
    assert may_close([True, True], past_deadline=False)
    assert not may_close([True, False], past_deadline=False)
    assert may_close([True, False], past_deadline=True)
    assert [another_round(rounds, 3) for rounds in (1, 2, 3)] == [True, True, False]


# ---- over a batch ----


def test_an_environment_is_normalized_over_its_tokens() -> None:
    batch = [
        Trained("shop", "g1", 2.0, 10),
        Trained("shop", "g1", -1.0, 30),
        Trained("shop", "g2", 0.5, 60),
        Trained("math", "g3", 5.0, 10),
    ]
    shop = normalized(batch)[:3]
    tokens = [value for value, count in zip(shop, (10, 30, 60), strict=True) for _ in range(count)]
    assert statistics.mean(tokens) == pytest.approx(0, abs=1e-9)
    assert statistics.pstdev(tokens) == pytest.approx(1, rel=1e-5)
    assert normalized(batch)[3] == 5.0, "an environment with one group is not normalized"


def test_normalization_never_rewards_a_capped_record() -> None:
    batch = [Trained("shop", "g1", 0.0, 1, capped=True), Trained("shop", "g2", -1.0, 9)]
    assert normalized(batch)[0] == 0.0
    assert normalized([replace(batch[0], capped=False), batch[1]])[0] > 0
    assert normalized([]) == []


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 50)), max_size=8))
def test_balance_makes_both_signs_equal_and_enlarges_no_advantage(some: list[tuple[float, int]]) -> None:
    batch = [Trained("shop", "g", advantage, tokens) for advantage, tokens in some]
    sides = [math.fsum(max(sign * one.advantage, 0) * one.tokens for one in batch) for sign in (1, -1)]
    found = balanced(batch)
    for one, advantage in zip(batch, found, strict=True):
        assert abs(advantage) <= abs(one.advantage) * (1 + 1e-12)
        assert advantage * one.advantage >= 0, "no advantage changes its sign"
    if min(sides) > 1e-6:
        assert math.fsum(a * one.tokens for a, one in zip(found, batch, strict=True)) == pytest.approx(0, abs=1e-9)
    elif min(sides) == 0:
        assert found == [one.advantage for one in batch], "advantages of a single sign stay unchanged"
