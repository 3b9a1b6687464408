"""Stages of a curriculum, which mix and score environments until something was measured; and which rows are worth
sampling. Pure.

Invariants: a stage ends by what was admitted within it and by nothing older; stages never go back; the last one never
ends; an environment that the mix leaves out is admitted only where nothing of the mix is left. A row
of which nothing was measured is worth sampling.
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
    """By environment, instead of its own."""

    def ending_at(self, score: float) -> Stage:
        """With another score that ends it; the last stage stays as it is."""
        return self if self.until is None else replace(self, until=replace(self.until, score=score))


def stage_at(stages: Sequence[Stage], number: int) -> Stage | None:
    """None without a curriculum. A number beyond the last stage, after the run file lost some, is the last."""
    return stages[min(number, len(stages) - 1)] if stages else None


def weights(stage: Stage | None, usual: Mapping[str, float]) -> dict[str, float]:
    """Of the environments in the mix of a stage; 0 for those that it leaves out."""
    return dict(usual) if stage is None else {name: stage.mix.get(name, 0.0) for name in usual}


def scorer_of(stages: Sequence[Stage], number: int, environment: str, own: str, present: str) -> str:
    """The scorer of a group that is admitted in this stage. `own` is that of its environment; a task keeps a `present`
    one that neither its environment nor a stage names."""
    stage = stage_at(stages, number)
    given = {own, *(each.scorers[environment] for each in stages if environment in each.scorers)}
    return present if stage is None or present not in given else stage.scorers.get(environment, own)


def reached(stage: Stage, scores: Sequence[float]) -> str:
    """Why a stage is over, in words; empty if it is not. `scores`: means of its newest groups of that environment."""
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
    """The rows that are sampled, and how many are left out as `hard` or `easy`. `measured`: mean scores by row."""
    kept: list[int] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        mean = measured.get(row)
        if window is None or mean is None or window.least <= mean <= window.most:
            kept.append(row)
        else:
            left_out["hard" if mean < window.least else "easy"] += 1
    return kept, left_out
