"""Replays of tool calls.

Invariants checked here: a replay has a verdict if and only if it was judged, and an owner while it runs; a replay whose
call with effects outside may have run is never queued again; no replay runs more often than requested.
"""

from __future__ import annotations

from agentrl.policies.status_tables import ReplayStatus
from agentrl.store.audit.problems import Problem, found
from agentrl.store.database import Database, Plain
from agentrl.store.replays import IN_HAND, MOST_ATTEMPTS

_JUDGED = [ReplayStatus.JUDGED, ReplayStatus.KEPT, ReplayStatus.EXCLUDED, ReplayStatus.FORKED]


async def replays_that_disagree(database: Database) -> Problem | None:
    odd: list[Plain] = [
        {"status": {"$in": _JUDGED}, "verdict": ""},
        {"status": {"$nin": _JUDGED}, "verdict": {"$ne": ""}},
        {"status": {"$in": IN_HAND}, "owner": ""},
        {"status": ReplayStatus.QUEUED, "$or": [{"owner": {"$ne": ""}}, {"sent.0": {"$exists": True}}]},
        {"attempt": {"$gt": MOST_ATTEMPTS}},
        {"$expr": {"$gt": [{"$size": "$runs"}, "$times"]}},
    ]
    return await found(database, "Replay", [{"$match": {"$or": odd}}], "replays whose fields contradict their status")
