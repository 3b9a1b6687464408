"""The canary: a fixed set of sequences with the log-probs of the writer of the weights.

An engine computes the same log-probs before it serves a version. If they differ by more than rounding explains, engine
and trainer compute different models. `log_probs[i][j]` belongs to `ids[i][j + 1]` at temperature 1.

Invariants:
- A difference that is not a number never agrees.
- A canary with another number of log-probs than of tokens is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from agentrl.engines.interface import WeightsRefusedError

MEAN_LIMIT = 1e-3
"""Largest mean |difference| of log-probs in float32; beyond it engine and trainer compute different models."""
MEAN_LIMIT_HALF = 2e-2
"""The same if the engine or the trainer computes in 16 bits."""
P99_OVER_MEAN = 10.0
"""If rounding is the only difference, 99 of 100 tokens differ by less than this many times the limit of the mean."""
K3_OVER_SQUARE = 10.0
"""K3 is half a mean square, so its limit is this many times the square of that limit."""
LARGEST_OVER_MEAN = 20.0
"""A single token of the canary may differ by this many times the limit of the mean; more is reported."""


def limit_of(precision: str) -> float:
    """The limit of the mean for one of the two sides."""
    return MEAN_LIMIT if precision in ("float", "float32") else MEAN_LIMIT_HALF


class Canary(msgspec.Struct, frozen=True):
    """The probe set."""

    ids: list[list[int]] = msgspec.field(default_factory=list)
    log_probs: list[list[float]] = msgspec.field(default_factory=list)
    precision: str = "float32"
    """Of the writer's computation."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How much two computations of the canary differ."""

    tokens: int = 0
    mean: float = 0.0
    largest: float = 0.0
    limit: float = MEAN_LIMIT
    """The limit of the mean for the lower of both precisions."""

    def problem(self) -> str:
        """Empty, or why the weights must not serve. Not-a-number never agrees."""
        if self.mean <= self.limit:
            return ""
        return (
            f"the canary differs: mean |log-prob difference| {self.mean:.3g} over {self.tokens} tokens, "
            f"limit {self.limit:g}, largest {self.largest:.3g}"
        )

    @property
    def largest_over_limit(self) -> float:
        """Above 1 if one token differs by more than the precision explains. Such weights may still serve."""
        return self.largest / (LARGEST_OVER_MEAN * self.limit)


def compare(canary: Canary, ours: Sequence[Sequence[float]], limit: float = MEAN_LIMIT) -> Agreement:
    """How much our log-probs of the canary differ from the writer's, if `limit` is that of our own precision.

    Raises WeightsRefusedError if counts differ.
    """
    limit = max(limit, limit_of(canary.precision))
    theirs = canary.log_probs
    if [len(one) for one in theirs] != [len(one) for one in ours]:
        raise WeightsRefusedError("The canary has another number of log-probs than of tokens to predict.")
    differences = [b - a for one, other in zip(theirs, ours, strict=True) for a, b in zip(one, other, strict=True)]
    if not differences:
        return Agreement(limit=limit)
    if not all(map(math.isfinite, differences)):
        nan = float("nan")
        return Agreement(tokens=len(differences), mean=nan, largest=nan, limit=limit)
    sizes = [abs(difference) for difference in differences]
    return Agreement(tokens=len(sizes), mean=math.fsum(sizes) / len(sizes), largest=max(sizes), limit=limit)
