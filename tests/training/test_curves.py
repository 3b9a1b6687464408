"""Curves are read back as TensorBoard itself reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.training.curves import Curves


def test_every_metric_is_a_curve_over_its_steps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    curves = Curves(tmp_path)
    curves.add(1, {"loss": 0.5, "kl": 0.25})
    curves.add(2, {"loss": -1.5})
    curves.add(7, {"shop/mean": 0.75}, prefix="evaluation")
    curves.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    told = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert told == {
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
