"""A second model of the same modules, for weights of another moment: what it computes, it computes beside the training.

Invariants:
- it has no numbers of its own: weights that do not change are those of the model, and for the others it has room only
  while it is filled;
- what is done to it is not seen by the model, also where both share a weight.
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
        """A call of the thread that trains: what it changes in modules for a while must not be copied."""
        self._dtype = model.dtype
        self._own = {
            name: torch.nn.Parameter(torch.empty(0, dtype=one.dtype), requires_grad=False)
            for name, one in model.named_parameters()
            if one.requires_grad
        }
        # What is in here already is not copied but taken as it is.
        known: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers())}
        known |= {id(one): self._own[name] for name, one in model.named_parameters() if name in self._own}
        self._model = copy.deepcopy(model, known)

    @contextlib.contextmanager
    def filled(self, weights: Mapping[str, Tensor]) -> Iterator[transformers.PreTrainedModel]:
        """The model with these weights, by the names that it has for them."""
        for name, one in self._own.items():
            one.data = weights[name].detach().to(one.dtype)
        try:
            yield self._model
        finally:
            for one in self._own.values():
                one.data = one.new_empty(0)
