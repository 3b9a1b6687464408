"""What a trainer tells of its newest Step: all of it at once, and nothing of the one before it."""

from __future__ import annotations

import math
from typing import cast

from agentrl.store.documents import Step
from agentrl.telemetry.learning import OF_STEPS
from agentrl.training import step_reporting
from agentrl.unit import Unit
from agentrl.unit.reported_state import ReportedState


def test_a_step_is_told_in_one_piece_and_what_it_does_not_have_is_taken_back() -> None:
    told: list[dict[str, float]] = []
    account = ReportedState(on_change=lambda: told.append(account.take_metrics()))
    first = {metric.name: 1.0 for metric in OF_STEPS} | {"age_mean": 2.0, "age_3_pairs": 7.0}
    step_reporting.to_unit(cast(Unit, account), first, Step(id="l/000004", step=4, base_version=3))
    step_reporting.to_unit(cast(Unit, account), {"reward_mean": 0.5}, Step(id="l/000005", step=5, base_version=4))
    one, other = told
    assert (one["step"], one["base_version"], one["loss"], one["staleness"]) == (4, 3, 1.0, 2.0)
    assert "age_3_pairs" not in one
    assert (other["step"], other["base_version"], other["reward_mean"]) == (5, 4, 0.5)
    assert math.isnan(other["loss"])
