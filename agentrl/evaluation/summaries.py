"""Summaries of attempts by model and environment, or by tags and difficulty, and comparisons of two models.

Invariant: models are compared on the tasks that both attempted, and each task counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from agentrl.errors import ConfigError
from agentrl.policies import result_statistics as statistics
from agentrl.protocol.evaluation_commands import Attempt

By = Literal["environment", "tag", "difficulty"]
BY: dict[By, Callable[[Attempt], Sequence[str]]] = {
    "environment": lambda one: (one.environment,),
    "tag": lambda one: tuple(dict.fromkeys(one.tags)) or ("no tag",),
    "difficulty": lambda one: (one.difficulty or "no difficulty",),
}
_KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    part: str
    """An environment, a tag or a difficulty."""
    tasks: int
    attempts: int
    """Attempts with a score."""
    failed: int
    """Attempts without a score."""
    mean: float | None
    margin: float | None
    """Half the width of the 95 % interval of the mean."""
    passed: dict[str, float]
    """pass@k by k: powers of two, and the most that every task has attempts for."""
    tokens: float
    """Mean per attempt, like the next two."""
    turns: float
    took_s: float
    outcomes: dict[str, int]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    part: str
    tasks: int
    first: float
    second: float
    difference: float
    margin: float | None
    chance: float
    shown: bool
    better: int
    worse: int
    moved: list[tuple[str, float]]
    """Tasks with their difference, the largest first."""


def models_of(attempts: Iterable[Attempt]) -> list[str]:
    return list(dict.fromkeys(attempt.model for attempt in attempts))


def summaries(attempts: Iterable[Attempt], by: By = "environment") -> list[Summary]:
    parts: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        for part in BY[by](attempt):
            parts[attempt.model, part].append(attempt)
    return [_summary(model, part, members) for (model, part), members in parts.items()]


def _summary(model: str, part: str, attempts: Sequence[Attempt]) -> Summary:
    results = [attempt for attempt in attempts if attempt.is_result]
    scores = list(scores_by_task(results).values())
    fewest = min(map(len, scores), default=0)
    outcomes: dict[str, int] = defaultdict(int)
    for attempt in attempts:
        outcomes[attempt.outcome] += 1
    found = {k: statistics.pass_at(k, scores) for k in (*(k for k in _KS if k < fewest), fewest) if k}
    return Summary(
        model=model,
        part=part,
        tasks=len(scores),
        attempts=len(results),
        failed=len(attempts) - len(results),
        mean=statistics.mean(map(statistics.mean, scores)) if scores else None,
        margin=statistics.margin(scores),
        passed={str(k): chance for k, chance in found.items() if chance is not None},
        tokens=_mean(result.tokens for result in results),
        turns=_mean(result.number_of_turns for result in results),
        took_s=_mean(result.took_s for result in results),
        outcomes=dict(outcomes),
    )


def scores_by_task(attempts: Iterable[Attempt]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if attempt.score is not None:
            found[f"{attempt.environment}/{attempt.task}"].append(attempt.score)
    return found


def comparison(first: Sequence[Attempt], second: Sequence[Attempt], by: By = "environment") -> list[Compared]:
    """The comparison of two models. Raises ConfigError if they have no task in common."""
    found = [compared for part in _parts(first, by) if (compared := _compared(part, first, second, by)) is not None]
    if not found:
        raise ConfigError("The two have no task in common.", hint="Compare results on the same dataset.")
    return found


def _parts(attempts: Iterable[Attempt], by: By) -> list[str]:
    return list(dict.fromkeys(part for attempt in attempts for part in BY[by](attempt)))


def _compared(part: str, first: Sequence[Attempt], second: Sequence[Attempt], by: By) -> Compared | None:
    one, other = (scores_by_task(each for each in those if part in BY[by](each)) for those in (first, second))
    found = statistics.compare(one, other)
    if found is None:
        return None
    common = [task for task in one if other.get(task)]
    differences = {task: statistics.mean(other[task]) - statistics.mean(one[task]) for task in common}
    return Compared(
        part=part,
        tasks=found.tasks,
        first=_mean_of(one, common),
        second=_mean_of(other, common),
        difference=found.difference,
        margin=found.margin if found.tasks > 1 else None,
        chance=found.chance,
        shown=found.shown,
        better=found.better,
        worse=found.worse,
        moved=sorted(((task, by_) for task, by_ in differences.items() if by_), key=lambda pair: -abs(pair[1])),
    )


def _mean_of(scores: Mapping[str, Sequence[float]], tasks: Sequence[str]) -> float:
    return statistics.mean(statistics.mean(scores[task]) for task in tasks)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return statistics.mean(listed) if listed else 0.0
