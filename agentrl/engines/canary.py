"""The canary: a fixed set of sequences with the log-probs of the writer of the weights.

An engine computes the same log-probs before it serves a version. If they differ by more than rounding explains, engine
and trainer compute different models. `log_probs[i][j]` belongs to `ids[i][j + 1]` at temperature 1.

Invariants:
- this module alone decides how much may differ: by the precision of both sides, and once engines have served the first
  publication of a run, by what they differed there;
- the weights of the version before are refused, also where one step changes less than the limit;
- what follows an image agrees by itself, because most tokens of a canary follow none;
- a difference that is not a number never agrees;
- a canary with another number of log-probs than of tokens is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from agentrl.engines.interface import WeightsRefusedError
from agentrl.tokens.image_ids import is_image

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


TIMES_NOISE = 4.0
"""A difference this many times that of the first publication is not the same noise."""
LEAST_OF_LIMIT = 0.05
"""The share of the limit of the precision that always may differ: weights that learned more have more noise."""
CERTAIN = 8.0
"""The version before is told apart if its difference is this many times the error with which it can be measured: then
the share of it that is found is known to an eighth, and a half, which decides, is four of those away from 0 and 1."""
ROUNDING = 2.0
"""What the writer rounds is in its numbers of both versions. Without any step, the difference of the two is therefore
at most so many times what is left of ours, half of it points to the version before, and only more is a step."""
CHANCE = 6.0
"""That ratio, measured over n tokens, is off by 1/sqrt(n) of itself. With so many of these left for chance, rounding is
taken for a step once in 10,000 times if it is distributed normally, and once in 1,000 like Student's t of four."""


def limit_of(precision: str) -> float:
    """The limit of the mean for one of the two sides."""
    return MEAN_LIMIT if precision in ("float", "float32") else MEAN_LIMIT_HALF


class Noise(msgspec.Struct, frozen=True):
    """The mean |difference| of engines that compute the same model, and the limit of their precision."""

    mean: float
    limit: float


class CanaryImage(msgspec.Struct, frozen=True):
    number: int
    """By which the ids of sequences name it."""
    png: bytes
    """In the size that the model sees."""


class Canary(msgspec.Struct, frozen=True):
    """The probe set."""

    ids: list[list[int]] = msgspec.field(default_factory=list)
    log_probs: list[list[float]] = msgspec.field(default_factory=list)
    precision: str = "float32"
    """Of the writer's computation."""
    before: list[list[float]] = msgspec.field(default_factory=list)
    """The log-probs of the same sequences by the version before, which must not be taken for this one."""
    noise: Noise | None = None
    """What engines differed at the first publication."""
    images: list[CanaryImage] = []
    """Those that the sequences show."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How much two computations of the canary differ."""

    tokens: int = 0
    mean: float = 0.0
    """Of all tokens, or of those that follow an image if it is larger."""
    largest: float = 0.0
    limit: float = MEAN_LIMIT
    """The limit of the mean."""
    towards_before: float = 0.0
    """0 for the announced weights, 1 for those of the version before. Only if the difference can be measured."""

    def problem(self) -> str:
        """Empty, or why the weights must not serve. Not-a-number never agrees."""
        if self.towards_before > 0.5:
            return (
                f"the canary is that of the version before: {self.towards_before:.0%} of what the step changed is "
                f"missing over {self.tokens} tokens"
            )
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
    if canary.noise is not None and canary.noise.limit == limit:
        limit = min(limit, max(TIMES_NOISE * canary.noise.mean, LEAST_OF_LIMIT * limit))
    if [len(one) for one in canary.log_probs] != [len(one) for one in ours]:
        raise WeightsRefusedError("The canary has another number of log-probs than of tokens to predict.")
    differences = _differences(ours, canary.log_probs)
    if not differences:
        return Agreement(limit=limit)
    if not all(map(math.isfinite, differences)):
        nan = float("nan")
        return Agreement(tokens=len(differences), mean=nan, largest=nan, limit=limit)
    return Agreement(
        tokens=len(differences),
        mean=max(_mean(differences), _mean(_behind_images(canary, ours))),
        largest=max(map(abs, differences)),
        limit=limit,
        towards_before=_towards(differences, _steps(canary)),
    )


def part_of(canary: Canary, places: Sequence[int], start: int) -> Canary:
    """Of some sequences, what follows their token of that number."""
    return msgspec.structs.replace(
        canary,
        ids=[canary.ids[place] for place in places],
        log_probs=[canary.log_probs[place][start:] for place in places],
        before=[canary.before[place][start:] for place in places] if canary.before else [],
    )


def _steps(canary: Canary) -> list[float]:
    """How the version before differs, if it is known for the same sequences."""
    if [len(one) for one in canary.before] != [len(one) for one in canary.log_probs]:
        return []
    found = _differences(canary.before, canary.log_probs)
    return found if all(map(math.isfinite, found)) else []


def _towards(differences: Sequence[float], steps: Sequence[float]) -> float:
    """The part of the differences that points to the version before. 0 if it could be chance."""
    square = math.fsum(step * step for step in steps)
    if not square:
        return 0.0
    share = math.fsum(one * step for one, step in zip(differences, steps, strict=True)) / square
    # What is left if that part is taken away is noise; it decides how well the part is known.
    noise = math.fsum((one - share * step) ** 2 for one, step in zip(differences, steps, strict=True)) / len(steps)
    count = len(steps)
    least = max(CERTAIN / math.sqrt(count), ROUNDING * (1 + CHANCE / math.sqrt(count)))
    return share if least**2 * noise < square / count else 0.0


def _differences(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    return [a - b for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]


def _behind_images(canary: Canary, ours: Sequence[Sequence[float]]) -> list[float]:
    """The differences of tokens that follow an image, without those of images, which nothing predicts."""
    found: list[float] = []
    for ids, one, other in zip(canary.ids, ours, canary.log_probs, strict=False):
        first = next((place for place, token in enumerate(ids) if is_image(token)), None)
        if first is None:
            continue
        begin = len(ids) - len(one)
        scored = enumerate(zip(ids[begin:], one, other, strict=True), begin)
        found += [a - b for at, (token, a, b) in scored if at > first and not is_image(token)]
    return found


def _mean(differences: Sequence[float]) -> float:
    return math.fsum(map(abs, differences)) / len(differences) if differences else 0.0
