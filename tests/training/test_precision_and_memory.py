"""Lower precision and recomputed layers change what a step costs, and not what it learns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner
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


def test_bfloat16_keeps_weights_gradients_and_optimizer_state_in_float32(tiny: Path, batch: Batch) -> None:
    exact = packed(make_learner(tiny), batch)
    AcceleratorState._reset_state()
    learner = make_learner(tiny, exact=False, precision="bfloat16")
    loss, gradient = packed(learner, batch)
    assert {one.dtype for one in gradient.values()} == {torch.float32}
    assert loss == pytest.approx(exact[0], abs=5e-2)
    together, expected = (torch.cat([of[name].double().flatten() for name in gradient]) for of in (gradient, exact[1]))
    assert float(torch.nn.functional.cosine_similarity(together, expected, dim=0)) > 0.99
    assert learner.train(batch, PolicyLoss()).applied
    assert {one.dtype for one in learner.model.parameters()} == {torch.float32}
    assert {one.dtype for one in learner.optimizers.tensors().values() if one.numel() > 1} == {torch.float32}


def test_bfloat16_computes_in_bfloat16(tiny: Path, batch: Batch) -> None:
    learner = make_learner(tiny, exact=False, precision="bfloat16")
    seen: set[torch.dtype] = set()
    layer = learner.model.get_decoder().layers[0].self_attn.o_proj  # type: ignore[union-attr]
    layer.register_forward_hook(lambda module, given, found: seen.add(found.dtype))
    packed(learner, batch)
    assert seen == {torch.bfloat16}
