"""Evaluations: a version is wanted, its Tasks are queued, closed, counted and done.

Invariants: all Tasks of an evaluation name the version that they pin, as their `version` and as their epoch, so asking
twice makes no second set; results are n of m while some are missing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.policies.status_tables import TASK, Actor, RecordStatus, TaskStatus, check
from agentrl.store.database import Database

ENDED = (TaskStatus.READY, TaskStatus.DONE, TaskStatus.DEAD)


@dataclass(frozen=True, slots=True)
class Result:
    """Of one environment at one version."""

    environment: str
    version: int
    tasks: int
    """How many there are."""
    ended: int
    """How many are closed, or dead."""
    scores: tuple[tuple[float, ...], ...]
    """Of each closed task that has any."""

    @property
    def mean(self) -> float | None:
        """mean@k"""
        means = [math.fsum(scores) / len(scores) for scores in self.scores]
        return math.fsum(means) / len(means) if means else None

    @property
    def passed(self) -> float | None:
        """pass@k: the share of tasks with a right answer among their samples."""
        return sum(max(scores) > 0.5 for scores in self.scores) / len(self.scores) if self.scores else None

    @property
    def margin(self) -> float | None:
        """Half of the 95 % interval of the mean."""
        count = len(self.scores)
        if count < 2 or self.mean is None:
            return None
        means = [math.fsum(scores) / len(scores) for scores in self.scores]
        variance = math.fsum((mean - self.mean) ** 2 for mean in means) / (count - 1)
        return 1.96 * math.sqrt(variance / count)


async def want(database: Database, version: int) -> bool:
    """Requests one; the steward queues its Tasks. True also if it was requested before."""
    await database.update_one("Publication", {"_id": version, "evaluation": ""}, {"$set": {"evaluation": "wanted"}})
    return await database.find_one("Publication", {"_id": version}, projection=["_id"]) is not None


async def wanted(database: Database) -> list[int]:
    found = await database.find("Publication", {"evaluation": "wanted"}, sort=[("_id", 1)], projection=["_id"])
    return [int(document["_id"]) for document in found]


async def mark_queued(database: Database, version: int) -> bool:
    """All its Tasks are there."""
    asked = {"_id": version, "evaluation": "wanted"}
    return await database.update_one("Publication", asked, {"$set": {"evaluation": "queued"}})


async def results(database: Database, version: int) -> list[Result]:
    """What is known by now, by environment."""
    tasks = await database.find(
        "Task", {"version": version, "purpose": "eval"}, projection=["environment", "status", "round"]
    )
    closed = {task["_id"]: task for task in tasks if task["status"] in (TaskStatus.READY, TaskStatus.DONE)}
    scores: dict[str, list[float]] = defaultdict(list)
    scored = {"task": {"$in": list(closed)}, "status": RecordStatus.SCORED}
    for record in await database.find("Record", scored, projection=["task", "round", "score"]) if closed else ():
        if record["round"] == closed[record["task"]]["round"]:
            scores[record["task"]].append(float(record["score"]))
    by_environment: dict[str, list[dict[str, str]]] = defaultdict(list)
    for task in tasks:
        by_environment[task["environment"]].append(task)
    return [
        Result(
            environment,
            version,
            len(members),
            sum(task["status"] in ENDED for task in members),
            tuple(tuple(scores[task["_id"]]) for task in members if scores.get(task["_id"])),
        )
        for environment, members in sorted(by_environment.items())
    ]


async def complete(database: Database, version: int) -> bool:
    """Whether every Task of it was queued and has ended."""
    queued = {"_id": version, "evaluation": {"$in": ["queued", "done"]}}
    if await database.find_one("Publication", queued, projection=["_id"]) is None:
        return False
    under_way = {"version": version, "purpose": "eval", "status": {"$nin": list(ENDED)}}
    return await database.find_one("Task", under_way, projection=["_id"]) is None


async def finish(database: Database, version: int, evaluated: Mapping[str, float]) -> int:
    """The evaluator has its results: its closed Tasks are done, and the version is not pinned any more.

    What it came to is kept with the version: no Step comes after the last evaluation of a run that could tell it.
    """
    check(TASK, TaskStatus.READY, TaskStatus.DONE, Actor.EVALUATOR, f"evaluation of version {version}")
    closed = {"version": version, "purpose": "eval", "status": TaskStatus.READY}
    done = await database.update_many("Task", closed, {"$set": {"status": TaskStatus.DONE}})
    told = {"evaluation": "done", "evaluated": dict(evaluated)}
    await database.update_one("Publication", {"_id": version}, {"$set": told})
    return done
