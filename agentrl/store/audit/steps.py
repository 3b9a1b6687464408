"""What was leased, trained and rolled back.

Invariants proven here: a leased Task is in the leased Step that it names, one that trained in the committed Step that
it names; a Step's number stands once; a record trains no more often than it may, by an advantage of its own group; what
stands was covered by the checkpoint that the next lineage began from.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.formatting.amounts import counted
from agentrl.policies.status_tables import StepStatus, TaskStatus
from agentrl.store import history
from agentrl.store.audit.problems import Check, Problem, beside, found, listed, repeated, the_one
from agentrl.store.database import Database, Plain
from agentrl.store.documents import Lineage, load


def _its_step(statuses: StepStatus, members: Mapping[str, object]) -> Plain:
    """A stage that brings in the Step that a Task names, if it has the Task."""
    return {
        "$lookup": {
            "from": "Step",
            "let": {"task": "$_id", "lineage": "$lineage", "step": "$step"},
            "pipeline": [
                {"$match": {"status": statuses, "$expr": {"$eq": ["$step", "$$step"]}}},
                {"$match": {"$expr": {"$eq": ["$lineage", "$$lineage"]}}},
                {"$match": {"$expr": {"$in": ["$$task", members]}}},
            ],
            "as": "by",
        }
    }


async def leases_that_disagree(database: Database) -> Problem | None:
    all_of_it = {"$concatArrays": ["$tasks", "$filtered"]}
    stages: list[Plain] = [
        {"$match": {"status": TaskStatus.LEASED}},
        _its_step(StepStatus.LEASED, all_of_it),
        {"$match": {"by": []}},
    ]
    return await found(database, "Task", stages, "leased tasks that no leased step has")


async def ends_that_disagree(database: Database) -> Problem | None:
    """What says that it trained, or was filtered, did so in the Step that it names."""
    for status, members in ((TaskStatus.TRAINED, "$tasks"), (TaskStatus.FILTERED, "$filtered")):
        stages: list[Plain] = [
            {"$match": {"status": status}},
            _its_step(StepStatus.COMMITTED, {"$ifNull": [members, []]}),
            {"$match": {"by": []}},
        ]
        problem = await found(database, "Task", stages, f"{status} tasks that no committed step has")
        if problem is not None:
            return problem
    return None


async def steps_that_stand_twice(database: Database) -> Problem | None:
    stages = repeated({"status": StepStatus.COMMITTED}, "$step")
    return await found(database, "Step", stages, "numbers of steps given more than once")


async def leases_of_the_closed(database: Database) -> Problem | None:
    """A lineage that is closed leases nothing, and an open one leases one Step at a time."""
    stages: list[Plain] = [
        {"$match": {"status": StepStatus.LEASED}},
        {"$group": {"_id": "$lineage", "leased": {"$sum": 1}}},
        {"$lookup": {"from": "Lineage", "localField": "_id", "foreignField": "_id", "as": "of"}},
        {"$match": {"$or": [{"leased": {"$gt": 1}}, {"of": []}, {"of.closed": True}]}},
    ]
    return await found(database, "Step", stages, "lineages with a lease out of turn")


async def steps_outside_of_their_lineage(database: Database) -> Problem | None:
    """A lineage begins after its checkpoint, and what no checkpoint of the valid history covers was rolled back."""
    every = await database.find("Lineage", {}, projection={"plan": 0})
    lineages = [load(Lineage, document) for document in every]
    first = {lineage.id: lineage.first_step for lineage in lineages}
    last = history.last_steps(lineages)
    wrong = []
    async for step in database.stream("Step", {"status": StepStatus.COMMITTED}, projection=["lineage", "step"]):
        of = step["lineage"]
        if not first.get(of, 0) <= step["step"] <= last.get(of, -1):
            wrong.append(str(step["_id"]))
    return listed(wrong, "committed steps outside of what stands of the lineage")


async def wrong_trained_counts(database: Database) -> Problem | None:
    standing: Plain = {
        "$lookup": {
            "from": "Step",
            "localField": "_id",
            "foreignField": "tasks",
            "pipeline": [{"$match": {"status": StepStatus.COMMITTED}}, {"$project": {"_id": 1}}],
            "as": "standing",
        }
    }
    stages: list[Plain] = [standing, {"$match": {"$expr": {"$ne": [{"$size": "$standing"}, "$trained_count"]}}}]
    return await found(database, "Task", stages, "tasks whose trained count is not that of the committed steps")


def trained_too_often(most: int) -> Check:
    async def check(database: Database) -> Problem | None:
        stages: list[Plain] = [
            {"$match": {"status": StepStatus.COMMITTED}},
            {"$unwind": "$records"},
            {"$group": {"_id": "$records", "times": {"$sum": 1}}},
            {"$match": {"times": {"$gt": most}}},
        ]
        return await found(database, "Step", stages, f"records that trained more than {counted(most, 'times')}")

    return check


_TRAINED: list[Plain] = [
    {"$match": {"status": StepStatus.COMMITTED}},
    {"$unwind": "$records"},
    {"$project": {"_id": 0, "record": "$records", "tasks": 1}},
]
"""A row for each record that trained, with the tasks of its Step."""


async def trained_without_share(database: Database) -> Problem | None:
    """What trained is scored, of the policy's doing, and has a structure."""
    there = {"$literal": True}
    of = {"class": "$outcome_class", "status": "$status", "late": {"$eq": ["$late", True]}}
    stages: list[Plain] = [
        *_TRAINED,
        beside("Record", {"of": of}),
        beside("DBRecordData", {"data": there, "advantage": 1}),
        {
            "$group": {
                "_id": "$record",
                "trained": {"$sum": {"$cond": [{"$isArray": "$tasks"}, 1, 0]}},
                **{name: the_one(name) for name in ("of", "data", "advantage")},
            }
        },
        {"$match": {"trained": {"$gt": 0}}},
        {
            "$match": {
                "$or": [
                    {"of": None},
                    {"data": None},
                    {"of.class": {"$nin": ["policy", "limit"]}},
                    {"of.status": {"$nin": ["scored", "excluded"]}},
                    {"of.late": True},
                    {"advantage": None},
                ]
            }
        },
    ]
    return await found(database, "Step", stages, "trained records that should not have trained")


async def trained_outside_of_their_group(database: Database) -> Problem | None:
    """A record trains with the Task that it is an attempt at, by the share that it has there."""
    shares: Plain = {
        "$unionWith": {
            "coll": "Task",
            "pipeline": [
                {"$unwind": "$shares"},
                {"$match": {"shares.advantage": {"$ne": None}}},
                {"$project": {"_id": 0, "record": "$shares.record", "shared_in": "$_id"}},
            ],
        }
    }
    with_its_task = {"$map": {"input": "$steps", "in": {"$in": ["$task", "$$this"]}}}
    stages: list[Plain] = [
        *_TRAINED,
        beside("Record", {"task": 1}),
        shares,
        {
            "$group": {
                "_id": "$record",
                "steps": {"$push": {"$cond": [{"$isArray": "$tasks"}, "$tasks", "$$REMOVE"]}},
                "task": the_one("task"),
                "shared_in": {"$addToSet": "$shared_in"},
            }
        },
        {"$match": {"steps.0": {"$exists": True}}},
        {
            "$match": {
                "$expr": {
                    "$not": {"$and": [{"$in": ["$task", "$shared_in"]}, {"$allElementsTrue": [with_its_task]}]},
                }
            }
        },
    ]
    return await found(database, "Step", stages, "trained records without a share in a task of the step")
