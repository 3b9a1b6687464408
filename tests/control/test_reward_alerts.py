"""Alerts about an exploited reward in a run with many environments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.config.reward_watch import RewardWatch
from agentrl.control.alerts import reward_rules
from agentrl.control.state import unit_metrics
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.policies.reward_watch import Watched
from agentrl.protocol.rows import UnitRow, UnitState
from agentrl.steward.reward_watch import metrics

ENVIRONMENTS = 80
RECORDS = [
    Watched(f"g{place // 4}", f"t{place // 4}", float(place % 4), 10 + place % 4 + place // 2, {"agreement": 0.5})
    for place in range(128)
]


def reported() -> Any:
    """The state of the coordinator after two reports: one without records, and one with enough of them."""
    store = MetricStore()
    for records in ([], RECORDS):
        for number in range(ENVIRONMENTS):
            store.update("steward-0", 1, metrics(f"e{number}", records, RewardWatch(), ()), 1.0)
    row = UnitRow("steward-0", "steward", "steward", UnitState.READY)
    return cast(Any, SimpleNamespace(units={"steward-0": row}, metrics=store))


def test_each_environment_has_its_alerts() -> None:
    for condition in (reward_rules.longer_is_better, reward_rules.votes_split):
        assert len(list(condition(reported(), (), 1.0))) == ENVIRONMENTS


def test_numbers_that_were_dropped_raise_no_alert_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_metrics, "MOST_METRICS", 500)
    for condition in (reward_rules.longer_is_better, reward_rules.votes_split):
        assert len(list(condition(reported(), (), 1.0))) < ENVIRONMENTS
