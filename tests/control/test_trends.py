"""Trends that each sample updates agree with least squares over all samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.control.state.trends import LEAST_SAMPLES, TrendSeries

LENGTH = 40
Samples = list[tuple[float, float]]

gaps = st.floats(0.5, 30.0)
values = st.one_of(st.floats(0, 1e12), st.sampled_from([0.0, 2.0**30]))


@given(st.lists(st.tuples(gaps, values), min_size=1, max_size=200), st.floats(0.0, 300.0))
def test_updated_trend_equals_least_squares_over_the_kept_samples(steps: Samples, skip_s: float) -> None:
    series, now = TrendSeries(LENGTH, 1.0, skip_s), 0.0
    for gap, value in steps:
        now += gap
        series.add(now, value)
        kept = [(t, v) for t, v in zip(series.times, series.values, strict=True) if t >= skip_s]
        found = series.trend(0.0)
        assert (found is None) == (len(kept) < LEAST_SAMPLES)
        if found is None:
            continue
        third = kept[0][0] + (kept[-1][0] - kept[0][0]) * 2 / 3
        slope, fit = least_squares(kept)
        recent, _ = least_squares([sample for sample in kept if sample[0] >= third])
        # Rounding errors grow with the largest value that was ever in the window.
        error = 1e-6 * max(value for _, value in kept) + 1e-9
        assert found.slope_per_h / 3600 == pytest.approx(slope, abs=error)
        assert found.recent_slope_per_h / 3600 == pytest.approx(recent, abs=error)
        assert found.window_s == kept[-1][0] - kept[0][0]
        assert (found.first, found.last) == (kept[0][1], kept[-1][1])
        if max(value for _, value in kept) - min(value for _, value in kept) > 1.0:
            assert found.fit == pytest.approx(fit, abs=1e-3)


def test_samples_that_come_too_soon_are_left_out() -> None:
    series = TrendSeries(LENGTH, 1.0, 0.0)
    assert [series.add(at, at) for at in (0.0, 0.5, 1.0, 1.9, 2.0)] == [True, False, True, False, True]
    assert list(series.times) == [0.0, 1.0, 2.0]


def test_a_short_window_has_no_trend() -> None:
    series = TrendSeries(LENGTH, 1.0, 0.0)
    for at in range(LEAST_SAMPLES + 1):
        series.add(float(at), float(at))
    assert series.trend(100.0) is None
    found = series.trend(5.0)
    assert found is not None
    assert math.isclose(found.slope_per_h, 3600.0)


def least_squares(samples: Samples) -> tuple[float, float]:
    count = len(samples)
    mean_t, mean_v = sum(t for t, _ in samples) / count, sum(v for _, v in samples) / count
    spread_t = sum((t - mean_t) ** 2 for t, _ in samples)
    spread_v = sum((v - mean_v) ** 2 for _, v in samples)
    if spread_t == 0 or spread_v == 0:
        return 0.0, 0.0
    both = sum((t - mean_t) * (v - mean_v) for t, v in samples)
    return both / spread_t, both * both / (spread_t * spread_v)
