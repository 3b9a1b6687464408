"""A step whose micro-batches need too much memory is computed in smaller ones, to the same result."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentrl.policies.loss_settings import Masks, PolicyLoss
from agentrl.training import step_parts
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.packing import rows
from tests.training.conftest import make_learner
from tests.training.test_packing import agree, packed, two_groups
from tests.training.trees import batch_of, group

DECOUPLED = PolicyLoss(ratio="decoupled", weight_cap=2.0, masks=Masks(sequence=(0.01, 100.0)))
OF_RECORDS = PolicyLoss(kind="gspo", aggregation="record-mean")


@pytest.fixture
def batch() -> Batch:
    return batch_of([one for number in (5, 6) for one in two_groups(random.Random(number))])


def with_memory_for(learner: Learner, tokens: int, sizes: list[int]) -> Learner:
    """Backward passes with more tokens fail after the gradients of the last layers exist, as on a full device."""
    layer = learner.model.get_decoder().layers[0]  # type: ignore[union-attr]
    scorer = learner._scorer

    def remember(module: torch.nn.Module, given: tuple[list[MicroBatch]]) -> None:
        sizes.append(given[0][0].ids.numel())

    def full(*_: object) -> None:
        if sizes[-1] > tokens:
            raise torch.OutOfMemoryError("no memory left for the tests")

    scorer.register_forward_pre_hook(remember)
    layer.register_full_backward_hook(full)
    return learner


@pytest.mark.parametrize("loss", [PolicyLoss(), DECOUPLED, OF_RECORDS])
def test_smaller_micro_batches_give_the_same_loss_and_gradient(
    tiny: Path, batch: Batch, loss: PolicyLoss, caplog: pytest.LogCaptureFixture
) -> None:
    sizes: list[int] = []
    expected = packed(make_learner(tiny), batch, loss)
    small = with_memory_for(make_learner(tiny), 150, sizes)
    with caplog.at_level(logging.WARNING):
        agree(packed(small, batch, loss), expected)
    assert max(sizes) > 150 >= sizes[-1]
    (note,) = [record.getMessage() for record in caplog.records if "memory" in record.getMessage()]
    assert note.startswith(f"A micro-batch of {max(sizes)} tokens needs more memory than there is.")
    sizes.clear()
    agree(packed(small, batch, loss), expected)
    assert max(sizes) <= 150, "later steps begin with the lower limit"


def test_limit_is_lowered_once_for_all_optimizer_steps_of_a_batch(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(5)
    four = batch_of([one for name in "abcd" for one in group(chance, 4, name=name)])
    longest = max(len(row) for row in rows(four.trajectories, "tree", row_tokens=1 << 14))
    sizes: list[int] = []
    learner = with_memory_for(make_learner(tiny), longest, sizes)
    with caplog.at_level(logging.WARNING):
        assert learner.train(four, PolicyLoss(), optimizer_steps=2).applied
    assert max(sizes) > longest
    assert sum("needs more memory" in record.getMessage() for record in caplog.records) == 1


def test_a_row_that_alone_needs_too_much_ends_the_step(tiny: Path, batch: Batch) -> None:
    learner = with_memory_for(make_learner(tiny), 3, [])
    with pytest.raises(torch.OutOfMemoryError):
        learner.train(batch, PolicyLoss())


def test_other_errors_are_not_retried(tiny: Path, batch: Batch) -> None:
    learner = make_learner(tiny)
    calls: list[Callable[..., object]] = []

    def broken(module: torch.nn.Module, given: object) -> None:
        calls.append(broken)
        raise RuntimeError("shapes do not fit")

    learner._scorer.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="shapes"):
        learner.train(batch, PolicyLoss())
    assert len(calls) == 1


def test_the_error_of_the_allocator_for_processors_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert step_parts.is_out_of_memory(caught.value)
    assert not step_parts.is_out_of_memory(RuntimeError("shapes do not fit"))
