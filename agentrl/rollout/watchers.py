"""Watchers: scorers whose score of an episode is a part of its record and never trains.

Invariants:
- A watcher never changes a score, and one that cannot answer leaves the record without its part.
- A watcher that takes long delays a score by `WATCHED_WITHIN_S` at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from agentrl.environments.rubric import Score
from agentrl.environments.user_tasks import FATAL
from agentrl.rollout import scorers
from agentrl.store.documents import Task

log = logging.getLogger("scorer")
WATCHED_WITHIN_S = 60.0

_watchers: dict[str, Sequence[str]] = {}


def configure(watchers: Mapping[str, Sequence[str]]) -> None:
    """Set the names of the watchers by environment."""
    _watchers.clear()
    _watchers.update(watchers)


async def added(found: Score, answer: Callable[[], str | None], task: Task) -> Score:
    """The score with the parts of the watchers of its environment. A part that the score already has, because its
    environment computes it as a metric, is not computed again."""
    names = [name for name in _watchers.get(task.environment, ()) if name not in found.parts]
    if not names:
        return found
    values = await asyncio.gather(*(_said(name, answer, task) for name in names))
    parts = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return Score(found.value, {**found.parts, **parts}, found.turns)


async def _said(name: str, answer: Callable[[], str | None], task: Task) -> float | None:
    try:
        async with asyncio.timeout(WATCHED_WITHIN_S):
            said = await scorers.score(name, answer(), task)
    except (Exception, *FATAL) as cannot:  # noqa: BLE001 - code of users: the score is there without its watcher
        log.warning("the watcher %s says nothing of an answer to %s: %s", name, task.id, cannot)
        return None
    return said.value if isinstance(said, Score) else said
