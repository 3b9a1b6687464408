"""Steps: what was leased, trained and rolled back.

Invariants checked here: a leased Task is in the leased Step that it names; a trained Task is in the committed Step that
it names; a number belongs to one committed Step; a record trains no more often than allowed; committed Steps of older
lineages are covered by the checkpoint from which the next lineage began.
"""

from __future__ import annotations

from agentrl.formatting.amounts import counted
from agentrl.policies.status_tables import StepStatus, TaskStatus
from agentrl.store import history
from agentrl.store.audit.problems import Check, Problem, beside, found, listed, repeated, the_one
from agentrl.store.database import Database, Plain
from agentrl.store.documents import load
from agentrl.store.weight_documents import Lineage


def _without_step(of: TaskStatus, statuses: StepStatus, *members: str) -> list[Plain]:
    """Stages that leave the Tasks of a status that no Step of that lineage and number has among its `members`."""
    has = {"$setUnion": [{"$ifNull": [f"${name}", []]} for name in members]}
    step: Plain = {
        "$lookup": {
            "from": "Step",
            "let": {"lineage": "$_id.lineage", "step": "$_id.step"},
            "pipeline": [
                {"$match": {"status": statuses, "$expr": {"$eq": ["$step", "$$step"]}}},
                {"$match": {"$expr": {"$eq": ["$lineage", "$$lineage"]}}},
                {"$project": {"has": has}},
            ],
            "as": "by",
        }
    }
    in_any: Plain = {"$reduce": {"input": "$by.has", "initialValue": [], "in": {"$setUnion": ["$$value", "$$this"]}}}
    return [
        {"$match": {"status": of}},
        {"$group": {"_id": {"lineage": "$lineage", "step": "$step"}, "tasks": {"$push": "$_id"}}},
        step,
        {"$project": {"_id": {"$setDifference": ["$tasks", in_any]}}},
        {"$unwind": "$_id"},
    ]


async def leases_that_disagree(database: Database) -> Problem | None:
    stages = _without_step(TaskStatus.LEASED, StepStatus.LEASED, "tasks", "filtered")
    return await found(database, "Task", stages, "leased tasks that no leased step has")


async def ends_that_disagree(database: Database) -> Problem | None:
    """Tasks whose Step does not agree that it trained or filtered them."""
    for status, members in ((TaskStatus.TRAINED, "tasks"), (TaskStatus.FILTERED, "filtered")):
        stages = _without_step(status, StepStatus.COMMITTED, members)
        problem = await found(database, "Task", stages, f"{status} tasks that no committed step has")
        if problem is not None:
            return problem
    return None


async def steps_that_stand_twice(database: Database) -> Problem | None:
    stages = repeated({"status": StepStatus.COMMITTED}, "$step")
    return await found(database, "Step", stages, "numbers of steps given more than once")


async def leases_of_the_closed(database: Database) -> Problem | None:
    """Leases of closed lineages, and open lineages with more than one lease."""
    stages: list[Plain] = [
        {"$match": {"status": StepStatus.LEASED}},
        {"$group": {"_id": "$lineage", "leased": {"$sum": 1}}},
        {"$lookup": {"from": "Lineage", "localField": "_id", "foreignField": "_id", "as": "of"}},
        {"$match": {"$or": [{"leased": {"$gt": 1}}, {"of": []}, {"of.closed": True}]}},
    ]
    return await found(database, "Step", stages, "lineages with a lease out of turn")


async def steps_outside_of_their_lineage(database: Database) -> Problem | None:
    """Steps before the checkpoint of their lineage, and committed Steps that no checkpoint of the valid history
    covers."""
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
    stages: list[Plain] = [
        {"$match": {"status": StepStatus.COMMITTED}},
        {"$project": {"_id": 0, "id": {"$setUnion": ["$tasks", []]}, "trained": {"$literal": 1}}},
        {"$unwind": "$id"},
        beside("Task", {"of": {"count": "$trained_count"}}),
        {"$group": {"_id": "$id", "trained": {"$sum": "$trained"}, "of": the_one("of")}},
        {"$match": {"of": {"$ne": None}, "$expr": {"$ne": ["$trained", "$of.count"]}}},
    ]
    return await found(database, "Step", stages, "tasks whose trained count is not that of the committed steps")


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
