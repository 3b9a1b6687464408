"""The circuit breaker opens, probes and closes, with a test clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.policies.status_tables import BreakerStatus
from agentrl.toolbox.circuit_breaker import Breaker, BreakerRule, Permit

RULE = BreakerRule(share=0.5, least=20, window_s=60.0, open_s=5.0, open_most_s=12.0, probes=3)


def calls(breaker: Breaker, *, good: int = 0, bad: int = 0, at: float = 0.0) -> None:
    for failed in [False] * good + [True] * bad:
        permit = breaker.admit(at)
        assert permit is not None
        breaker.ended(permit, at, failed=failed)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(RULE)
    calls(breaker, bad=20, at=at)
    assert breaker.state(at) is BreakerStatus.OPEN
    return breaker


def probes(breaker: Breaker, at: float, number: int = 3) -> list[Permit]:
    permits = [breaker.admit(at) for _ in range(number)]
    found = [permit for permit in permits if permit is not None]
    assert len(found) == number
    return found


def test_it_opens_after_enough_calls_of_which_most_failed() -> None:
    few = Breaker(RULE)
    calls(few, bad=19)
    assert few.state(0) is BreakerStatus.CLOSED
    half = Breaker(RULE)
    calls(half, good=10, bad=10)
    assert half.state(0) is BreakerStatus.CLOSED
    calls(half, bad=1)
    assert half.state(0) is BreakerStatus.OPEN


def test_old_failures_are_forgotten() -> None:
    breaker = Breaker(RULE)
    calls(breaker, bad=19, at=0)
    calls(breaker, bad=1, at=61)
    assert breaker.state(61) is BreakerStatus.CLOSED


def test_an_open_breaker_refuses_with_the_time_to_wait() -> None:
    breaker = opened()
    assert breaker.admit(4.9) is None
    assert breaker.wait_s(2.0) == 3.0
    assert breaker.state(5.0) is BreakerStatus.HALF_OPEN


def test_good_probes_close_it_and_clear_its_counts() -> None:
    breaker = opened()
    for permit in probes(breaker, 5.0):
        breaker.ended(permit, 5.1, failed=False)
    assert breaker.state(5.1) is BreakerStatus.CLOSED
    calls(breaker, bad=19, at=5.2)
    assert breaker.state(5.2) is BreakerStatus.CLOSED


def test_a_half_open_breaker_admits_few_calls_at_once() -> None:
    breaker = opened()
    first, *_ = probes(breaker, 5.0)
    assert breaker.admit(5.0) is None
    breaker.abandoned(first)
    assert breaker.admit(5.0) is not None


def test_a_failed_probe_doubles_the_open_time_up_to_a_limit() -> None:
    breaker, at, lengths = opened(), 5.0, []
    for _ in range(3):
        breaker.ended(probes(breaker, at)[0], at, failed=True)
        lengths.append(breaker.wait_s(at))
        at += lengths[-1]
    assert lengths == [10.0, 12.0, 12.0]


def test_a_call_of_an_earlier_state_does_not_count() -> None:
    breaker = Breaker(RULE)
    late = breaker.admit(0)
    assert late is not None
    calls(breaker, bad=20)
    breaker.ended(late, 6.0, failed=True)
    assert breaker.state(6.0) is BreakerStatus.HALF_OPEN
    breaker.ended(late, 6.0, failed=False)
    probes(breaker, 6.0)


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.sampled_from(["good", "bad", "gone"])), max_size=200))
def test_after_any_events_it_recovers_with_good_calls(events: list[tuple[float, str]]) -> None:
    breaker, now = Breaker(RULE), 0.0
    for step, kind in events:
        now += step
        permit = breaker.admit(now)
        assert (permit is None) == (breaker.wait_s(now) > 0.0)
        if permit is not None and kind == "gone":
            breaker.abandoned(permit)
        elif permit is not None:
            breaker.ended(permit, now, failed=kind == "bad")
    now += RULE.open_most_s
    for _ in range(RULE.probes):
        calls(breaker, good=1, at=now)
    assert breaker.admit(now) is not None
