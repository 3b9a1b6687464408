"""Weights and optimizer state of a learner as a whole: copied before a step, restored after it, moved between devices.

A twin is a second model with the same modules, for weights of another moment. It computes beside the training.

Invariants:
- Restored state has the same bits, and each rank has its own part.
- it has no permanent weights of its own: unchanged weights are shared with the model, and it has memory for the others
  only while it is filled;
- changes to it do not affect the model, even where both share a weight.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from agentrl.training.critic import Critic
from agentrl.training.optimizers import OptimizerSet


class Twin:
    """Used by one thread at a time."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        """Call this in the thread that trains, because temporary changes that it makes to modules must not be
        copied."""
        self._dtype = model.dtype
        self._own = {
            name: torch.nn.Parameter(torch.empty(0, dtype=one.dtype), requires_grad=False)
            for name, one in model.named_parameters()
            if one.requires_grad
        }
        # Objects in this memo are shared instead of copied.
        known: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers())}
        known |= {id(one): self._own[name] for name, one in model.named_parameters() if name in self._own}
        self._model = copy.deepcopy(model, known)

    @contextlib.contextmanager
    def filled(self, weights: Mapping[str, Tensor]) -> Iterator[transformers.PreTrainedModel]:
        """The model with these weights, under the model's own names."""
        for name, one in self._own.items():
            one.data = weights[name].detach().to(one.dtype)
        try:
            yield self._model
        finally:
            for one in self._own.values():
                one.data = one.new_empty(0)


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
