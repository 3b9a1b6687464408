"""The learning rate depends on the number of the step alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.policies.learning_rates import Schedule, ScheduleKind

KINDS = st.sampled_from(["constant", "linear", "cosine"])


def test_a_constant_rate_stays() -> None:
    assert {Schedule().share(step) for step in (1, 5, 1000)} == {1.0}


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("cosine", [0.25, 0.5, 0.75, 1, 0.883, 0.6, 0.317, 0.2, 0.2]),
    ],
)
def test_a_rate_rises_evenly_and_falls_as_its_kind_says(kind: ScheduleKind, shares: list[float]) -> None:
    schedule = Schedule(kind=kind, rise=4, last=8, lowest=0.2)
    assert [round(schedule.share(step), 3) for step in range(1, 10)] == shares


@given(kind=KINDS, rise=st.integers(0, 50), more=st.integers(1, 50), lowest=st.floats(0, 1))
def test_shares_rise_to_one_and_then_never_rise_again(kind: ScheduleKind, rise: int, more: int, lowest: float) -> None:
    schedule = Schedule(kind=kind, rise=rise, last=rise + more, lowest=lowest)
    shares = [schedule.share(step) for step in range(1, rise + more + 5)]
    top = max(0, rise - 1)
    assert shares[:top] == sorted(shares[:top])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert all(0 <= share <= 1 for share in shares)
    if rise:
        assert shares[top] == 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_rate_that_falls_needs_a_last_step(kind: ScheduleKind) -> None:
    with pytest.raises(ConfigError, match=r"needs a last step after the 5 steps"):
        Schedule(kind=kind, rise=5, last=5)
