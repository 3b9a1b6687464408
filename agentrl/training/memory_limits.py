"""If a micro-batch needs more memory than there is, a step does the same work once more in smaller micro-batches.

Invariants:
- a split changes neither loss nor gradient, only how many rows are computed at a time;
- rows are never cut: if one row alone needs too much memory, the error ends the trainer, and its group is found like
  any other group that ends trainers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.training.packing import Row

_OF_PROCESSORS = "can't allocate memory"
"""Part of the message of PyTorch's CPU allocator, which raises a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _OF_PROCESSORS in str(error)


def largest(micros: Sequence[Sequence[Row]]) -> int:
    """Tokens of the largest micro-batch."""
    return max((sum(map(len, rows)) for rows in micros), default=0)


def cuts_of(micros: Sequence[Sequence[Row]], tokens: int) -> list[list[int]]:
    """For each micro-batch the numbers of rows of its parts, in order, so that none has more than `tokens` unless a
    single row has."""
    cuts: list[list[int]] = []
    for rows in micros:
        parts: list[int] = []
        used = 0
        for row in rows:
            if not parts or used + len(row) > tokens:
                parts.append(0)
                used = 0
            parts[-1] += 1
            used += len(row)
        cuts.append(parts)
    return cuts


def split_rows(micros: Sequence[Sequence[Row]], cuts: Sequence[Sequence[int]]) -> list[list[Row]]:
    """The parts of all micro-batches, in order."""
    return [
        list(rows[start:stop])
        for rows, parts in zip(micros, cuts, strict=True)
        for start, stop in itertools.pairwise([0, *itertools.accumulate(parts)])
    ]


def split_pairs(
    columns: Sequence[Tensor], micros: Sequence[Sequence[Row]], cuts: Sequence[Sequence[int]]
) -> list[Tensor]:
    """The values of pairs of each micro-batch, for its parts."""
    tensors: list[Tensor] = []
    for column, rows, parts in zip(columns, micros, cuts, strict=True):
        edges = itertools.pairwise([0, *itertools.accumulate(parts)])
        sizes = [sum(len(row.pairs) for row in rows[start:stop]) for start, stop in edges]
        tensors += torch.split(column, sizes)
    return tensors
