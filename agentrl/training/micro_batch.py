"""Rows as tensors, for one forward pass.

Invariants: trees stand one after another in a single sequence, which is padded at most to a block of the attention;
linear rows are padded to the longest; padding is at the end, where no other token sees it; the pairs of all rows are
concatenated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.images.patches import Patches
from agentrl.images.positions import image_runs, places_of
from agentrl.tokens.image_ids import label
from agentrl.training.batch import Array
from agentrl.training.packing import Layout, Row
from agentrl.training.tree_attention import Tree, padding, tree_of


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    ids: Tensor
    """[sequences, length]"""
    positions: Tensor
    tree: Tree | None
    """The tree of the only sequence, if the rows are trees."""
    asked_row: Tensor
    """The sequences and places at which logits are needed."""
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
    images: Images | None = None
    """None if no token shows an image. Otherwise positions are [3, sequences, length]: time, row and column."""


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The images of a forward pass, each once."""

    pixels: Tensor
    """The patches of all images."""
    frames: Tensor
    """Time, rows and columns of the patches of each image."""
    shown: Tensor
    """For each token of an image, in order: its place among the tokens of all of them."""


def collate(
    rows: Sequence[Row],
    layout: Layout,
    device: torch.device,
    dtype: torch.dtype,
    images: Mapping[int, Patches] = MappingProxyType({}),
    idle: int | None = None,
) -> MicroBatch:
    """`dtype` is that of log-probs: float32, or float64 where exactness is tested. `images`: at least those that the
    rows show. If the rows show none, the image `idle` is computed and not used, because the vision tower must take part
    in every pass: other ranks wait for its weights, and its optimizer state updates it like the rest."""
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
    own = _own_images(rows, images, idle)
    seen = _as_tensors(rows, own, device) if own else None
    if seen is not None:
        grids = {number: one.grid for number, one in own.items()}
        of_rows = [places_of(row.ids, row.positions, row.ends, grids).positions for row in rows]
        positions = torch.stack([_in_layout([one[side] for one in of_rows], ids.shape, device) for side in range(3)])
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
        images=seen,
    )


def _own_images(rows: Sequence[Row], images: Mapping[int, Patches], idle: int | None) -> dict[int, Patches]:
    """Those that the rows show."""
    shown = (run.number for row in rows for run in image_runs(row.ids))
    numbers = list(dict.fromkeys(shown)) or ([] if idle is None else [idle])
    if missing := [label(number) for number in numbers if number not in images]:
        raise ConfigError(f"Records that show images are trained within their run only: {missing[0]} did not come.")
    return {number: images[number] for number in numbers}


def _as_tensors(rows: Sequence[Row], own: Mapping[int, Patches], device: torch.device) -> Images:
    runs = [run for row in rows for run in image_runs(row.ids)]
    patches = list(own.values())
    begins = dict(zip(own, np.cumsum([0, *(patch.tokens for patch in patches[:-1])]).tolist(), strict=True))
    shown = np.concatenate(
        [np.empty(0, dtype=np.int64), *(begins[run.number] + np.arange(run.stop - run.start) for run in runs)]
    )
    return Images(
        pixels=torch.from_numpy(np.concatenate([patch.values for patch in patches])).to(device),
        frames=torch.tensor([patch.frames for patch in patches], device=device),
        shown=torch.from_numpy(shown).to(device),
    )


def _in_layout(arrays: Sequence[Array], shape: torch.Size, device: torch.device) -> Tensor:
    """Values in the layout of the rows: concatenated in a single sequence, or each in its own; padded with zeros."""
    if shape[0] == 1:
        whole = np.concatenate(arrays)
        return _padded([whole], shape[1], device)
    return _padded(arrays, shape[1], device)


def _columns(rows: Sequence[Row]) -> tuple[list[Array], list[Array]]:
    return [row.ids for row in rows], [row.positions for row in rows]


def _padded(arrays: Sequence[Array], length: int, device: torch.device) -> Tensor:
    found = np.zeros((len(arrays), length), dtype=np.int64)
    for row, values in zip(found, arrays, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(found).to(device)
