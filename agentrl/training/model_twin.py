"""A second model with the same modules, for weights of another moment. It computes beside the training.

Invariants:
- it has no permanent weights of its own: unchanged weights are shared with the model, and it has memory for the others
  only while it is filled;
- changes to it do not affect the model, even where both share a weight.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor


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
