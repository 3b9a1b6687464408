"""A small model for tests, in float64 for tests of exactness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings

TEXTS = ("lookup(item) calculator(expression)", "what do 3 apples and 12 pears cost?", "the answer is 45")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Larger weights than a fresh model's, so that distributions are not uniform."""
    directory = tmp_path_factory.mktemp("model")
    changes = {"initializer_range": 0.12, "hidden_size": 32, "intermediate_size": 64, "head_dim": 16}
    build_tiny(directory, TEXTS, seed=3, **changes)
    return directory


class ExactNorm(torch.nn.Module):
    """The same as the stock module, which always computes in float32."""

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.weight = stock.weight
        self.eps = stock.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class ExactRotation(torch.nn.Module):
    def __init__(self, theta: float, dimension: int) -> None:
        super().__init__()
        self.frequencies = theta ** (-torch.arange(0, dimension, 2, dtype=torch.float64) / dimension)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()


def make_exact(module: torch.nn.Module) -> None:
    """Keeps norms and rotations in float64; every parameter stays the same object."""
    for name, child in list(module.named_children()):
        if type(child).__name__.endswith("RMSNorm"):
            setattr(module, name, ExactNorm(child))
        elif type(child).__name__.endswith("RotaryEmbedding"):
            config: Any = child.config  # type: ignore[union-attr]
            setattr(module, name, ExactRotation(config.rope_parameters["rope_theta"], config.head_dim))
        else:
            make_exact(child)


def make_learner(directory: Path, *, exact: bool = True, **settings: Any) -> Learner:
    learner = Learner(directory, LearnerSettings(**settings), dtype=torch.float64 if exact else torch.float32)
    if exact:
        make_exact(learner.model)
    return learner


@pytest.fixture
def exact(tiny: Path) -> Learner:
    return make_learner(tiny)
