"""The three positions (time, row, column) of each token of a model that reads images.

For text all three increase together. A token of an image has the position at which the image begins, plus its row and
column; the text after the image continues after its longer side. So every image shifts the positions of all later
tokens. In a packed tree these are the descendants of its last token.

Invariants:
- positions depend only on the path from the root, so a branch has the same positions in a packed tree as alone;
- nothing loops over tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agentrl.images.processing import ImageError, Size
from agentrl.tokens.image_ids import FIRST

Array = np.ndarray[Any, Any]


class Run(NamedTuple):
    """The tokens of one image."""

    start: int
    stop: int
    number: int


class Places(NamedTuple):
    positions: Array
    """[3, tokens]"""
    shifts: Array
    """For each token: the amount, usually negative, that the images up to it add to the depth to give the next
    position."""
    runs: list[Run]


def image_runs(ids: Array) -> list[Run]:
    shown = ids >= FIRST
    if not shown.any():
        return []
    before = np.concatenate(([-1], ids[:-1]))
    starts = np.flatnonzero(shown & (ids != before))
    after = np.concatenate((ids[1:], [-1]))
    stops = np.flatnonzero(shown & (ids != after)) + 1
    return [Run(int(a), int(b), int(ids[a] - FIRST)) for a, b in zip(starts, stops, strict=True)]


def places_of(ids: Array, depths: Array, ends: Array, grids: Mapping[int, Size]) -> Places:
    """The places of tokens in depth-first order, each given with its depth and the end of its descendants. `grids`:
    rows and columns of each image. Raises ImageError if an image has a different number of tokens."""
    length = len(ids)
    found = np.repeat(np.asarray(depths)[None], 3, axis=0)
    change = np.zeros(length + 2, dtype=np.int64)
    runs = image_runs(ids)
    for run in runs:
        grid = grids.get(run.number)
        if grid is None or run.stop - run.start != grid.height * grid.width:
            raise ImageError(f"The tokens name an image {run.number:07x} of {run.stop - run.start} tokens, unknown.")
        at = np.arange(run.stop - run.start)
        found[:, run.start : run.stop] += np.stack((-at, at // grid.width - at, at % grid.width - at))
        saved = len(at) - max(grid)
        change[run.stop] -= saved
        change[min(int(ends[run.stop - 1]), length + 1)] += saved
    shifts = np.cumsum(change)
    return Places(found + shifts[None, :length], shifts[1 : length + 1], runs)
