"""Baselines and shares.

Invariants proven here: a baseline is the mean and the deviation of the scores of the group's valid members, computed
once more; what failed for infrastructure is no member; whoever has an advantage is a member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.policies import outcomes
from agentrl.policies.outcomes import OutcomeClass
from agentrl.store.audit.problems import Problem, listed
from agentrl.store.database import Database, Plain

_AT_ONCE = 500
_SLACK = 1e-6


async def wrong_baselines(database: Database) -> Problem | None:
    wrong: list[str] = []
    batch: list[Plain] = []
    shared = {"shares.0": {"$exists": True}}
    async for task in database.stream("Task", shared, projection=["shares", "baseline", "members"]):
        batch.append(task)
        if len(batch) == _AT_ONCE:
            wrong += await _wrong_among(database, batch)
            batch = []
    wrong += await _wrong_among(database, batch)
    return listed(wrong, "baselines that are not those of their valid members")


async def _wrong_among(database: Database, tasks: Sequence[Plain]) -> list[str]:
    names = [share["record"] for task in tasks for share in task["shares"]]
    fields = ["outcome_class", "score", "scores_before", "late"]
    found = await database.find("Record", {"_id": {"$in": names}}, projection=fields) if names else []
    records = {record["_id"]: record for record in found}
    return [task["_id"] for task in tasks if not _agrees(task, records)]


def _agrees(task: Plain, records: Mapping[str, Plain]) -> bool:
    members = [records.get(share["record"]) for share in task["shares"]]
    scores: list[float] = []
    for member in members:
        if member is None or member["score"] is None or member.get("late"):
            return False
        if not outcomes.in_baseline(OutcomeClass(member["outcome_class"])):
            return False
        if not _rescored(member):
            scores.append(float(member["score"]))
    if len(members) != task["members"] or task["baseline"] is None:
        return task["baseline"] is None and len(members) == task["members"]
    return _is_baseline(task["baseline"], members, scores)


def _rescored(member: Mapping[str, Any]) -> bool:
    """The score that it had when its group closed cannot be told any more."""
    return bool(member.get("scores_before"))


def _is_baseline(stored: Mapping[str, float], members: Sequence[object], scores: Sequence[float]) -> bool:
    if stored["valid"] != len(members):
        return False
    if len(scores) < len(members):
        return True
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return math.isclose(stored["mean"], mean, abs_tol=_SLACK) and math.isclose(stored["std"], deviation, abs_tol=_SLACK)
