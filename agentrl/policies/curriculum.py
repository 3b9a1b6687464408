"""Stages of a curriculum, each with its own mix of environments and scorers until a measured score ends it; and which
rows are worth sampling. Pure.

Invariants: only groups that were admitted within a stage can end it; stages never go back; the last one never ends; an
environment outside of the mix is admitted only if no row of the mix is left. A row without a measurement is worth
sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Until:
    """A stage is over once the newest groups of an environment have this mean score."""

    environment: str
    score: float
    groups: int


@dataclass(frozen=True, slots=True)
class Stage:
    mix: Mapping[str, float]
    until: Until | None = None
    scorers: Mapping[str, str] = field(default_factory=dict)
    """By environment: the scorer that replaces its own."""

    def ending_at(self, score: float) -> Stage:
        """The same stage, ended by another score; the last stage is unchanged."""
        return self if self.until is None else replace(self, until=replace(self.until, score=score))


def stage_at(stages: Sequence[Stage], number: int) -> Stage | None:
    """None without a curriculum. A number beyond the last stage means the last one, because the run file may have fewer
    stages now."""
    return stages[min(number, len(stages) - 1)] if stages else None


def weights(stage: Stage | None, usual: Mapping[str, float]) -> dict[str, float]:
    """The weight of each environment in the mix of a stage; 0 for those that it leaves out."""
    return dict(usual) if stage is None else {name: stage.mix.get(name, 0.0) for name in usual}


def scorer_of(stages: Sequence[Stage], number: int, environment: str, own: str, present: str) -> str:
    """The scorer of a group that is admitted in this stage. `own` is the scorer of its environment. A task keeps its
    `present` scorer if neither its environment nor a stage names that one."""
    stage = stage_at(stages, number)
    given = {own, *(each.scorers[environment] for each in stages if environment in each.scorers)}
    return present if stage is None or present not in given else stage.scorers.get(environment, own)


def reached(stage: Stage, scores: Sequence[float]) -> str:
    """Why a stage is over, in words; empty if it is not. `scores`: mean scores of its newest groups of the environment
    that can end it."""
    until = stage.until
    if until is None or len(scores) < until.groups:
        return ""
    mean = sum(scores) / len(scores)
    if mean < until.score:
        return ""
    return f"{until.environment} has {mean:.3g} in its last {len(scores)} groups, and {until.score:.3g} was wanted"


@dataclass(frozen=True, slots=True)
class Window:
    """Mean scores between which a row is neither too hard nor too easy."""

    least: float
    most: float


def within(window: Window | None, rows: Iterable[int], measured: Mapping[int, float]) -> tuple[list[int], Counter[str]]:
    """The rows to sample, and how many are left out as `hard` or `easy`. `measured`: mean scores by row."""
    kept: list[int] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        mean = measured.get(row)
        if window is None or mean is None or window.least <= mean <= window.most:
            kept.append(row)
        else:
            left_out["hard" if mean < window.least else "easy"] += 1
    return kept, left_out
