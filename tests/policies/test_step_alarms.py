"""The metrics of a step compared with those before it."""

from __future__ import annotations

from itertools import accumulate

import pytest

from agentrl.policies import step_alarms

HEALTHY = {
    "entropy": 1.0,
    "reward_mean": 0.4,
    "gradient_norm": 0.8,
    "groups": 7.0,
    "groups_without_signal": 3.0,
    "truncation_share": 0.05,
    "tool_calls_per_record": 3.0,
    "tools/shop/lookup/infrastructure_share": 0.0,
    "tokens_per_record": 60.0,
    "evaluation": 0.5,
}


def series(count: int = 60, **of: list[float]) -> list[dict[str, float]]:
    """Healthy steps. A list in `of` replaces the last values of its metric."""
    steps = [dict(HEALTHY) for _ in range(count)]
    for name, values in of.items():
        for step, value in zip(steps[-len(values) :], values, strict=True):
            step[name] = value
    return steps


def last(steps: list[dict[str, float]]) -> dict[str, float]:
    return step_alarms.against(steps[:-1], steps[-1])


def test_a_steady_series_shows_no_change() -> None:
    assert last(series()) == pytest.approx(
        {
            "gradient_over_median": 1.0,
            "zero_variance_lately": 0.3,
            "groups_without_signal_lately": 30.0,
            "groups_lately": 100.0,
            "truncation_rise": 0.0,
            "tool_calls_kept": 1.0,
            "length_jump": 1.0,
            "evaluation_fall": 0.0,
            "tool_failures_rise": 0.0,
            "entropy_kept": 1.0,
            "reward_gain": 0.0,
            "reward_lately": 0.4,
            "reward_lately_margin": 0.0,
        }
    )


def test_few_steps_give_few_numbers() -> None:
    assert last(series(2)) == {"evaluation_fall": 0.0}
    assert "entropy_kept" not in last(series(50))
    assert step_alarms.against([], {}) == {}


def test_changes_against_earlier_steps_are_numbers() -> None:
    assert last(series(entropy=[0.3] * 5))["entropy_kept"] == pytest.approx(0.3)
    assert last(series(gradient_norm=[16.0]))["gradient_over_median"] == pytest.approx(20.0)
    dull = last(series(groups=[0.0] * 10, groups_without_signal=[1.0] * 10))
    assert (dull["zero_variance_lately"], dull["groups_without_signal_lately"], dull["groups_lately"]) == (1, 10, 10)
    assert last(series(truncation_share=[0.65] * 10))["truncation_rise"] == pytest.approx(0.6)
    assert last(series(tool_calls_per_record=[0.0] * 5))["tool_calls_kept"] == 0.0
    failing = {"tools/shop/lookup/infrastructure_share": [0.5] * 10, "tools/shop/pay/infrastructure_share": [0.1] * 60}
    assert last(series(**failing))["tool_failures_rise"] == pytest.approx(0.5), "the rise of the worst tool"
    assert last(series(tokens_per_record=[180.0] * 3))["length_jump"] == pytest.approx(3.0)
    assert last(series(tokens_per_record=[20.0] * 3))["length_jump"] == pytest.approx(1 / 3)
    assert last(series(evaluation=[0.2]))["evaluation_fall"] == pytest.approx(0.3)
    assert last(series(reward_mean=[0.7] * 5))["reward_gain"] == pytest.approx(0.3)


def test_one_unusual_batch_or_slow_growth_is_not_a_jump() -> None:
    assert last(series(tokens_per_record=[600.0]))["length_jump"] == pytest.approx(1.0)
    grows = list(accumulate([1.02] * 60, lambda length, by: length * by, initial=60.0))[1:]
    assert last(series(tokens_per_record=grows))["length_jump"] < 1.4


def test_tools_that_were_never_used_are_not_missed() -> None:
    assert "tool_calls_kept" not in last(series(tool_calls_per_record=[0.0] * 60))
