"""The trainer on a GPU computes what it computes on processors in float64."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.activation_checkpoints import Recompute
from agentrl.training.learner import Learner, LearnerSettings
from tests.training.conftest import TEXTS
from tests.training.test_packing import packed, reference
from tests.training.trees import batch_of, fork, group

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    changes = {"initializer_range": 0.12, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    build_tiny(tmp_path, TEXTS, seed=3, **changes)
    return tmp_path


@pytest.fixture(autouse=True)
def _precision_is_free() -> None:
    """Each process has one precision, but each test its own."""
    AcceleratorState._reset_state()


def unmerged(tiny: Path) -> Learner:
    learner = Learner(tiny, LearnerSettings(), dtype=torch.float64)
    learner.model.to("cpu")
    return learner


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("compiled", [False, True])
def test_packed_loss_on_a_gpu_is_the_unmerged_loss_on_processors(
    tiny: Path, recompute: Recompute, compiled: bool
) -> None:
    chance = random.Random(1)
    batch = batch_of(group(chance, 4, name="a") + group(chance, 3, name="b", make=fork))
    on_gpu = Learner(tiny, LearnerSettings(recompute=recompute, compiled=compiled))
    assert next(on_gpu.model.parameters()).device.type == "cuda"
    expected, gradient = reference(unmerged(tiny), batch)
    found, caught = packed(on_gpu, batch)
    assert found == pytest.approx(expected, abs=1e-5)
    assert caught.keys() == gradient.keys()
    for name, one in caught.items():
        assert float((one.cpu().double() - gradient[name].double()).abs().max()) <= 1e-5, name


def test_bfloat16_on_a_gpu_stays_near_float64(tiny: Path) -> None:
    chance = random.Random(2)
    batch = batch_of(group(chance, 4, name="a") + group(chance, 3, name="b", make=fork))
    expected, gradient = reference(unmerged(tiny), batch)
    AcceleratorState._reset_state()
    learner = Learner(tiny, LearnerSettings(precision="bfloat16"))
    found, caught = packed(learner, batch)
    assert {one.dtype for one in caught.values()} == {torch.float32}
    assert found == pytest.approx(expected, abs=5e-2)
    together = torch.cat([one.cpu().double().flatten() for one in caught.values()])
    exact = torch.cat([gradient[name].double().flatten() for name in caught])
    assert float(torch.nn.functional.cosine_similarity(together, exact, dim=0)) > 0.99
    assert learner.train(batch, PolicyLoss()).applied
