"""Baselines and advantages: from the scores of a group to what each record trains with.

Invariants: advantages do not depend on the order of the members; the optional normalization over a batch leaves an
environment with a single group unchanged and never makes a capped advantage positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.errors import ConfigError

Estimator = Literal["grpo", "leave_one_out", "gae"]
"""`gae`: a critic gives the advantages of single tokens, and the group only the scores."""

STD_FLOOR = 1e-4
ENVIRONMENT_STD_FLOOR = 1e-6
RIGHT_SCORE = 0.5
"""Scores above it count as right."""


@dataclass(frozen=True, slots=True)
class Baseline:
    mean: float
    std: float
    valid: int


@dataclass(frozen=True, slots=True)
class Overlong:
    """Reduces the score of a record that generated almost too many tokens."""

    begins: int
    """Up to this many tokens there is no penalty."""
    full: int
    """From this many tokens on the whole penalty applies; between the two it grows linearly."""
    penalty: float

    def __post_init__(self) -> None:
        if self.begins >= self.full:
            raise ConfigError(
                f"A penalty for long records must grow over some tokens, and it begins at {self.begins} and is full at "
                f"{self.full}.",
                hint="Set overlong.begins below overlong.full.",
            )

    def of(self, tokens: int) -> float:
        share = (tokens - self.begins) / (self.full - self.begins)
        return self.penalty * min(max(share, 0.0), 1.0)


def shaped(
    scores: Sequence[float],
    turns: Sequence[int],
    spread: float,
    *,
    tokens: Sequence[int] = (),
    overlong: Overlong | None = None,
) -> list[float]:
    """The scores that the baseline is computed from. Turns are compared among right answers and among wrong answers;
    the penalty for length does not change which answers are right. `overlong` needs `tokens`."""
    found = list(scores)
    if spread:
        bonus = turn_bonus(turns, [score > RIGHT_SCORE for score in scores], spread)
        found = [score + more for score, more in zip(found, bonus, strict=True)]
    if overlong is not None:
        found = [score - overlong.of(length) for score, length in zip(found, tokens, strict=True)]
    return found


def turn_bonus(turns: Sequence[int], right: Sequence[bool], spread: float) -> list[float]:
    """What the number of turns adds to each score. Among right answers fewer turns rank higher; among wrong ones more,
    because giving up early is worse. Each half is ranked by itself, ties share the mean rank, each half sums to 0."""
    bonus = [0.0] * len(turns)
    for half in (True, False):
        places = [place for place, is_right in enumerate(right) if is_right is half]
        if len(places) < 2:
            continue
        worth = {place: -turns[place] if half else turns[place] for place in places}
        for place in places:
            worse = sum(worth[other] < worth[place] for other in places)
            better = sum(worth[other] > worth[place] for other in places)
            bonus[place] = spread / 2 * ((worse - better) / (len(places) - 1))
    return bonus


def baseline_of(scores: Sequence[float]) -> Baseline | None:
    if not scores:
        return None
    # fsum rounds once, so the result does not depend on the order of the members.
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / len(scores)
    return Baseline(mean, math.sqrt(variance), len(scores))


def advantage_of(score: float, baseline: Baseline, estimator: Estimator, *, divide_by_std: bool = True) -> float:
    """The advantage of a score. `divide_by_std` applies to GRPO only. With a critic, it is the score itself."""
    if estimator == "gae":
        return score
    above = score - baseline.mean
    if estimator == "leave_one_out":
        return baseline.valid / (baseline.valid - 1) * above
    return above / (baseline.std + STD_FLOOR) if divide_by_std else above


@dataclass(frozen=True, slots=True)
class Trained:
    """A record of a batch, as the normalization over its environment sees it."""

    environment: str
    group: str
    advantage: float
    tokens: int
    capped: bool = False


def normalized(records: Sequence[Trained]) -> list[float]:
    """Advantages with mean 0 and standard deviation 1 over the trained tokens of each environment, in input order.

    An environment with fewer than two groups in the batch is unchanged. Capped advantages are capped again:
    subtracting a negative mean must not reward a record that ran into a limit.
    """
    scales = {environment: _scale(records, environment) for environment in {record.environment for record in records}}
    found = []
    for record in records:
        mean, std = scales[record.environment]
        advantage = (record.advantage - mean) / std
        found.append(min(advantage, 0.0) if record.capped else advantage)
    return found


def balanced(records: Sequence[Trained]) -> list[float]:
    """Advantages whose positive and negative sums over the trained tokens are equal, in input order: the side with the
    larger sum is scaled down. A batch with only one sign is unchanged."""
    up = math.fsum(record.advantage * record.tokens for record in records if record.advantage > 0)
    down = -math.fsum(record.advantage * record.tokens for record in records if record.advantage < 0)
    if not up or not down:
        return [record.advantage for record in records]
    smaller = min(up, down)
    return [record.advantage * (smaller / (up if record.advantage > 0 else down)) for record in records]


def _scale(records: Sequence[Trained], environment: str) -> tuple[float, float]:
    members = [record for record in records if record.environment == environment]
    tokens = sum(record.tokens for record in members)
    if len({record.group for record in members}) < 2 or not tokens:
        return 0.0, 1.0
    mean = math.fsum(record.advantage * record.tokens for record in members) / tokens
    variance = math.fsum((record.advantage - mean) ** 2 * record.tokens for record in members) / tokens
    return mean, math.sqrt(variance) + ENVIRONMENT_STD_FLOOR
