"""The evaluations of a run's own versions: their progress and their results.

Invariants:
- Figures are those of `agentrl eval`, from the same functions.
- In a list the figures of a finished evaluation may be half a minute old, because a console asks every two seconds and
  there may be a hundred thousand attempts. The answer of `show` is always new.
- The best is one of the versions that were evaluated on the same held-out tasks as the newest result.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from agentrl.errors import UnknownNameError
from agentrl.evaluation.summaries import Summary, summaries
from agentrl.formatting.safe_text import sanitise
from agentrl.policies.learning_collapse import best_of
from agentrl.policies.status_tables import CheckpointStatus
from agentrl.protocol.evaluation_commands import (
    Attempt,
    EvaluationRow,
    EvaluationStory,
    ListEvaluations,
    ShowEvaluation,
)
from agentrl.store import evaluated_attempts, evaluations
from agentrl.store.database import Database, Plain

MOST = 200
KEPT_S = 30.0
_FIGURES = ("attempts", "failed", "mean", "margin", "passed", "turns", "tokens")
_FIELDS = ["evaluation", "evaluated_tasks", "step", "announced_at"]


@dataclass(frozen=True, slots=True)
class _Part:
    """One environment at one version."""

    environment: str
    tasks: int
    ended: int
    figures: Summary | None


class EvaluationQueries:
    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._kept: dict[int, tuple[float, list[_Part]]] = {}
        """The parts of versions whose evaluation is done, and when they were read."""

    async def rows(self, args: ListEvaluations) -> list[EvaluationRow]:
        requested = {"evaluation": {"$in": ["wanted", "queued", "done"]}}
        limit = min(max(args.limit, 1), MOST)
        documents = await self._database.find(
            "Publication", requested, sort=[("_id", -1)], limit=limit, projection=_FIELDS
        )
        now = self._clock()
        self._kept = {version: kept for version, kept in self._kept.items() if now - kept[0] < KEPT_S}
        parts: dict[int, list[_Part]] = {}
        # One after the other, so that the steward does other work between them.
        for publication in documents:
            version = int(publication["_id"])
            if version not in self._kept:
                read, _ = await self._read(version)
                if publication["evaluation"] != "done":
                    parts[version] = read
                    continue
                self._kept[version] = (now, read)
            parts[version] = self._kept[version][1]
        return await self._shown(documents, parts)

    async def show(self, args: ShowEvaluation) -> EvaluationStory:
        document = await self._database.find_one("Publication", {"_id": args.version}, projection=_FIELDS)
        if document is None or not document.get("evaluation"):
            raise UnknownNameError(f"Version {args.version} was not evaluated.", hint="See `agentrl eval list`.")
        parts, attempts = await self._read(args.version)
        listed = await self._shown([document], {args.version: parts})
        behind = sorted((attempt for attempt in attempts if attempt.key > args.after), key=lambda one: one.key)
        part = behind[: args.limit] if args.limit > 0 else behind
        return EvaluationStory(tuple(listed), tuple(map(_sent, part)), more=len(part) < len(behind))

    async def _read(self, version: int) -> tuple[list[_Part], list[Attempt]]:
        tasks = await evaluated_attempts.tasks_of(self._database, version)
        attempts = await evaluated_attempts.attempts_at(self._database, tasks)
        figures = {summary.part: summary for summary in summaries(attempts)}
        members: dict[str, list[Plain]] = defaultdict(list)
        for task in tasks:
            members[task["environment"]].append(task)
        parts = [
            _Part(name, len(those), sum(task["status"] in evaluations.ENDED for task in those), figures.get(name))
            for name, those in sorted(members.items())
        ]
        return parts, attempts

    async def _shown(self, publications: Sequence[Plain], parts: Mapping[int, Sequence[_Part]]) -> list[EvaluationRow]:
        saved = await _checkpoints(self._database, list(parts))
        measured = await evaluations.measured(self._database, note=False)
        best = best_of(measured) if len(measured) > 1 else None
        made = []
        for publication in publications:
            version = int(publication["_id"])
            about = {
                "version": version,
                "state": publication["evaluation"],
                "step": publication.get("step", 0),
                "at": at.timestamp() if (at := publication.get("announced_at")) else 0.0,
                "on": publication.get("evaluated_tasks", ""),
                "checkpoint": saved.get(version, ""),
                "is_best": best is not None and version == best.of,
            }
            made += [_row(about, part) for part in parts[version]] or [EvaluationRow(environment="", **about)]
        return made


def _row(about: dict[str, Any], part: _Part) -> EvaluationRow:
    figures = {} if part.figures is None else {name: getattr(part.figures, name) for name in _FIGURES}
    return EvaluationRow(environment=part.environment, tasks=part.tasks, ended=part.ended, **about, **figures)


async def _checkpoints(database: Database, versions: Sequence[int]) -> dict[int, str]:
    with_weights = {"version": {"$in": list(versions)}, "status": CheckpointStatus.COMPLETE}
    documents = await database.find("Checkpoint", with_weights, projection=["version"])
    return {int(one["version"]): one["_id"] for one in documents}


def _sent(one: Attempt) -> Attempt:
    return replace(
        one,
        task=sanitise(one.task),
        query=sanitise(one.query),
        error=sanitise(one.error)[:500],
        tags=tuple(map(sanitise, one.tags)),
        difficulty=sanitise(one.difficulty),
    )
