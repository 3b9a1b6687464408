"""Passes through a model without a gradient, and the micro-batches that every pass is given.

Invariant: all ranks make the same number of passes, and each model together with its parallel ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch

from agentrl.training.batch import whole_sequence
from agentrl.training.learner_images import CANARY, LearnerImages
from agentrl.training.micro_batch import MicroBatch, collate
from agentrl.training.packing import Layout, Row, micro_batches, rows
from agentrl.training.parallel import Parallelism
from agentrl.training.precision import Precision, autocast

Pass: TypeAlias = Callable[[Sequence[MicroBatch]], Any]


class ForwardPasses:
    def __init__(
        self,
        parallelism: Parallelism,
        images: LearnerImages,
        layout: Layout,
        *,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision,
    ) -> None:
        """`dtype` is that of log-probs."""
        self._parallelism, self._images, self._layout = parallelism, images, layout
        self.device, self.dtype, self._precision = device, dtype, precision

    def collated(self, part: Sequence[Row]) -> MicroBatch:
        idle = None if self._images.how is None else CANARY
        return collate(part, self._layout, self.device, self.dtype, self._images.patches, idle)

    def through(self, scorer: Pass, micros: Sequence[list[Row]]) -> Iterator[tuple[MicroBatch, Any]]:
        for together in self._parallelism.together(micros):
            batches = [self.collated(rows_of) for rows_of in together]
            yield from zip(batches, scorer(batches), strict=True)

    @torch.no_grad()
    def log_probs(self, scorer: Pass, sequences: Sequence[Sequence[int]], *, most_tokens: int) -> list[list[float]]:
        """Those of all tokens except the first of each sequence, at temperature 1."""
        packed = rows([whole_sequence(index, ids) for index, ids in enumerate(sequences)], "linear")
        values: list[list[float]] = [[] for _ in sequences]
        for micro, scored in self.through(scorer, micro_batches(packed, most_tokens, self._layout)):
            for index in {int(one) for one in micro.record.tolist()}:
                values[index] = scored.log_probs[micro.record == index].tolist()
        return values

    def autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self._precision)
