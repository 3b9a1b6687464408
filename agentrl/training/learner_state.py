"""Weights and optimizer state of a learner as a whole: copied before a step, restored after it, moved between devices.

Invariant: restored state has the same bits, and each rank has its own part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import transformers
from torch import Tensor

from agentrl.training.critic import Critic
from agentrl.training.optimizers import OptimizerSet


class State(NamedTuple):
    """A copy of the trained weights and of the optimizer state."""

    weights: dict[str, Tensor]
    optimizers: dict[str, Tensor]
    critic: dict[str, Tensor]


def kept(model: transformers.PreTrainedModel, optimizers: OptimizerSet, critic: Critic | None) -> State:
    """A copy in the memory of the processor, because the device of the model has the least room."""
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    weights = {name: one for name, one in model.state_dict().items() if name in trained}
    of_critic = {} if critic is None else critic.tensors()
    return State(*map(_copied, (weights, optimizers.tensors(), of_critic)))


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items() if not value.is_meta}


def restore(state: State, model: transformers.PreTrainedModel, optimizers: OptimizerSet, critic: Critic | None) -> None:
    # The parts of other pipeline stages are missing here.
    model.load_state_dict(state.weights, strict=False)
    optimizers.load(state.optimizers)
    if critic is not None:
        critic.load(state.critic)


def move(modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> None:
    """Moves weights and state to another device, without gradients."""
    for module in modules:
        module.to(device)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
        for state in optimizer.state.values():
            state |= {name: one.to(device) for name, one in state.items() if isinstance(one, Tensor)}
