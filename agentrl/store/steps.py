"""Steps: leased before the optimizer runs, committed by one conditional update after it.

Invariants: a commit needs a Step that is still leased, so a Step that another trainer released or rolled back can never
be committed; the statuses of Tasks are derived from their Step, and can be derived again (`follow`); `trained_count` is
the number of committed Steps that trained the Task. After a lease is written its lineage is checked again, so a lineage
that was closed meanwhile leases nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from agentrl.errors import ConflictError
from agentrl.policies.status_tables import IN_FLIGHT, STEP, TASK, Actor, RecordStatus, StepStatus, TaskStatus, check
from agentrl.store import groups
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import step_id
from agentrl.store.documents import TRAINS, DBRecordData, Share, Step, Task, load, load_if, to_bson
from agentrl.store.update_expressions import NOW, seconds_since, setting

DEATHS_REMEMBERED = 100
STEPS_LOOKED_AT = 50
"""The number of steps from which the share of forks among trained records is computed."""


class LineageClosedError(ConflictError):
    """Another trainer took over; this one must end."""


def closed(lineage: str) -> LineageClosedError:
    return LineageClosedError(f"The lineage {lineage} was closed by another trainer.")


class Ready(NamedTuple):
    """A closed group with its records that train."""

    task: Task
    records: list[DBRecordData]


async def ready(database: Database, *, limit: int = 0, known: dict[str, DBRecordData] | None = None) -> list[Ready]:
    """Closed groups that can be leased, first admitted first; groups without signal have no records.

    `known`: structures that were read before, which never change; new ones are added for the next call.
    """
    found = await database.find(
        "Task",
        {"status": TaskStatus.READY, "purpose": {"$in": list(TRAINS)}},
        sort=[("admitted_order", 1), ("_id", 1)],
        limit=limit,
        projection={"query": 0, "answer": 0, "extra": 0},
    )
    closed = [load(Task, document) for document in found]
    wanted = [share.record for task in closed if task.signal for share in task.shares if share.advantage is not None]
    before = {} if known is None else known
    new = [record for record in wanted if record not in before]
    documents = await database.find("DBRecordData", {"_id": {"$in": new}}) if new else []
    data = {record: before[record] for record in wanted if record in before}
    data |= {document["_id"]: load(DBRecordData, document) for document in documents}
    if known is not None:
        known.clear()
        known.update(data)
    return [Ready(task, _records_of(task, data)) for task in closed]


async def count_ready(database: Database) -> int:
    """How many groups `ready` would find."""
    return await database.count("Task", {"status": TaskStatus.READY, "purpose": {"$in": list(TRAINS)}})


def _records_of(task: Task, data: Mapping[str, DBRecordData]) -> list[DBRecordData]:
    """The records with the advantages from the shares of the group, because DBRecordData may not have them yet if the
    closing process died."""
    return [
        msgspec.structs.replace(data[share.record], advantage=share.advantage, capped=share.capped, turns=share.turns)
        for share in task.shares
        if share.record in data
    ]


async def recently_trained(database: Database) -> tuple[int, int]:
    """How many records the last committed steps trained, and how many of them were forks."""
    stages: list[Plain] = [
        {"$match": {"status": StepStatus.COMMITTED}},
        {"$sort": {"step": -1}},
        {"$limit": STEPS_LOOKED_AT},
        {"$group": {"_id": None, "records": {"$sum": {"$size": "$records"}}, "forks": {"$sum": "$intervened"}}},
    ]
    documents = await database.aggregate("Step", stages)
    return (int(documents[0]["records"]), int(documents[0]["forks"])) if documents else (0, 0)


class Flying(NamedTuple):
    """A record of a group that is not closed yet."""

    versions: list[int]
    """The versions that generated its tokens."""
    environment: str


async def under_way(database: Database) -> list[Flying]:
    """Records that have generated tokens."""
    flying = {
        "status": {"$in": [*IN_FLIGHT, RecordStatus.SCORED]},
        "purpose": {"$in": list(TRAINS)},
        "versions.0": {"$exists": True},
    }
    unclosed = await database.find("Task", {"status": TaskStatus.ADMITTED}, projection=["_id"])
    flying["task"] = {"$in": [task["_id"] for task in unclosed]}
    documents = await database.find("Record", flying, projection=["versions", "environment"])
    return [Flying(record["versions"], record["environment"]) for record in documents]


async def lease(database: Database, step: Step) -> Step | None:
    """Lease a Step and its Tasks. Returns the Step without Tasks whose status changed meanwhile and their records; None
    if no task could be leased, and then the step is released."""
    check(STEP, "", StepStatus.LEASED, Actor.TRAINER, step.id)
    check(TASK, TaskStatus.READY, TaskStatus.LEASED, Actor.TRAINER, step.id)
    if step.id != step_id(step.lineage, step.step):
        raise ValueError(f"a step {step.step} of {step.lineage} has another id than {step.id}")
    document = to_bson(msgspec.structs.replace(step, status=StepStatus.LEASED, leased_at=await database.now()))
    await database.insert_many("Step", [document])
    # After the insert: a trainer that closed the lineage before it could not release this step.
    await _refuse_if_closed(database, step)
    leased = {"$set": {"status": TaskStatus.LEASED, "lineage": step.lineage, "step": step.step}}
    wanted = [*step.tasks, *step.filtered]
    await database.update_many("Task", {"_id": {"$in": wanted}, "status": TaskStatus.READY}, leased)
    mine = {"_id": {"$in": wanted}, **_of(step)}
    obtained = [load(Task, task) for task in await database.find("Task", mine, projection={"query": 0, "extra": 0})]
    if wanted and not obtained:
        await release(database, step.id, "none of its tasks could be leased")
        return None
    await groups.settle(database, [task for task in obtained if task.signal])
    return await _narrowed(database, step, obtained)


async def shares_of(database: Database, leased: Step) -> dict[str, Share]:
    """The shares of the records of a leased Step, which cannot change any more."""
    documents = await database.find("Task", {"_id": {"$in": leased.tasks}}, projection=["shares"])
    wanted = set(leased.records)
    shares = [msgspec.convert(share, Share) for task in documents for share in task["shares"]]
    return {share.record: share for share in shares if share.record in wanted}


async def _narrowed(database: Database, step: Step, obtained: Sequence[Task]) -> Step | None:
    # A group whose records were excluded after the trainer looked may have no signal any more.
    signal = {task.id: task.signal for task in obtained}
    members = {share.record for task in obtained for share in task.shares if share.advantage is not None}
    kept: Plain = {
        "tasks": [task for task in step.tasks if signal.get(task)],
        "filtered": [
            *(task for task in step.tasks if signal.get(task) is False),
            *(task for task in step.filtered if task in signal),
        ],
        "records": [record for record in step.records if record in members],
    }
    kept["intervened"] = await _count_forks(database, kept["records"])
    document = await database.find_one_and_update(
        "Step", {"_id": step.id, "status": StepStatus.LEASED}, {"$set": kept | {"empty": not kept["records"]}}
    )
    if document is None:
        # A release in the meantime may have freed its Tasks before they were leased.
        await _follow_release(database, step)
    return load_if(Step, document)


async def _count_forks(database: Database, records: Sequence[str]) -> int:
    return await database.count("DBRecordData", {"_id": {"$in": list(records)}, "intervened": True})


async def _refuse_if_closed(database: Database, step: Step) -> None:
    if await database.find_one("Lineage", {"_id": step.lineage, "closed": False}, projection=["_id"]) is None:
        await release(database, step.id, "its lineage was closed")
        raise closed(step.lineage)


async def commit(
    database: Database, step: str, metrics: Mapping[str, Any], *, records: Sequence[str] | None = None
) -> bool:
    """Commit a Step after the optimizer ran. Returns False if the Step no longer belongs to this trainer: then it does
    not count.

    `records`: the records that really trained, if fewer than were leased.
    """
    check(STEP, StepStatus.LEASED, StepStatus.COMMITTED, Actor.TRAINER, step)
    fields: dict[str, Any] = {"status": StepStatus.COMMITTED, "metrics": dict(metrics)}
    if records is not None:
        fields |= {"records": list(records), "empty": not records}
        fields["intervened"] = await _count_forks(database, records)
    document = await database.find_one_and_update(
        "Step",
        {"_id": step, "status": StepStatus.LEASED},
        setting(fields, committed_at=NOW, duration_s=seconds_since("leased_at")),
    )
    if document is None:
        return False
    await _follow_commit(database, load(Step, document))
    return True


async def release(
    database: Database, step: str, reason: str, actor: Actor = Actor.TRAINER, *, died: bool = False
) -> bool:
    """Give the Tasks of a Step back: on a hold, or, with `died`, because its trainer ended during it."""
    check(STEP, StepStatus.LEASED, StepStatus.RELEASED, actor, step)
    released = {"$set": {"status": StepStatus.RELEASED, "reason": reason, "died": died}}
    document = await database.find_one_and_update("Step", {"_id": step, "status": StepStatus.LEASED}, released)
    if document is None:
        # The process that released it may have died before it freed the Tasks.
        ended = await database.find_one("Step", {"_id": step, "status": StepStatus.RELEASED})
        if ended is not None:
            await _follow_release(database, load(Step, ended))
        return False
    await _follow_release(database, load(Step, document))
    return True


async def release_of(database: Database, lineage: str, reason: str) -> None:
    """Release everything that a lineage holds. Its own trainer calls it."""
    for step in await leased(database):
        if step.lineage == lineage:
            await release(database, step.id, reason)


async def roll_back(database: Database, counts: Mapping[str, float], reason: str) -> list[int]:
    """Roll back the Steps that no checkpoint covers. The next trainer calls it before it leases. Returns the numbers of
    the Steps. `counts`: for each lineage of the valid history, its last Step that counts."""
    check(STEP, StepStatus.COMMITTED, StepStatus.ROLLED_BACK, Actor.TRAINER)
    outside = {"status": StepStatus.COMMITTED, "$nor": _counting(counts)}
    undone = []
    for document in await database.find("Step", outside, sort=[("step", -1)]):
        update = {"$set": {"status": StepStatus.ROLLED_BACK, "reason": reason}}
        if await database.update_one("Step", {"_id": document["_id"], "status": StepStatus.COMMITTED}, update):
            undone.append(int(document["step"]))
        await _follow_roll_back(database, load(Step, document))
    return undone


async def reinstate(database: Database, counts: Mapping[str, float], reason: str) -> list[int]:
    """Count Steps again that a rollback had undone, when an operator goes back to a checkpoint that covers them.
    Returns their numbers. A record that was sampled again since then is left out of the Step, because it will train
    anyway."""
    check(STEP, StepStatus.ROLLED_BACK, StepStatus.COMMITTED, Actor.TRAINER)
    inside = {"status": StepStatus.ROLLED_BACK, "$or": _counting(counts)}
    counted = []
    for document in await database.find("Step", inside, sort=[("step", 1)]):
        again = {"status": StepStatus.COMMITTED, "reason": reason, "followed": False, "reinstating": True}
        rolled_back = {"_id": document["_id"], "status": StepStatus.ROLLED_BACK}
        if await database.update_one("Step", rolled_back, {"$set": again}):
            counted.append(int(document["step"]))
        await _follow_reinstatement(database, load(Step, document))
    return counted


def _counting(counts: Mapping[str, float]) -> list[Plain]:
    """Conditions of the Steps that count."""
    whole = [{"lineage": lineage} for lineage, last in counts.items() if math.isinf(last)]
    return [*whole, *({"lineage": one, "step": {"$lte": last}} for one, last in counts.items() if math.isfinite(last))]


async def follow(database: Database) -> int:
    """Derive the statuses of Tasks from their Steps again, in case a process died between the two updates. Returns the
    number of such Steps."""
    followed = await follow_leased(database)
    unfollowed = {"status": StepStatus.ROLLED_BACK, "followed": {"$ne": True}}
    for document in await database.find("Step", unfollowed, projection={"metrics": 0}):
        followed += await _follow_roll_back(database, load(Step, document)) > 0
    for document in await database.find("Step", {"reinstating": True}, sort=[("step", 1)], projection={"metrics": 0}):
        followed += await _follow_reinstatement(database, load(Step, document)) > 0
    return followed


async def follow_leased(database: Database) -> int:
    """The part that any process may do at any time: free Tasks that are leased by a Step that is not."""
    held = {"status": TaskStatus.LEASED}
    groups_of_tasks = await database.aggregate(
        "Task", [{"$match": held}, {"$group": {"_id": {"lineage": "$lineage", "step": "$step"}}}]
    )
    followed = 0
    for group in groups_of_tasks:
        name = step_id(group["_id"]["lineage"], group["_id"]["step"])
        step = load_if(Step, await database.find_one("Step", {"_id": name}, projection={"metrics": 0}))
        if step is None or step.status == StepStatus.LEASED:
            continue
        followed += 1
        await (_follow_commit if step.status == StepStatus.COMMITTED else _follow_release)(database, step)
    return followed


async def leased(database: Database) -> list[Step]:
    return [load(Step, step) for step in await database.find("Step", {"status": StepStatus.LEASED})]


class Died(NamedTuple):
    """A Step during which its trainer ended."""

    order: float
    """When it was leased, in seconds."""
    tasks: frozenset[str]
    records: frozenset[str]


async def deaths(database: Database) -> list[Died]:
    ended = {"status": StepStatus.RELEASED, "died": True}
    documents = await database.find("Step", ended, sort=[("leased_at", -1)], limit=DEATHS_REMEMBERED)
    known = [load(Step, document) for document in documents]
    return [Died(_when(step), frozenset(step.tasks), frozenset(step.records)) for step in known]


async def last_trained(database: Database, tasks: Sequence[str]) -> dict[str, float]:
    """When each of these Tasks was last in a Step whose optimizer ran, whether or not that Step was rolled back."""
    ran = {"tasks": {"$in": list(tasks)}, "status": {"$in": [StepStatus.COMMITTED, StepStatus.ROLLED_BACK]}}
    found: dict[str, float] = {}
    for document in await database.find("Step", ran, sort=[("leased_at", 1)], projection=["tasks", "leased_at"]):
        found |= dict.fromkeys(document["tasks"], document["leased_at"].timestamp())
    return found


def _when(step: Step) -> float:
    return step.leased_at.timestamp() if step.leased_at else 0.0


# ---- what follows ----


def _of(step: Step) -> Plain:
    return {"status": TaskStatus.LEASED, "lineage": step.lineage, "step": step.step}


async def _follow_commit(database: Database, step: Step) -> None:
    for target in (TaskStatus.TRAINED, TaskStatus.FILTERED):
        check(TASK, TaskStatus.LEASED, target, Actor.TRAINER, step.id)
    # With this condition it counts once, however often it is repeated.
    trained: Plain = {"$set": {"status": TaskStatus.TRAINED}, "$inc": {"trained_count": 1}}
    trained["$currentDate"] = {"trained_at": True}
    await database.update_many("Task", {"_id": {"$in": step.tasks}, **_of(step)}, trained)
    filtered = {"$set": {"status": TaskStatus.FILTERED}}
    await database.update_many("Task", {"_id": {"$in": step.filtered}, **_of(step)}, filtered)


async def _follow_release(database: Database, step: Step) -> None:
    # The trainer is the actor for these Tasks, even if the steward releases them in its place.
    check(TASK, TaskStatus.LEASED, TaskStatus.READY, Actor.TRAINER, step.id)
    free = {"$set": {"status": TaskStatus.READY, "lineage": "", "step": -1}}
    await database.update_many("Task", _of(step), free)


async def _follow_roll_back(database: Database, step: Step) -> int:
    """Make its Tasks ready again, and count only their Steps that are still committed."""
    check(TASK, TaskStatus.TRAINED, TaskStatus.READY, Actor.TRAINER, step.id)
    ended = {"$in": [TaskStatus.TRAINED, TaskStatus.FILTERED, TaskStatus.LEASED]}
    free = {"$set": {"status": TaskStatus.READY, "lineage": "", "step": -1}}
    freed = await database.update_many("Task", {**_of(step), "status": ended}, free)
    await _count_trainings(database, step.tasks)
    await database.update_one("Step", {"_id": step.id}, {"$set": {"followed": True}})
    return freed


async def _follow_reinstatement(database: Database, step: Step) -> int:
    """Mark its Tasks as trained again, if they still have the records that it trained."""
    for target in (TaskStatus.TRAINED, TaskStatus.FILTERED):
        check(TASK, TaskStatus.READY, target, Actor.TRAINER, step.id)
    mine: Plain = {"lineage": step.lineage, "step": step.step}
    free = {"status": {"$in": [TaskStatus.READY, TaskStatus.TRAINED]}}
    same = {"$or": [free | {"shares.record": {"$in": step.records}}, {"status": TaskStatus.TRAINED, **mine}]}
    trained = await database.find("Task", {"_id": {"$in": step.tasks}, **same}, projection=["shares.record"])
    tasks = [task["_id"] for task in trained]
    members = {share["record"] for task in trained for share in task["shares"]}
    unused = {"$or": [{"status": TaskStatus.READY, "signal": False}, {"status": TaskStatus.FILTERED, **mine}]}
    filtered = [
        task["_id"]
        for task in await database.find("Task", {"_id": {"$in": step.filtered}, **unused}, projection=["_id"])
    ]
    records = [record for record in step.records if record in members]
    kept: Plain = {"tasks": tasks, "filtered": filtered, "records": records, "empty": not records}
    kept["intervened"] = await _count_forks(database, records)
    await database.update_one("Step", {"_id": step.id}, {"$set": kept})
    for names, status in ((tasks, TaskStatus.TRAINED), (filtered, TaskStatus.FILTERED)):
        await database.update_many("Task", {"_id": {"$in": names}}, {"$set": {"status": status, **mine}})
    await _count_trainings(database, step.tasks)
    await database.update_one("Step", {"_id": step.id}, {"$set": {"reinstating": False}})
    return len(tasks) + len(filtered)


async def _count_trainings(database: Database, tasks: Sequence[str]) -> None:
    for task in tasks:
        standing = await database.count("Step", {"tasks": task, "status": StepStatus.COMMITTED})
        other = {"_id": task, "trained_count": {"$ne": standing}}
        await database.update_one("Task", other, {"$set": {"trained_count": standing}})
