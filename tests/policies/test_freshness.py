"""Bounds on age, fixed and decayed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.policies.freshness import Decay, Freshness


def test_the_oldest_that_trains() -> None:
    assert Freshness("drop", 2).oldest == 2
    assert Freshness("wait", 2, hard_bound=5).oldest == 2
    assert Freshness("decay", 2, hard_bound=5).oldest == 5
    assert Freshness("decay", 2).oldest == 2
    assert [Freshness("drop", 1).allows(age) for age in (0, 1, 2)] == [True, True, False]


def test_invalid_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        Freshness("drop", -1)
    with pytest.raises(ConfigError, match="smaller than the bound"):
        Freshness("decay", 3, hard_bound=2)
    with pytest.raises(ConfigError, match="must be below 1"):
        Decay(out_of_date_decay=0.5, epsilon=0.3, cap=4)
    with pytest.raises(ConfigError, match="at least 1"):
        Decay(out_of_date_decay=0.5, cap=0.5)
    with pytest.raises(ConfigError, match="not be negative"):
        Decay(out_of_date_decay=-1)


def test_decayed_bounds_begin_wide_and_end_at_the_plain_ones() -> None:
    decay = Decay(out_of_date_decay=0.5)
    assert decay.bounds(7, 7) == pytest.approx((1 - 0.8, 1 + 1.2))
    assert decay.bounds(5, 7) == pytest.approx((1 - 0.8 * math.exp(-1), 1 + 1.2 * math.exp(-1)))
    assert decay.bounds(0, 100) == pytest.approx((0.8, 1.3))
    assert decay.bounds(9, 7) == decay.bounds(7, 7), "a version from the future has age 0"
    strict = Decay(out_of_date_decay=0.5, strict=True)
    assert strict.bounds(7, 7) == pytest.approx((0.8, 1.3))


@given(st.floats(0, 5), st.floats(1, 4), st.floats(0, 50), st.floats(0, 50))
def test_bounds_only_tighten_with_age(rate: float, cap: float, age: float, more: float) -> None:
    decay = Decay(out_of_date_decay=rate, cap=cap)
    (lower, upper), (later_lower, later_upper) = decay.bounds(0, age), decay.bounds(0, age + more)
    assert 0 < lower <= later_lower <= 1 <= later_upper <= upper
    assert later_lower == pytest.approx(0.8) or later_lower < 0.8
