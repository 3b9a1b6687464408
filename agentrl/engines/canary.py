"""The canary: a fixed set of sequences with the log-probs that the writer of the weights computed.

An engine computes the same log-probs before it serves a version. If they differ by more than rounding can explain,
engine and trainer compute different models. `log_probs[i][j]` belongs to `ids[i][j + 1]` at temperature 1.

Invariants:
- this module alone decides how large differences may be: by the precision of both sides, and after engines have served
  the first publication of a run, by their differences there;
- the weights of the previous version are refused, even if one step changes less than the limit;
- tokens that follow an image must agree on their own, because most tokens of a canary follow no image;
- a difference that is not a number never agrees;
- a canary whose number of log-probs does not fit its tokens is refused.
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
"""If rounding is the only cause, 99 of 100 tokens differ by less than this multiple of the limit of the mean."""
K3_OVER_SQUARE = 10.0
"""K3 is about half a mean square, so its limit is this multiple of the square of the limit of the mean."""
LARGEST_OVER_MEAN = 20.0
"""A single token of the canary may differ by this multiple of the limit of the mean; a larger difference is
reported."""


TIMES_NOISE = 4.0
"""A difference that exceeds this multiple of the difference at the first publication is more than the same noise."""
LEAST_OF_LIMIT = 0.05
"""This share of the precision's limit is always allowed, because weights that have learned more have more noise."""
CERTAIN = 8.0
"""The previous version can be told apart if its difference is this multiple of the error of the measurement. Then the
measured share of the difference is known to 1/8, and the deciding share of 1/2 is four such errors away from 0 and from
1."""
ROUNDING = 2.0
"""The writer's own rounding is in its numbers of both versions. So even without any step their difference may be up to
this multiple of the remaining noise, with half of it pointing to the previous version. Only a larger difference is a
step."""
CHANCE = 6.0
"""This ratio, measured over n tokens, has a relative error of 1/sqrt(n). With this many such errors as a margin,
rounding is taken for a step once in 10,000 times if it is normally distributed, and once in 1,000 times if it follows
Student's t with four degrees of freedom."""


def limit_of(precision: str) -> float:
    """The limit of the mean for the precision of one side."""
    return MEAN_LIMIT if precision in ("float", "float32") else MEAN_LIMIT_HALF


class Noise(msgspec.Struct, frozen=True):
    """The mean |difference| of engines that compute the same model, and the limit of their precision."""

    mean: float
    limit: float


class CanaryImage(msgspec.Struct, frozen=True):
    number: int
    """The number by which the ids of sequences name it."""
    png: bytes
    """The image as PNG, in the size that the model sees."""


class Canary(msgspec.Struct, frozen=True):
    """The probe set."""

    ids: list[list[int]] = msgspec.field(default_factory=list)
    log_probs: list[list[float]] = msgspec.field(default_factory=list)
    precision: str = "float32"
    """The precision of the writer's computation."""
    before: list[list[float]] = msgspec.field(default_factory=list)
    """The log-probs of the same sequences by the previous version, which must not be mistaken for this one."""
    noise: Noise | None = None
    """The differences of engines at the first publication."""
    images: list[CanaryImage] = []
    """The images that the sequences show."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How much two computations of the canary differ."""

    tokens: int = 0
    mean: float = 0.0
    """The mean |difference| of all tokens, or of those that follow an image, whichever is larger."""
    largest: float = 0.0
    limit: float = MEAN_LIMIT
    """The limit of the mean."""
    towards_before: float = 0.0
    """0 for the announced weights, 1 for those of the previous version. It is 0 if the difference of the two cannot be
    measured."""

    def problem(self) -> str:
        """Why the weights must not serve; empty if they may. Not-a-number never agrees."""
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
    """Compares our log-probs of the canary with the writer's. `limit` is the limit of our own precision.

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
    """The part of a canary with the sequences at these places, and of their log-probs only those from `start` on."""
    return msgspec.structs.replace(
        canary,
        ids=[canary.ids[place] for place in places],
        log_probs=[canary.log_probs[place][start:] for place in places],
        before=[canary.before[place][start:] for place in places] if canary.before else [],
    )


def _steps(canary: Canary) -> list[float]:
    """The differences of the previous version; empty if they are not known for the same sequences."""
    if [len(one) for one in canary.before] != [len(one) for one in canary.log_probs]:
        return []
    found = _differences(canary.before, canary.log_probs)
    return found if all(map(math.isfinite, found)) else []


def _towards(differences: Sequence[float], steps: Sequence[float]) -> float:
    """The share of the step towards the previous version that the differences show. 0 if it could be chance."""
    square = math.fsum(step * step for step in steps)
    if not square:
        return 0.0
    share = math.fsum(one * step for one, step in zip(differences, steps, strict=True)) / square
    # The remainder without that share is noise. It decides how precisely the share is known.
    noise = math.fsum((one - share * step) ** 2 for one, step in zip(differences, steps, strict=True)) / len(steps)
    count = len(steps)
    least = max(CERTAIN / math.sqrt(count), ROUNDING * (1 + CHANCE / math.sqrt(count)))
    return share if least**2 * noise < square / count else 0.0


def _differences(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    return [a - b for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]


def _behind_images(canary: Canary, ours: Sequence[Sequence[float]]) -> list[float]:
    """The differences of tokens that follow an image, without tokens of images, which no model predicts."""
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
