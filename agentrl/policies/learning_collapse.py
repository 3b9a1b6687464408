"""Judges whether learning has collapsed: how far evaluation and reward are below their best. Pure.

Invariants:
- the reference is the best of the whole run, so a collapse does not become the new normal; for evaluations, the best on
  the same held-out tasks, because other tasks may be harder;
- a fall counts in units of both margins of error together;
- a fall of an evaluation by 2 counts at once; a fall by 1.4 counts if two measurements in a row show it. The best of
  many measurements is partly luck, so a healthy run often falls by 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LATELY = 10
"""Steps of one measurement of the reward."""
AT_ONCE, CONFIRMED = 2.0, 1.4
REWARDS_KEPT = LATELY + 1
"""How many measurements of the reward a judgement needs, one for each of as many steps in a row."""
LOST_SHARE = 0.5
"""A fall of the reward counts only if this share of its best is lost: tasks of a dataset differ in difficulty."""
SMALLEST_MARGIN = 1e-3
"""Measurements without any spread still differ by rounding."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A mean with half of its 95 % interval, and the version or step that it measures."""

    of: int
    mean: float
    margin: float

    @property
    def surely(self) -> float:
        return self.mean - self.margin


def best_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """The one with the best lower end of its interval; of equal ones the newest."""
    return max(measurements, key=lambda one: (one.surely, one.of), default=None)


def fall(best: Measurement, now: Measurement) -> float:
    """How far `now` is below the best, in units of both margins together; 0 if it is not below."""
    return max(0.0, best.mean - now.mean) / max(best.margin + now.margin, SMALLEST_MARGIN)


def evaluation_collapse(evaluations: Sequence[Measurement]) -> float:
    """Above 1 if the newest evaluations show a collapse. `evaluations`: of the whole run on the same
    tasks, oldest first."""
    best = best_of(evaluations)
    if best is None:
        return 0.0
    falls = [fall(best, evaluation) for evaluation in evaluations[-2:]]
    return max(falls[-1] / AT_ONCE, min(falls) / CONFIRMED)


def reward_lately(rewards: Sequence[float], step: int) -> Measurement | None:
    """The reward of the last steps; None if there are too few. `rewards`: of steps, oldest first."""
    last = rewards[-LATELY:]
    if len(last) < LATELY:
        return None
    return Measurement(step, fmean(last), 1.96 * stdev(last) / math.sqrt(LATELY))


def reward_collapse(best: Measurement, rewards: Sequence[Measurement]) -> float:
    """Above 1 if the reward alone shows a collapse. `rewards`: `reward_lately` of steps, oldest first.

    Rewards vary with the tasks, so only a large fall counts, and only if two measurements without a common step show
    it.
    """
    now = rewards[-1] if rewards else None
    before = next((reward for reward in reversed(rewards) if now is not None and reward.of <= now.of - LATELY), None)
    if now is None or before is None:
        return 0.0
    return min(_reward_fall(best, one) for one in (before, now)) / AT_ONCE


def _reward_fall(best: Measurement, now: Measurement) -> float:
    if best.mean - now.mean <= LOST_SHARE * abs(best.mean):
        return 0.0
    # Ten steps without any reward have no spread, but are no more certain than the best.
    return fall(best, Measurement(now.of, now.mean, max(now.margin, best.margin)))
