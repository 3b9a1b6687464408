"""Rows as tensors, for one forward pass.

Invariants: trees stand one after another in a single sequence, which is padded at most to a block of the attention;
linear rows are padded to the longest; padding is at the end, where no other token sees it; pairs of all rows come one
after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.training.batch import Array
from agentrl.training.packing import Layout, Row
from agentrl.training.tree_attention import Tree, padding, tree_of


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    ids: Tensor
    """[sequences, length]"""
    positions: Tensor
    tree: Tree | None
    """Of the only sequence, if the rows are trees."""
    asked_row: Tensor
    """The sequences and places of which logits are wanted."""
    asked_at: Tensor
    temperatures: Tensor
    asked: Tensor
    """For each pair: index into the asked places."""
    target: Tensor
    record: Tensor
    behaviour: Tensor
    version: Tensor
    order: Tensor
    """The place of the token among those that its record trains."""


def collate(rows: Sequence[Row], layout: Layout, device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """`dtype` is that of log-probs: float32, or float64 where exactness is tested."""
    lengths = [len(row) for row in rows]
    begins = np.cumsum([0, *lengths[:-1]])
    asked = [len(row.asked_at) for row in rows]
    first_asked = np.cumsum([0, *asked[:-1]])

    def joined(arrays: Iterable[Array], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(np.concatenate(list(arrays))).to(device=device, dtype=dtype)

    if layout == "tree":
        length = sum(lengths)
        fill = np.zeros(padding(length, device), dtype=np.int64)
        ids, positions = (joined([*column, fill])[None] for column in _columns(rows))
        ends = [row.ends + begin for row, begin in zip(rows, begins, strict=True)]
        tree: Tree | None = tree_of(np.concatenate([*ends, length + 1 + np.arange(len(fill))]), device)
        asked_row = torch.zeros(sum(asked), dtype=torch.int64, device=device)
        asked_at = joined(row.asked_at + begin for row, begin in zip(rows, begins, strict=True))
    else:
        ids, positions = (_padded(one, max(lengths), device) for one in _columns(rows))
        tree = None
        asked_row = torch.from_numpy(np.repeat(np.arange(len(rows)), asked)).to(device)
        asked_at = joined(row.asked_at for row in rows)
    return MicroBatch(
        ids=ids,
        positions=positions,
        tree=tree,
        asked_row=asked_row,
        asked_at=asked_at,
        temperatures=joined((row.temperatures for row in rows), dtype),
        asked=joined(row.pairs.asked + first for row, first in zip(rows, first_asked, strict=True)),
        target=joined(row.pairs.target for row in rows),
        record=joined(row.pairs.record for row in rows),
        behaviour=joined((row.pairs.behaviour for row in rows), dtype),
        version=joined(row.pairs.version for row in rows),
        order=joined(row.pairs.order for row in rows),
    )


def _columns(rows: Sequence[Row]) -> tuple[list[Array], list[Array]]:
    return [row.ids for row in rows], [row.positions for row in rows]


def _padded(arrays: Sequence[Array], length: int, device: torch.device) -> Tensor:
    found = np.zeros((len(arrays), length), dtype=np.int64)
    for row, values in zip(found, arrays, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(found).to(device)
