"""The trainer on a GPU computes what it computes on processors in float64."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.training.learner import Learner, LearnerSettings
from tests.training.conftest import TEXTS
from tests.training.test_packing import packed, reference
from tests.training.trees import batch_of, fork, group


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    changes = {"initializer_range": 0.12, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    build_tiny(tmp_path, TEXTS, seed=3, **changes)
    return tmp_path


def test_packed_loss_on_a_gpu_is_the_unmerged_loss_on_processors(tiny: Path) -> None:
    chance = random.Random(1)
    batch = batch_of(group(chance, 4, name="a") + group(chance, 3, name="b", make=fork))
    on_gpu = Learner(tiny, LearnerSettings())
    assert next(on_gpu.model.parameters()).device.type == "cuda"
    unmerged = Learner(tiny, LearnerSettings(), dtype=torch.float64)
    unmerged.model.to("cpu")
    expected, gradient = reference(unmerged, batch)
    found, caught = packed(on_gpu, batch)
    assert found == pytest.approx(expected, abs=1e-5)
    assert caught.keys() == gradient.keys()
    for name, one in caught.items():
        assert float((one.cpu().double() - gradient[name].double()).abs().max()) <= 1e-5, name
