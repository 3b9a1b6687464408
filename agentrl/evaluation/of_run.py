"""Compares two results of any kind: of versions of a run, or of models in files. Pure.

Invariant: tasks are the same if their names are equal; if the two results have no name in common, tasks are the same if
their queries and answers are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agentrl.evaluation.attempts import content_of
from agentrl.evaluation.summaries import By, Compared, comparison
from agentrl.protocol.evaluation_commands import Attempt


def compared(first: Sequence[Attempt], second: Sequence[Attempt], by: By = "environment") -> list[Compared]:
    """The comparison of two results. Raises ConfigError if they have no task in common."""
    names = [{(one.environment, one.task) for one in those} for those in (first, second)]
    if names[0] & names[1]:
        return comparison(first, second, by)
    return comparison(_by_content(first), _by_content(second), by)


def _by_content(attempts: Iterable[Attempt]) -> list[Attempt]:
    return [replace(attempt, task=attempt.content or content_of(attempt.query, attempt.answer)) for attempt in attempts]
