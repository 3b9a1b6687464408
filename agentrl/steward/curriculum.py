"""The stage of the curriculum: stores it, and decides when the next one begins.

Invariants: the stage is one document that a conditional update advances, so two stewards or a restart never repeat a
stage; the measurement that ended a stage is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agentrl.policies import curriculum
from agentrl.policies.curriculum import Stage
from agentrl.store.database import Database, Plain

log = logging.getLogger("steward")
COLLECTION = "Curriculum"
_ID = {"_id": "stage"}


async def stage(database: Database, stages: Sequence[Stage]) -> int:
    """The number of the present stage. Begins the next one first if this one is over."""
    if not stages:
        return 0
    document = await database.find_one(COLLECTION, _ID)
    if document is None:
        begin: Plain = {"$setOnInsert": {"stage": 0, "since": await database.now(), "passed": []}}
        await database.update_one(COLLECTION, _ID, begin, upsert=True)
        return 0
    number = int(document["stage"])
    if number >= len(stages) - 1:
        return len(stages) - 1
    why = curriculum.reached(stages[number], await _scores(database, stages[number], document["since"]))
    if not why:
        return number
    now = await database.now()
    passed = {"stage": number, "why": why, "at": now}
    update: dict[str, Any] = {"$set": {"stage": number + 1, "since": now}, "$push": {"passed": passed}}
    if await database.update_one(COLLECTION, _ID | {"stage": number}, update):
        log.info("stage %d of the curriculum is over: %s", number + 1, why)
    return number + 1


async def scores_of_stage(database: Database, stages: Sequence[Stage]) -> tuple[int, list[float]] | None:
    """The number of the present stage and its scores so far. None before the first round of a steward."""
    document = await database.find_one(COLLECTION, _ID)
    if document is None or not stages:
        return None
    number = min(int(document["stage"]), len(stages) - 1)
    return number, await _scores(database, stages[number], document["since"])


async def _scores(database: Database, stage: Stage, since: datetime) -> list[float]:
    """Mean scores of the newest groups that were admitted in the stage and have closed."""
    if stage.until is None:
        return []
    closed = {"environment": stage.until.environment, "purpose": "train", "baseline": {"$ne": None}}
    documents = await database.find(
        "Task",
        {"admitted_at": {"$gte": since}, **closed},
        sort=[("admitted_at", -1)],
        limit=stage.until.groups,
        projection=["baseline"],
    )
    return [float(task["baseline"]["mean"]) for task in documents]
