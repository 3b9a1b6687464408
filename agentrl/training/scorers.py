"""A model as a function from micro-batches to columns of their pairs.

Every forward pass of training goes through a scorer, so that wrappers (precision, parallelism) see every pass, and each
kind of parallelism has one place for each part of the pass that it changes.

Invariant: the first column has the gradient; the others have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import transformers
from torch import Tensor

from agentrl.engines.embedded import vision
from agentrl.training.micro_batch import MicroBatch

Columns = TypeVar("Columns", bound=tuple[Tensor, ...])
"""A named tuple, because wrappers of a model look for tensors in tuples."""


class Incomplete(NamedTuple):
    """Weights for which each rank of a group has only a part of the gradient."""

    names: list[str]
    """Names of parameters of the model."""
    complete: Callable[[Tensor], object]
    """Replaces their gradients, concatenated, by the sum of the parts, in place."""
    counts: bool = True
    """Whether they count here in the norm of the whole gradient; another rank may count them."""


class Scorer(torch.nn.Module, Generic[Columns]):
    columns: type[Columns]

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.incomplete: list[Incomplete] = []

    def forward(self, batches: Sequence[MicroBatch]) -> list[Columns]:
        """Forward passes of several micro-batches, whose backward passes follow when all are done."""
        return [self.scored(batch) for batch in batches]

    def scored(self, batch: MicroBatch) -> Columns:
        raise NotImplementedError

    def decoded(self, batch: MicroBatch) -> Tensor:
        """The hidden states after the last layer, at all places."""
        model: Any = self.model
        tree = {} if batch.tree is None else {"tree": batch.tree}
        inputs = {"input_ids": batch.ids}
        if batch.images is not None:
            seen = vision.features_of(model, batch.images.pixels, batch.images.frames)
            inputs = vision.decoder_inputs(model, batch.ids, seen.at(batch.images.shown))
        tensor: Tensor = model.get_decoder()(
            position_ids=batch.positions, use_cache=False, **inputs, **tree
        ).last_hidden_state
        return tensor
