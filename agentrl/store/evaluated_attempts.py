"""Attempts of a run's own evaluations, in the form of the attempts of `agentrl eval`.

Invariants:
- Only the newest attempt at each seat counts, once it has ended: an attempt that was repeated is not a failure.
- A task has the same name in the evaluations of all versions: its row's id, or a digest of its query and answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.evaluation.attempts import content_of, difficulty_of, tags_of
from agentrl.policies.status_tables import RecordStatus
from agentrl.protocol.evaluation_commands import Attempt
from agentrl.store.database import Database, Plain

TASK_FIELDS = ("environment", "version", "status", "round", "query", "answer", "extra")
_RECORD_FIELDS = (
    *("task", "round", "seat", "attempt", "status", "score", "score_parts", "outcome", "error"),
    *("generated_tokens", "turns", "duration_s"),
)
_UNDER_WAY = (RecordStatus.OPEN, RecordStatus.RUNNING, RecordStatus.FINISHED, RecordStatus.UNSCORED)
LONGEST_QUERY = 200
"""Characters."""


async def tasks_of(database: Database, version: int) -> list[Plain]:
    """The tasks that pin this version."""
    return await database.find("Task", {"version": version, "purpose": "eval"}, projection=list(TASK_FIELDS))


async def attempts_at(database: Database, tasks: Sequence[Plain]) -> list[Attempt]:
    """All ended attempts, in the order of tasks and seats."""
    by_id = {task["_id"]: task for task in tasks}
    of_them = {"task": {"$in": list(by_id)}, "status": {"$ne": RecordStatus.SUPERSEDED}}
    documents = await database.find("Record", of_them, projection=list(_RECORD_FIELDS)) if by_id else []
    newest: dict[tuple[str, int], Plain] = {}
    for record in sorted(documents, key=lambda one: (one["task"], one["seat"], one["attempt"])):
        if record["round"] == by_id[record["task"]]["round"]:
            newest[record["task"], record["seat"]] = record
    return [_attempt(by_id[task], one) for (task, _), one in newest.items() if one["status"] not in _UNDER_WAY]


def _attempt(task: Mapping[str, Any], record: Mapping[str, Any]) -> Attempt:
    extra = task.get("extra") or {}
    content = content_of(task.get("query", ""), task.get("answer", ""))
    return Attempt(
        key=record["_id"],
        model=f"v{task['version']}",
        environment=task["environment"],
        task=str(extra.get("id") or content),
        attempt=record["seat"],
        query=task.get("query", "")[:LONGEST_QUERY],
        score=float(record["score"]) if record["status"] == RecordStatus.SCORED else None,
        parts=record.get("score_parts") or {},
        outcome=record.get("outcome", ""),
        error=record.get("error", ""),
        tags=tags_of(extra),
        difficulty=difficulty_of(extra),
        tokens=record.get("generated_tokens", 0),
        took_s=record.get("duration_s", 0.0),
        record=record["_id"],
        turn_count=record.get("turns", 0),
        content=content,
    )
