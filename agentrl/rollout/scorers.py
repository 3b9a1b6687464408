"""Scores answers. A task names its scorer; a run can add its own.

    @register_scorer("close_enough")
    async def close_enough(answer: str, truth: str, task: Task) -> float:
        return max(0.0, 1.0 - abs(float(answer) - float(truth)))

Invariants: a score is a finite number; a missing answer scores 0 without a call of the scorer; a scorer that cannot
decide raises UnscoredError and never gives a score.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

from agentrl.environments.other_models import OtherModelError
from agentrl.environments.rubric import Score
from agentrl.environments.user_tasks import FATAL, uncancelled
from agentrl.errors import AgentrlError, ConfigError, UnknownNameError
from agentrl.rollout.math_judge import MathJudge, NoVerdictError
from agentrl.rollout.user_code_faults import described
from agentrl.store.documents import Task

log = logging.getLogger("scorer")


Scorer = Callable[[str, str, Task], Awaitable[float | Score] | float | Score]
"""Arguments: answer, truth, task. The score is between 0 and 1 unless the task means otherwise. A scorer that waits for
something is `async`."""
SCORE_WITHIN_S = 180.0
MOST_PARTS = 1_000
LONGEST_NAME = 200
"""Characters of the name of a part."""

_registry: dict[str, Scorer] = {}


class UnscoredError(AgentrlError):
    """The scorer cannot decide now: the record waits and is scored again."""

    scorer: str = ""
    """The scorer that cannot decide; empty if it is an agent loop."""

    @property
    def away(self) -> str:
        """The other model that did not answer; empty if the reason is another."""
        cause = self.__cause__
        while cause is not None and not isinstance(cause, OtherModelError):
            cause = cause.__cause__
        return "" if cause is None else cause.away


def register_scorer(name: str) -> Callable[[Scorer], Scorer]:
    """Make a scorer known under a name that tasks and environments use."""

    def register(scorer: Scorer) -> Scorer:
        if _registry.setdefault(name, scorer) is not scorer:
            raise ConfigError(f"There are two scorers {name!r}.", hint="Names are unique; take another one.")
        return scorer

    return register


def scorer_named(name: str) -> Scorer:
    try:
        return _registry[name]
    except KeyError:
        known = ", ".join(sorted(_registry))
        raise UnknownNameError(f"There is no scorer {name!r}.", hint=f"Known are: {known}.") from None


def as_score(returned: object) -> Score:
    """What code of users returned, with its numbers as numbers. Raises what `float` raises, and ValueError for more
    parts than a record can have."""
    if isinstance(returned, Score):
        if len(returned.parts) > MOST_PARTS:
            raise ValueError(f"a score of {len(returned.parts)} parts; it may have {MOST_PARTS}")
        parts = {_name(name): float(part) for name, part in returned.parts.items()}
        return Score(float(returned.value), parts, tuple(map(float, returned.turns)))
    value: Any = returned
    return Score(float(value))


def _name(part: object) -> str:
    """As files and the store can have it."""
    return str(part)[:LONGEST_NAME].encode(errors="replace").decode()


async def score(name: str, answer: str | None, task: Task) -> float | Score:
    """Raises UnscoredError if the scorer cannot decide, whatever the reason."""
    if answer is None:
        return 0.0
    try:
        return await _scored(name, answer, task)
    except UnscoredError as cannot:
        cannot.scorer = name
        raise


async def _scored(name: str, answer: str, task: Task) -> float | Score:
    try:
        scorer = scorer_named(name)
        async with asyncio.timeout(SCORE_WITHIN_S):
            returned = scorer(answer, task.answer, task)
            if inspect.isawaitable(returned):
                returned = await returned
            if returned is None:
                raise UnscoredError(f"The scorer {name} returned nothing; a score is a number.")
            found = as_score(returned)
    except TimeoutError:
        raise UnscoredError(f"The scorer {name} did not answer within {SCORE_WITHIN_S:g} s.") from None
    except UnscoredError:
        raise
    except UnknownNameError as unknown:
        raise UnscoredError(str(unknown)) from unknown
    except asyncio.CancelledError as raised:
        wrong = uncancelled(raised)
        raise UnscoredError(f"The scorer {name} failed: {described(wrong)}.") from wrong
    except (Exception, *FATAL) as broken:
        # The boundary to code of users: an exception means that the scorer cannot decide.
        log.exception("the scorer %s failed on an answer to %s", name, task.id)
        raise UnscoredError(f"The scorer {name} failed: {described(broken)}.") from broken
    for number in found.numbers:
        if not math.isfinite(number):
            raise UnscoredError(f"The scorer {name} answered {number}, which is no score.")
    return found if found.turns or found.parts else found.value


@register_scorer("exact")
async def exact(answer: str, truth: str, task: Task) -> float:
    """The same text, but for white space."""
    return float(answer.split() == truth.split())


class Helper(Protocol):
    """Something that a scorer or an agent loop starts, and that others in this event loop share."""

    async def close(self) -> None: ...


_helpers: dict[asyncio.AbstractEventLoop, dict[str, Helper]] = {}
"""By event loop, because pipes belong to one, and by name."""
_H = TypeVar("_H", bound=Helper)


def helper_of(name: str, make: Callable[[], _H]) -> _H:
    """The helper of this name, made when it is first requested. `close_scorers` ends it."""
    mine = _helpers.setdefault(asyncio.get_running_loop(), {})
    return cast(_H, mine.get(name) or mine.setdefault(name, make()))


@register_scorer("math")
async def symbolic(answer: str, truth: str, task: Task) -> float:
    """Equal as mathematics: `1/2` and `0.5`, `x^2-1` and `(x-1)(x+1)`."""
    try:
        return float(await helper_of("math", MathJudge).equal(answer, truth))
    except NoVerdictError as failed:
        raise UnscoredError(f"The answers could not be compared: {failed}.") from failed


async def close_scorers() -> None:
    """End what scorers and agent loops started in this loop."""
    for helper in _helpers.pop(asyncio.get_running_loop(), {}).values():
        await helper.close()
