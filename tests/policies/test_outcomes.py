"""The outcome of a record alone decides whether it trains."""

from __future__ import annotations

import pytest

from agentrl.errors import UnknownNameError
from agentrl.policies import outcomes
from agentrl.policies.outcomes import CLASS_OF, Outcome, OutcomeClass


def test_every_outcome_has_a_class_other_than_unscored() -> None:
    assert set(CLASS_OF) == set(Outcome)
    assert OutcomeClass.UNSCORED not in CLASS_OF.values()
    for outcome in Outcome:
        assert outcomes.class_of(outcome.value) is CLASS_OF[outcome]
    with pytest.raises(UnknownNameError, match="no outcome 'ok'"):
        outcomes.class_of("ok")


@pytest.mark.parametrize(
    ("kind", "baseline", "trains", "capped"),
    [
        (OutcomeClass.POLICY, True, True, False),
        (OutcomeClass.LIMIT, True, True, True),
        (OutcomeClass.INFRASTRUCTURE, False, False, False),
        (OutcomeClass.UNSCORED, False, False, False),
    ],
)
def test_consequences_of_each_class(kind: OutcomeClass, baseline: bool, trains: bool, capped: bool) -> None:
    assert outcomes.in_baseline(kind) is baseline
    assert outcomes.trains(kind) is trains
    assert outcomes.capped(kind) is capped
    assert outcomes.trains(kind, "mask") is (trains and not capped)
    assert outcomes.trains(kind, "keep") is trains
    assert not outcomes.capped(kind, "keep")


@pytest.mark.parametrize(
    ("status", "reason", "declared", "fault"),
    [
        ("ok", "", {}, ""),
        ("cancelled", "", {}, ""),
        ("tool_error", "", {}, "policy"),
        ("refused", "malformed", {}, "policy"),
        ("refused", "blocked", {}, "policy"),
        ("refused", "quota", {}, "infrastructure"),
        ("timeout", "", {}, "infrastructure"),
        ("timeout", "", {"timeout_means": "policy"}, "policy"),
        ("lost", "server", {}, "infrastructure"),
        ("lost", "server", {"crash_means": "policy"}, "policy"),
        ("lost", "toolbox", {"crash_means": "policy"}, "infrastructure"),
        ("lost", "sampler", {}, "infrastructure"),
    ],
)
def test_cause_of_a_failed_tool_call(status: str, reason: str, declared: dict[str, outcomes.Blame], fault: str) -> None:
    assert outcomes.tool_fault(status, reason, **declared) == fault


def test_a_seat_is_redrawn_twice_and_attempts_on_an_open_breaker_do_not_count() -> None:
    assert [outcomes.may_redraw(redraws) for redraws in range(4)] == [True, True, False, False]
    assert outcomes.may_redraw(9, breaker_open=True)


def test_training_holds_when_too_few_attempts_are_valid() -> None:
    counts = {OutcomeClass.POLICY: 9, OutcomeClass.LIMIT: 1, OutcomeClass.INFRASTRUCTURE: 30, OutcomeClass.UNSCORED: 50}
    assert outcomes.valid_share(counts) == 0.25
    assert outcomes.must_hold(counts, threshold=0.5)
    assert not outcomes.must_hold(counts, threshold=0.2)
    assert not outcomes.must_hold(counts, threshold=0.5, least=41), "too few attempts to judge"
    assert outcomes.valid_share({OutcomeClass.UNSCORED: 3}) is None
    assert not outcomes.must_hold({}, threshold=1.0, least=0)


@pytest.mark.parametrize(
    ("again", "works", "fault"),
    [
        (("timeout", ""), True, "policy"),
        (("timeout", ""), False, "infrastructure"),
        (("ok", ""), True, "infrastructure"),
        (("tool_error", ""), True, "infrastructure"),
        (("lost", "server"), True, "infrastructure"),
        (None, True, "infrastructure"),
    ],
)
def test_an_equal_failure_in_a_fresh_session_is_the_policys_fault_if_others_succeed(
    again: tuple[str, str] | None, works: bool, fault: str
) -> None:
    assert outcomes.fault_on_fresh_session(("timeout", ""), again, works_for_others=works) == fault
