"""The reports of a trainer about its newest step, and the curves as TensorBoard reads them."""

from __future__ import annotations

import math
from typing import cast

from agentrl.store.documents import Step
from agentrl.telemetry.learning_metrics import OF_STEPS
from agentrl.training import step_reporting
from agentrl.unit import Unit
from agentrl.unit.reported_state import ReportedState


def test_a_step_is_reported_at_once_and_clears_the_numbers_that_it_lacks() -> None:
    reported: list[dict[str, float]] = []
    account = ReportedState(on_change=lambda: reported.append(account.take_metrics()))
    first = {metric.name: 1.0 for metric in OF_STEPS} | {"age_mean": 2.0, "age_3_pairs": 7.0}
    step_reporting.to_unit(cast(Unit, account), first, Step(id="l/000004", step=4, base_version=3))
    step_reporting.to_unit(cast(Unit, account), {"reward_mean": 0.5}, Step(id="l/000005", step=5, base_version=4))
    one, other = reported
    assert (one["step"], one["base_version"], one["loss"], one["staleness"]) == (4, 3, 1.0, 2.0)
    assert "age_3_pairs" not in one
    assert (other["step"], other["base_version"], other["reward_mean"]) == (5, 4, 0.5)
    assert math.isnan(other["loss"])
