"""A model as a function from micro-batches to columns of their pairs.

Every forward pass of training goes through a scorer, so that what wraps it (precision, parallelism) sees it, and what
changes it (a kind of parallelism) finds one place for each part of the pass.

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
"""A named tuple. A tuple, because what wraps a model looks for tensors in it."""


class Incomplete(NamedTuple):
    """Weights of which each rank of a group has a part of the gradient."""

    names: list[str]
    """Of parameters of the model."""
    complete: Callable[[Tensor], object]
    """Makes their gradients, in one row, the sum of the parts, in place."""
    counts: bool = True
    """Whether they count here in the norm of the whole gradient; another rank may count them."""


class Scorer(torch.nn.Module, Generic[Columns]):
    columns: type[Columns]

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.incomplete: list[Incomplete] = []

    def forward(self, batches: Sequence[MicroBatch]) -> list[Columns]:
        """Of several micro-batches whose backward passes follow when all of them are through."""
        return [self.scored(batch) for batch in batches]

    def scored(self, batch: MicroBatch) -> Columns:
        raise NotImplementedError

    def decoded(self, batch: MicroBatch) -> Tensor:
        """The hidden states after the last layer, of all places."""
        model: Any = self.model
        tree = {} if batch.tree is None else {"tree": batch.tree}
        inputs = {"input_ids": batch.ids}
        if batch.images is not None:
            seen = vision.features_of(model, batch.images.pixels, batch.images.frames)
            inputs = vision.decoder_inputs(model, batch.ids, seen.at(batch.images.shown))
        found: Tensor = model.get_decoder()(
            position_ids=batch.positions, use_cache=False, **inputs, **tree
        ).last_hidden_state
        return found
