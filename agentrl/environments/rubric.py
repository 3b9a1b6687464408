"""Scorers of an environment, and the score that their parts add up to.

Invariants:
- Every scorer is a part with a name; the score is the sum of the parts by their weights.
- A part without weight is a metric: it is stored and shown, and trains nothing.
- An episode without an answer is scored like any other: the scorer decides.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

from agentrl.environments.episodes import Episode

ScoringFunction = Callable[[Episode], "float | Score | Awaitable[float | Score]"]
_F = TypeVar("_F", bound=ScoringFunction)


@dataclass(frozen=True)
class Score:
    """What a scorer may return instead of a number."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Further numbers to show; they add nothing to the score."""
    turns: Sequence[float] = ()
    """The score of each single turn of the model, besides the value. Turns beyond the last one given have 0."""

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.value, *self.turns, *self.parts.values())


@dataclass(frozen=True)
class Scorer:
    """A function with a name and a weight."""

    name: str
    function: ScoringFunction
    weight: float = 1.0

    def __call__(self, episode: Episode) -> float | Score | Awaitable[float | Score]:
        return self.function(episode)


@overload
def scorer(function: _F) -> _F: ...
@overload
def scorer(*, weight: float = 1.0, name: str = "") -> Callable[[_F], _F]: ...
def scorer(function: _F | None = None, *, weight: float = 1.0, name: str = "") -> _F | Callable[[_F], _F]:
    """Mark a function of an episode as a scorer. It returns a number or a `Score`, and may be async."""

    def mark(marked: _F) -> _F:
        if len(inspect.signature(marked).parameters) != 1:
            raise TypeError(f"the scorer {marked.__name__} must take one argument, the episode")
        setattr(marked, _ATTRIBUTE, Scorer(name or marked.__name__, marked, float(weight)))
        return marked

    return mark if function is None else mark(function)


def metric(function: _F) -> _F:
    """Mark a function of an episode as a number that is stored and shown, and trains nothing."""
    return scorer(weight=0.0)(function)


_ATTRIBUTE = "agentrl_scorer"


def as_scorer(given: object) -> Scorer:
    """The scorer of a function, which need not be marked as one."""
    if isinstance(given, Scorer):
        return given
    marked = getattr(given, _ATTRIBUTE, None)
    if isinstance(marked, Scorer):
        return marked
    if not callable(given):
        raise TypeError(f"a scorer must be a function, got {given!r}")
    scorer()(given)
    return as_scorer(given)


async def score_of(scorers: Sequence[Scorer], episode: Episode) -> Score:
    """The sum of all parts by their weights. Raises what a scorer raises."""
    total, parts = 0.0, {}
    turns = [0.0] * len(episode.texts)
    for each in scorers:
        found = await _found(each, episode)
        total += each.weight * found.value
        parts[each.name] = found.value
        parts |= {f"{each.name}/{name}": float(value) for name, value in found.parts.items()}
        if len(found.turns) > len(turns):
            raise ValueError(
                f"the scorer {each.name} gives {len(found.turns)} rewards of turns to an episode of {len(turns)} turns"
            )
        for index, value in enumerate(found.turns):
            turns[index] += each.weight * float(value)
    return Score(total, parts, tuple(turns) if any(turns) else ())


class NoNumberError(ValueError):
    """A scorer returned something that is no score."""

    def __init__(self, scorer: Scorer, what: str) -> None:
        super().__init__(f"the scorer {scorer.name} returned {what}; it must return a number or a Score")
        self.scorer = scorer


async def _found(scorer: Scorer, episode: Episode) -> Score:
    returned = scorer(episode)
    if inspect.isawaitable(returned):
        returned = await returned
    if returned is None:
        raise NoNumberError(scorer, "nothing")
    given = returned if isinstance(returned, Score) else Score(returned)
    try:
        parts = {str(name): float(value) for name, value in given.parts.items()}
        found = Score(float(given.value), parts, tuple(map(float, given.turns)))
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise NoNumberError(scorer, f"{returned!r:.200}") from None
    if strange := [number for number in found.numbers if not math.isfinite(number)]:
        raise NoNumberError(scorer, f"{strange[0]}")
    return found
