"""The interface of a model for the slot engine: one version of weights that continues the sequences of many rows.

Invariants, for every kind of model: the result for a token depends only on its own sequence, not on its row, on other
sequences of a round, or on the pieces into which the sequence was cut; everything is computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from agentrl.images.patches import Patches
from agentrl.images.processing import Processing

NO_IMAGES: Mapping[int, Patches] = MappingProxyType({})


class Run(NamedTuple):
    """A piece of one sequence: `size` tokens of row `row` from position `start` on. A piece that starts at 0 begins the
    row again."""

    row: int
    start: int
    size: int


class Kept(Protocol):
    """The cached state of the computed tokens of each row."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether a row can begin with a copy of a part of another row's state."""
        ...

    def reusable(self, shared: int, cached: int) -> int:
        """How many of the first `shared` tokens of a row need not be computed again, if the row has `cached` computed
        tokens."""
        ...

    def copy_prefix(self, source: int, target: int, count: int) -> None: ...

    def show(self, images: Mapping[int, Patches]) -> None:
        """Sets the images of the sequences that are computed next, by their numbers."""
        ...


class ServedModel(Protocol):
    """One version of the weights; immutable."""

    @property
    def version(self) -> int: ...

    @property
    def vocabulary(self) -> int:
        """The number of ids that it knows."""
        ...

    @property
    def processing(self) -> Processing | None:
        """How images are shown to it; None if it reads none."""
        ...

    def fits(self, other: Any) -> bool:
        """Whether both models have the same shapes."""
        ...

    def new_rows(self, rows: int, positions: int) -> Any:
        """A new state for rows, of the kind that `next_logits` takes."""
        ...

    def next_logits(self, kept: Any, runs: Sequence[Run], ids: Tensor, wanted: Sequence[int]) -> Tensor:
        """Computes the runs, whose tokens are `ids` one after another; returns [wanted, vocabulary]: the logits after
        these places in `ids`, which ascend. Runs of one token come first."""
        ...

    def scores(
        self, sequences: Sequence[Sequence[int]], images: Mapping[int, Patches] = NO_IMAGES
    ) -> list[list[float]]:
        """Log-probs at temperature 1 of all ids of each sequence except the first."""
        ...
