"""The trainer on a GPU computes what it computes on processors in float64."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training import weight_files
from agentrl.training.activation_checkpoints import Recompute
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.lora import Adapters
from agentrl.training.optimizers import AdamW
from agentrl.training.precision import Precision
from agentrl.training.sharding import Keeping
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
    """Reset the precision: a process can set it only once, but each test sets its own."""
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


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_16_bits_on_a_gpu_stay_near_float64(tiny: Path, precision: Precision) -> None:
    chance = random.Random(2)
    batch = batch_of(group(chance, 4, name="a") + group(chance, 3, name="b", make=fork))
    expected, gradient = reference(unmerged(tiny), batch)
    AcceleratorState._reset_state()
    learner = Learner(tiny, LearnerSettings(precision=precision))
    found, caught = packed(learner, batch)
    assert {one.dtype for one in caught.values()} == {torch.float32}
    assert found == pytest.approx(expected, abs=5e-2)
    together = torch.cat([one.cpu().double().flatten() for one in caught.values()])
    exact = torch.cat([gradient[name].double().flatten() for name in caught])
    alike = float(torch.nn.functional.cosine_similarity(together, exact, dim=0))
    assert alike > (0.99 if precision == "bfloat16" else 0.999)
    assert learner.train(batch, PolicyLoss()).applied


def test_gradient_that_overflows_float16_is_computed_again(tiny: Path) -> None:
    batch = batch_of(group(random.Random(2), 4, name="a"))
    learner = Learner(tiny, LearnerSettings(precision="float16"))
    learner._scale.value = 2.0**40
    done = learner.train(batch, PolicyLoss())
    assert done.applied
    assert done.metrics["loss_scale_overflows"] > 0
    assert learner._scale.value == 2.0 ** (40 - done.metrics["loss_scale_overflows"])


def test_adapters_learn_on_a_gpu_and_are_published_merged(tiny: Path) -> None:
    batch = batch_of(group(random.Random(2), 4, name="a"))
    learner = Learner(tiny, LearnerSettings(adapters=Adapters(rank=4, alpha=8.0), learning_rate=1e-2))
    probe = [[5, 6, 7, 8, 9]]
    before, weights = learner.log_probs(probe)[0], learner.weights()
    losses = [learner.train(batch, "supervised").metrics["loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    after = learner.weights()
    assert any(not torch.equal(after[name], one) for name, one in weights.items())
    assert learner.log_probs(probe)[0] != before
    prepared = weight_files.prepare(learner, 1, (), torch.float32)
    taken = prepared.snapshot.take()
    assert all(torch.allclose(taken[name], after[name].cpu(), atol=1e-6) for name in taken)


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_in_the_memory_of_the_host_train_the_same(tiny: Path, compiled: bool) -> None:
    """This is FSDP2 with offloading, in a group of one rank."""
    batch = batch_of(group(random.Random(3), 4, name="a") + group(random.Random(4), 3, name="b", make=fork))
    # With a small eps, Adam would amplify differences between gradients that are only rounding.
    settings = LearnerSettings(learning_rate=1e-3, adamw=AdamW(eps=1e-4))
    plain = Learner(tiny, settings)
    learner = Learner(tiny, replace(settings, compiled=compiled, keeping=Keeping(on_host=True)))
    for one in (plain, learner):
        assert one.train(batch, PolicyLoss()).applied
    expected = plain.weights()
    for name, weight in learner.weights().items():
        assert float((weight.cpu() - expected[name].cpu()).abs().max()) < 1e-4, name
