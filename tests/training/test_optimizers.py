"""Optimizers shrink the weights that they should, and their state survives another assignment to groups."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training import checkpoints
from agentrl.training.checkpoints import Progress
from agentrl.training.learner import Learner
from agentrl.training.optimizers import AdamW, Kind
from tests.training.conftest import make_learner
from tests.training.test_packing import two_groups
from tests.training.trees import batch_of


def moved_by_decay_alone(learner: Learner) -> set[str]:
    """The parameters that a step with a gradient of zero changes."""
    before = {name: value.clone() for name, value in learner.model.named_parameters()}
    for parameter in learner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.optimizers.step()
    return {name for name, value in learner.model.named_parameters() if not torch.equal(before[name], value)}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_inner_matrices_decay_unless_all_do(tiny: Path, kind: Kind) -> None:
    settings = {"optimizer": kind, "weight_decay": 0.1, "learning_rate": 1e-2}
    learner = make_learner(tiny, exact=False, **settings)
    every = {name for name, _ in learner.model.named_parameters()}
    inner = {name for name in every if "norm" not in name and "embed" not in name}
    assert set() < inner < every
    assert moved_by_decay_alone(learner) == inner
    assert moved_by_decay_alone(make_learner(tiny, exact=False, decay_all=True, **settings)) == every
    assert moved_by_decay_alone(make_learner(tiny, exact=False, optimizer=kind, learning_rate=1e-2)) == set()


def test_adamw_follows_its_formula(tiny: Path) -> None:
    learner = make_learner(
        tiny, adamw=AdamW(betas=(0.8, 0.7), eps=1e-3), learning_rate=1e-2, weight_decay=0.1, max_gradient_norm=1e9
    )
    name = "model.layers.0.mlp.up_proj.weight"
    parameter = dict(learner.model.named_parameters())[name]
    expected = parameter.detach().clone()
    mean, square = torch.zeros_like(expected), torch.zeros_like(expected)
    for step in (1, 2, 3):
        gradient = torch.full_like(expected, 0.5 * step) * expected.sign()
        mean, square = 0.8 * mean + 0.2 * gradient, 0.7 * square + 0.3 * gradient**2
        shrunk = expected * (1 - 1e-2 * 0.1)
        expected = shrunk - 1e-2 * (mean / (1 - 0.8**step)) / ((square / (1 - 0.7**step)).sqrt() + 1e-3)
        parameter.grad = gradient
        learner.optimizers.step()
    assert float((parameter - expected).detach().abs().max()) < 1e-12


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_checkpoint_continues_exactly_when_decay_is_switched_on(tiny: Path, tmp_path: Path, kind: Kind) -> None:
    """Decay puts parameters into other groups; state belongs to names."""
    batch = batch_of(two_groups(random.Random(2)))
    first = make_learner(tiny, exact=False, optimizer=kind, learning_rate=1e-3)
    assert first.train(batch, PolicyLoss()).applied
    checkpoints.write_checkpoint(tmp_path / "kept", first, Progress(step=1, version=0))
    second = make_learner(tmp_path / "kept", exact=False, optimizer=kind, learning_rate=1e-3, weight_decay=1e-30)
    assert checkpoints.restore_optimizers(tmp_path / "kept", second)
    for learner in (first, second):
        assert learner.train(batch, PolicyLoss()).applied
    others = dict(second.model.named_parameters())
    assert all(torch.equal(value, others[name]) for name, value in first.model.named_parameters())
