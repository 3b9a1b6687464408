"""The reports of a trainer about its newest step, and the curves as TensorBoard reads them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import cast

import pytest

from agentrl.store.documents import Step
from agentrl.telemetry.learning_metrics import OF_STEPS
from agentrl.training import step_reporting
from agentrl.training.step_reporting import Curves
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


def test_every_metric_is_a_curve_over_its_steps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    curves = Curves(tmp_path)
    curves.add(1, {"loss": 0.5, "kl": 0.25})
    curves.add(2, {"loss": -1.5})
    curves.add(7, {"shop/mean": 0.75}, prefix="evaluation")
    curves.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    found = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert found == {
        "train/loss": [(1, 0.5), (2, -1.5)],
        "train/kl": [(1, 0.25)],
        "evaluation/shop/mean": [(7, 0.75)],
    }


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    curves = Curves(tmp_path / "curves")
    curves.add(1, {"loss": 0.5})
    curves.close()
    assert not (tmp_path / "curves").exists()
