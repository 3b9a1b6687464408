"""Evaluations: a version is wanted, its Tasks are queued, closed, counted and done.

Invariants:
- all Tasks of an evaluation name the version that they pin, as their `version` and as their epoch, so a second request
  makes no second set;
- while some results are missing, they are shown as n of m;
- results are compared only with others on the same held-out tasks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.policies import result_statistics as statistics
from agentrl.policies.learning_collapse import Measurement
from agentrl.policies.status_tables import TASK, Actor, RecordStatus, TaskStatus, check
from agentrl.store.database import Database
from agentrl.telemetry.learning_metrics import EVALUATION, EVALUATION_MARGIN

_MARGIN = EVALUATION_MARGIN.name
_OF_A_TASK = ("environment", "query", "earlier", "answer", "scorer", "answer_schema", "extra")
"""The fields that make two held-out tasks the same."""
ENDED = (TaskStatus.READY, TaskStatus.DONE, TaskStatus.DEAD)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one environment at one version."""

    environment: str
    version: int
    tasks: int
    """The number of tasks."""
    ended: int
    """How many of them are closed or dead."""
    scores: tuple[tuple[float, ...], ...]
    """The scores of each closed task that has any."""

    @property
    def mean(self) -> float | None:
        """mean@k"""
        return statistics.mean(map(statistics.mean, self.scores)) if self.scores else None

    @property
    def passed(self) -> float | None:
        """pass@k: the share of tasks with a right answer among their samples."""
        return statistics.mean(max(scores) > statistics.RIGHT for scores in self.scores) if self.scores else None

    @property
    def margin(self) -> float | None:
        """Half of the 95 % interval of the mean."""
        return statistics.margin(self.scores)


async def want(database: Database, version: int) -> bool:
    """Request an evaluation; the steward queues its Tasks. Returns True also if it was already requested."""
    await database.update_one("Publication", {"_id": version, "evaluation": ""}, {"$set": {"evaluation": "wanted"}})
    return await database.find_one("Publication", {"_id": version}, projection=["_id"]) is not None


async def wanted(database: Database) -> list[int]:
    documents = await database.find("Publication", {"evaluation": "wanted"}, sort=[("_id", 1)], projection=["_id"])
    return [int(document["_id"]) for document in documents]


async def mark_queued(database: Database, version: int) -> bool:
    """Note that all its Tasks are queued."""
    wanted = {"_id": version, "evaluation": "wanted"}
    return await database.update_one("Publication", wanted, {"$set": {"evaluation": "queued"}})


async def results(database: Database, version: int) -> list[Result]:
    """The results so far, by environment."""
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
    """Whether all its Tasks were queued and have ended."""
    queued = {"_id": version, "evaluation": {"$in": ["queued", "done"]}}
    if await database.find_one("Publication", queued, projection=["_id"]) is None:
        return False
    under_way = {"version": version, "purpose": "eval", "status": {"$nin": list(ENDED)}}
    return await database.find_one("Task", under_way, projection=["_id"]) is None


async def measured(database: Database, *, note: bool = True) -> list[Measurement]:
    """All results on the same held-out tasks as the newest result, oldest version first."""
    return (await measured_by_tasks(database, note=note) or [[]])[0]


async def measured_by_tasks(database: Database, *, note: bool = True) -> list[list[Measurement]]:
    """The results of the whole run for each set of held-out tasks, the set of the newest result first. `note`: store
    digests of tasks that an earlier release did not store."""
    digest = _note_tasks if note else _digest_of_tasks
    done = {"evaluation": "done", f"evaluated.{EVALUATION.name}": {"$type": "number"}}
    fields = ["evaluated", "evaluated_tasks"]
    found: dict[str, list[Measurement]] = {}
    for one in await database.find("Publication", done, sort=[("_id", -1)], projection=fields):
        version, numbers = int(one["_id"]), one["evaluated"]
        tasks = one.get("evaluated_tasks") or await digest(database, version)
        # Without a margin its error is unknown, so it is never the best result and never counts as a fall.
        measurement = Measurement(version, numbers[EVALUATION.name], numbers.get(_MARGIN, math.inf))
        found.setdefault(tasks, []).append(measurement)
    return [results[::-1] for results in found.values()]


async def _note_tasks(database: Database, version: int) -> str:
    """Store the digest of the tasks with the version, even for an evaluation of an earlier release."""
    digest = await _digest_of_tasks(database, version)
    await database.update_one("Publication", {"_id": version}, {"$set": {"evaluated_tasks": digest}})
    return digest


async def _digest_of_tasks(database: Database, version: int) -> str:
    documents = await database.find("Task", {"version": version, "purpose": "eval"}, projection=list(_OF_A_TASK))
    rows = sorted(
        json.dumps([task.get(field) for field in _OF_A_TASK], sort_keys=True, default=str) for task in documents
    )
    return hashlib.blake2b("\n".join(rows).encode(), digest_size=16).hexdigest()


async def finish(database: Database, version: int, evaluated: Mapping[str, float]) -> int:
    """End an evaluation whose results are read: its closed Tasks are done, and the version is no longer pinned.

    The result is stored with the version, because no Step follows the last evaluation of a run to store it.
    """
    check(TASK, TaskStatus.READY, TaskStatus.DONE, Actor.EVALUATOR, f"evaluation of version {version}")
    closed = {"version": version, "purpose": "eval", "status": TaskStatus.READY}
    done = await database.update_many("Task", closed, {"$set": {"status": TaskStatus.DONE}})
    fields = {"evaluation": "done", "evaluated": dict(evaluated)}
    await database.update_one("Publication", {"_id": version}, {"$set": fields})
    await _note_tasks(database, version)
    return done
