"""Compares what every committed Step trained with the data that it trained from.

Invariants checked here: a trained record is scored, ended by a policy result or limit, and has an advantage; it trained
with its own Task, by a share of that Task; none of its tokens is older than the bound of the Step. Ages are computed
again from the versions of the tokens and the parents of the versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentrl.policies.status_tables import RecordStatus, StepStatus
from agentrl.policies.version_tree import UnknownVersionError, VersionTree
from agentrl.store import publications
from agentrl.store.audit.problems import Problem, listed
from agentrl.store.database import Database, Plain

_TRAINS = frozenset({RecordStatus.SCORED.value, RecordStatus.EXCLUDED.value})
_CLASSES = frozenset({"policy", "limit"})


def _of_step(field: str, collection: str, *fields: str) -> Plain:
    """A stage that adds the documents of a collection that a Step names, under the name of that collection."""
    return {
        "$lookup": {
            "from": collection,
            "localField": field,
            "foreignField": "_id",
            "pipeline": [{"$project": dict.fromkeys(fields, 1)}],
            "as": collection,
        }
    }


_STEPS: list[Plain] = [
    {"$match": {"status": StepStatus.COMMITTED}},
    {"$project": dict.fromkeys(("records", "tasks", "base_version", "bounds"), 1)},
    _of_step("records", "Record", "task", "status", "outcome_class", "late"),
    _of_step("records", "DBRecordData", "task", "versions", "advantage"),
    _of_step("tasks", "Task", "environment", "shares"),
]


async def trained_records(database: Database) -> list[Problem]:
    """One pass for three checks, because the documents are large and the same."""
    parents = await publications.parents(database)
    tree = VersionTree({version: parent if parent in parents else None for version, parent in parents.items()})
    unfit: set[str] = set()
    strange: set[str] = set()
    old: list[str] = []
    async for step in database.stream_aggregate("Step", _STEPS):
        unfit |= _unfit(step)
        strange |= _outside_of_their_group(step)
        old += _too_old(tree, step)
    problems = (
        listed(sorted(unfit), "trained records that should not have trained"),
        listed(sorted(strange), "trained records without a share in a task of the step"),
        listed(old, "records that trained beyond the bound of the step"),
    )
    return [problem for problem in problems if problem is not None]


def _unfit(step: Plain) -> set[str]:
    fit = {record["_id"] for record in step["Record"] if _may_train(record)}
    with_advantage = {data["_id"] for data in step["DBRecordData"] if data.get("advantage") is not None}
    return set(step["records"]) - (fit & with_advantage)


def _may_train(record: Plain) -> bool:
    known = record.get("status") in _TRAINS and record.get("outcome_class") in _CLASSES
    return known and record.get("late") is not True


def _outside_of_their_group(step: Plain) -> set[str]:
    shared = {
        (share["record"], task["_id"])
        for task in step["Task"]
        for share in task.get("shares", ())
        if share.get("advantage") is not None
    }
    among = {record["_id"] for record in step["Record"] if (record["_id"], record.get("task")) in shared}
    return set(step["records"]) - among


def _too_old(tree: VersionTree, step: Plain) -> Sequence[str]:
    if not step.get("bounds"):
        return ()  # an older run, which did not store bounds
    bounds = {task["_id"]: step["bounds"].get(task["environment"], -1) for task in step["Task"]}
    return [data["_id"] for data in step["DBRecordData"] if _age(tree, data, step) > bounds.get(data["task"], -1)]


def _age(tree: VersionTree, data: Mapping[str, list[int]], step: Mapping[str, int]) -> float:
    try:
        return tree.staleness(data["versions"], step["base_version"])
    except UnknownVersionError:
        return math.inf
