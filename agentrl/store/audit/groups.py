"""Baselines and shares.

Invariants checked here: a baseline is the mean and the deviation of the scores of the group's valid members, which are
computed again; a record that failed for infrastructure is not a member; a record with an advantage is a member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentrl.policies import outcomes
from agentrl.policies.advantages import Overlong, baseline_of, shaped
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
    return listed(wrong, "baselines other than those of the valid members")


async def _wrong_among(database: Database, tasks: Sequence[Plain]) -> list[str]:
    names = [share["record"] for task in tasks for share in task["shares"]]
    fields = ["outcome_class", "score", "late", "turns", "generated_tokens"]
    documents = await database.find("Record", {"_id": {"$in": names}}, projection=fields) if names else []
    records = {record["_id"]: record for record in documents}
    return [task["_id"] for task in tasks if not _agrees(task, records)]


def _agrees(task: Plain, records: Mapping[str, Plain]) -> bool:
    members = [records.get(share["record"]) for share in task["shares"]]
    if len(members) != task["members"]:
        return False
    valid = [member for member in members if member is not None and _is_valid(member)]
    if len(valid) < len(members):
        return False
    return task["baseline"] is None or _is_baseline(task["baseline"], valid)


def _is_valid(member: Plain) -> bool:
    if member["score"] is None or member.get("late"):
        return False
    return outcomes.in_baseline(OutcomeClass(member["outcome_class"]))


def _is_baseline(stored: Mapping[str, float], members: Sequence[Plain]) -> bool:
    if stored["valid"] != len(members):
        return False
    scores = [float(member["score"]) for member in members]
    full = int(stored.get("overlong_full", 0))
    computed = baseline_of(
        shaped(
            scores,
            [member["turns"] for member in members],
            stored.get("turn_spread", 0.0),
            tokens=[int(member.get("generated_tokens", 0)) for member in members],
            overlong=Overlong(int(stored["overlong_begins"]), full, stored["overlong_penalty"]) if full else None,
        )
    )
    return (
        computed is not None
        and math.isclose(stored["mean"], computed.mean, abs_tol=_SLACK)
        and math.isclose(stored["std"], computed.std, abs_tol=_SLACK)
    )
