"""Lower precision and recomputed layers change what a step costs, and not what it learns."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from accelerate.state import AcceleratorState

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner
from agentrl.training.precision import FIRST_SCALE, HIGHEST_SCALE, STEPS_BEFORE_GROWTH, LossScale
from tests.training.conftest import make_learner
from tests.training.test_packing import agree, packed, two_groups
from tests.training.trees import batch_of


@pytest.fixture(autouse=True)
def _precision_is_free() -> Iterator[None]:
    """Each process has one precision, but each test its own."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.fixture
def batch() -> Batch:
    return batch_of(two_groups(random.Random(5)))


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputed_results_give_the_same_gradient(tiny: Path, batch: Batch, how: str) -> None:
    agree(packed(make_learner(tiny, recompute=how), batch), packed(make_learner(tiny), batch))
    loss, gradient = packed(make_learner(tiny, exact=False), batch)
    again, other = packed(make_learner(tiny, exact=False, recompute=how), batch)
    assert again == loss
    assert all(torch.equal(other[name], one) for name, one in gradient.items())


def test_recomputed_layers_keep_fewer_tensors(tiny: Path, batch: Batch) -> None:
    def kept_bytes(learner: Learner) -> int:
        kept = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            packed(learner, batch)
        return kept

    none, some, full = (
        kept_bytes(make_learner(tiny, exact=False, recompute=how)) for how in ("none", "selective", "full")
    )
    assert some < 0.8 * none
    assert full < 0.5 * none


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_16_bits_keep_weights_gradients_and_optimizer_state_in_float32(
    tiny: Path, batch: Batch, precision: str
) -> None:
    exact = packed(make_learner(tiny), batch)
    AcceleratorState._reset_state()
    learner = make_learner(tiny, exact=False, precision=precision)
    loss, gradient = packed(learner, batch)
    assert {one.dtype for one in gradient.values()} == {torch.float32}
    assert loss == pytest.approx(exact[0], abs=5e-2)
    assert alike(gradient, exact[1]) > (0.99 if precision == "bfloat16" else 0.9999)
    assert learner.train(batch, PolicyLoss()).applied
    assert {one.dtype for one in learner.model.parameters()} == {torch.float32}
    assert {one.dtype for one in learner.optimizers.tensors().values() if one.numel() > 1} == {torch.float32}


def alike(gradient: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """1 if both have the same direction."""
    together, expected = (torch.cat([of[name].double().flatten() for name in gradient]) for of in (gradient, other))
    return float(torch.nn.functional.cosine_similarity(together, expected, dim=0))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_16_bits_compute_in_16_bits(tiny: Path, batch: Batch, precision: str) -> None:
    learner = make_learner(tiny, exact=False, precision=precision)
    seen: set[torch.dtype] = set()
    layer = learner.model.get_decoder().layers[0].self_attn.o_proj  # type: ignore[union-attr]
    layer.register_forward_hook(lambda module, given, found: seen.add(found.dtype))
    packed(learner, batch)
    assert seen == {getattr(torch, precision)}


def test_scale_of_the_loss_keeps_gradients_that_float16_has_no_numbers_for(tiny: Path) -> None:
    small = batch_of([msgspec.structs.replace(one, advantage=1e-6) for one in two_groups(random.Random(5))])
    exact = packed(make_learner(tiny), small)[1]
    scaled, plain = (make_learner(tiny, exact=False, precision="float16") for _ in range(2))
    plain._scale.value = 1.0
    assert alike(packed(scaled, small)[1], exact) > 0.9999
    assert alike(packed(plain, small)[1], exact) < 0.9


def test_gradient_that_overflows_is_computed_again_with_half_the_scale(tiny: Path, batch: Batch) -> None:
    learner, other = (make_learner(tiny, exact=False, precision="float16") for _ in range(2))
    learner._scale.value = 2.0**40
    done = learner.train(batch, PolicyLoss(), optimizer_steps=2)
    assert done.applied
    found = learner._scale.value
    assert 1 < found < 2.0**40
    assert done.metrics["loss_scale_overflows"] == 40 - math.log2(found)
    assert done.metrics["loss_scale"] == found
    other._scale.value = found
    assert other.train(batch, PolicyLoss(), optimizer_steps=2).metrics["loss_scale_overflows"] == 0
    weights = dict(other.model.named_parameters())
    assert all(torch.equal(one, weights[name]) for name, one in learner.model.named_parameters())


def test_loss_that_is_not_finite_leaves_the_scale(tiny: Path, batch: Batch) -> None:
    learner = make_learner(tiny, exact=False, precision="float16")
    broken = msgspec.structs.replace(batch.trajectories[0], advantage=math.inf)
    done = learner.train(batch_of([broken, *batch.trajectories[1:]]), PolicyLoss())
    assert not done.applied
    assert (done.metrics["loss_scale"], done.metrics["loss_scale_overflows"]) == (FIRST_SCALE, 0)


def test_gradient_that_no_scale_mends_leaves_the_scale_of_later_batches(tiny: Path, batch: Batch) -> None:
    learner = make_learner(tiny, exact=False, precision="float16")
    weight = next(one for one in learner.model.parameters() if one.requires_grad)
    broken = weight.register_hook(lambda gradient: gradient * math.nan)
    done = learner.train(batch, PolicyLoss())
    assert not done.applied
    assert (done.metrics["loss_scale"], done.metrics["loss_scale_overflows"]) == (FIRST_SCALE, 16)
    broken.remove()
    assert learner.train(batch, PolicyLoss()).metrics["loss_scale_overflows"] == 16


def test_scale_grows_after_many_steps_up_to_a_limit() -> None:
    scale = LossScale("float16")
    for _ in range(STEPS_BEFORE_GROWTH):
        assert scale.value == FIRST_SCALE
        scale.stepped()
    assert scale.value == 2 * FIRST_SCALE
    scale.fall()
    for _ in range(100 * STEPS_BEFORE_GROWTH):
        scale.stepped()
    assert scale.value == HIGHEST_SCALE
    while scale.can_fall:
        scale.fall()
    assert scale.value == 1
    assert not LossScale("bfloat16").can_fall
    assert LossScale("float32").metrics() == {}
