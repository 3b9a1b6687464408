"""Tasks: rounds, seats, the queue, the dead.

Invariants: a Task is admitted by one conditional update that names its round; then its Records are inserted, and
`seating` stays true until all of them exist; a new round begins by one conditional update, and `sweeping` stays true
until no record of the former round holds a seat; a round is not ended if an operator changed it after it was read. A
process that finds one of these flags finishes the work: `repair`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from agentrl.errors import RefusedError, UnknownNameError
from agentrl.policies import group_closing
from agentrl.policies.status_tables import HOLDS_SEAT, RECORD, TASK, Actor, RecordStatus, TaskStatus, check
from agentrl.store.database import AlreadyThereError, Database, Plain
from agentrl.store.document_ids import record_id
from agentrl.store.documents import TRAINS, Fork, Record, Task, load, load_if, storable, to_bson
from agentrl.store.update_expressions import NOW, from_now, setting

NO_SCORERS: Mapping[str, str] = MappingProxyType({})
STALE = "stale"
"""The reason of a round whose records were all too old to train once its group was closed."""
_SEATS_FOLLOW_FROM = ["environment", "purpose", "status", "round", "n", "admitted_order", "admitted_at", "fork"]
_SWEPT = sorted(status.value for status in HOLDS_SEAT)


async def insert(database: Database, tasks: Sequence[Task]) -> int:
    """Queue Tasks; existing ones stay unchanged. Returns how many were new."""
    return await database.insert_new("Task", storable(to_bson(tasks)))


async def get(database: Database, task: str) -> Task:
    found = load_if(Task, await database.find_one("Task", {"_id": task}))
    if found is None:
        raise UnknownNameError(f"There is no task {task}.")
    return found


async def of_record(database: Database, record: str) -> Task:
    """The task whose attempt a record is."""
    return await get(database, record.partition("#")[0])


async def admit(
    database: Database,
    tasks: Sequence[Task],
    *,
    n: int,
    sampling: Mapping[str, Any],
    deadline_s: float,
    rounds_max: int,
    scorers: Mapping[str, str] = NO_SCORERS,
    first_order: int | None = None,
    closing: Mapping[str, Any] | None = None,
) -> int:
    """Admit queued Tasks one after the other, and open their seats. Returns how many. It stops at the first Task that
    another process admitted or whose round has changed, and when another process took the place in the order.
    `scorers`: by the id of a task, its scorer from now on. `first_order`: the place of the first Task.
    `closing`: settings of the group, of `GroupRule.kept`."""
    order = first_order or await last_order(database) + 1
    admitted: list[Task] = []
    for task in tasks:
        check(TASK, TaskStatus.QUEUED, TaskStatus.ADMITTED, Actor.STEWARD, story(task))
        frozen = {
            "status": TaskStatus.ADMITTED,
            "seating": True,
            "n": task.fork.times if task.fork else n,
            "sampling": dict(sampling),
            "closing": dict(closing or {}),
            "rounds_max": task.rounds_max if task.fork else rounds_max,
            "admitted_order": order + len(admitted),
            "shares": [],
            "baseline": None,
            "signal": False,
            "members": 0,
        } | ({"scorer": scorers[task.id]} if task.id in scorers else {})
        queued = {"_id": task.id, "status": TaskStatus.QUEUED, "round": task.round}
        update = setting(
            frozen,
            admitted_at=NOW,
            first_admitted_at={"$ifNull": ["$first_admitted_at", NOW]},
            deadline_at=from_now(deadline_s),
            closed_at=None,
        )
        try:
            won = await database.find_one_and_update("Task", queued, update, projection=_SEATS_FOLLOW_FROM)
        except AlreadyThereError:
            break
        if won is None:
            break
        admitted.append(load(Task, won))
    await seat(database, admitted)
    return len(admitted)


async def last_order(database: Database) -> int:
    """The greatest place in the order of admission given so far; each place is given once."""
    newest = await database.find_one(
        "Task", {"admitted_order": {"$gt": 0}}, sort=[("admitted_order", -1)], projection=["admitted_order"]
    )
    return int(newest["admitted_order"]) if newest else 0


async def since_last_admission_s(database: Database) -> float:
    """How long ago the last Task was admitted by order; 0 if none was."""
    newest = await database.find_one(
        "Task", {"admitted_order": {"$gt": 0}}, sort=[("admitted_order", -1)], projection=["admitted_at"]
    )
    then = newest["admitted_at"] if newest else None
    return max(0.0, (await database.now() - then).total_seconds()) if then else 0.0


async def seat(database: Database, admitted: Sequence[Task]) -> None:
    """Open the missing seats of admitted Tasks."""
    if not admitted:
        return
    await _open(database, [(task, place, 1, task.admitted_at) for task in admitted for place in range(task.n)])
    rounds: dict[int, list[str]] = defaultdict(list)
    for task in admitted:
        rounds[task.round].append(task.id)
    for round, names in rounds.items():
        await database.update_many("Task", {"_id": {"$in": names}, "round": round}, {"$set": {"seating": False}})


async def open_records(
    database: Database, task: Task, seats: Sequence[tuple[int, int]], fork: Fork | None = None
) -> int:
    """Insert new attempts: (seat, attempt). If the round of the Task changed meanwhile, they are superseded at once.
    `fork`: where they begin; attempts of a branch begin where the branch does."""
    now = await database.now()
    return await _open(database, [(task, place, attempt, now) for place, attempt in seats], fork)


async def _open(
    database: Database, seats: Sequence[tuple[Task, int, int, datetime | None]], fork: Fork | None = None
) -> int:
    """The open Records of these attempts: task, seat, attempt, and the time."""
    records = [
        Record(
            id=record_id(task.id, task.round, place, attempt),
            task=task.id,
            environment=task.environment,
            purpose=task.purpose,
            round=task.round,
            seat=place,
            attempt=attempt,
            # Evaluations come first: their results are waited for, while training has other episodes.
            order=task.admitted_order if task.purpose in TRAINS else 0,
            created_at=at,
            fork=fork or task.fork,
        )
        for task, place, attempt, at in seats
    ]
    new = await database.insert_new("Record", to_bson(records))
    # Checked after the insert: if a new round began before it, its sweep could not find these Records.
    rounds = {task.id: task.round for task, *_ in seats}
    still = {"_id": {"$in": list(rounds)}, "status": TaskStatus.ADMITTED}
    documents = await database.find("Task", still, projection=["round"])
    there = {task["_id"] for task in documents if task["round"] == rounds[task["_id"]]}
    if gone := [record.id for record in records if record.task not in there]:
        await _supersede(database, {"_id": {"$in": gone}, "status": RecordStatus.OPEN}, "its task had gone on")
    return new


def unchanged(task: Task) -> dict[str, Any]:
    """A condition: the Task has not changed since it was read, and operators have not changed its records."""
    changes = task.changes or {"$in": [None, 0]}
    return {"_id": task.id, "status": task.status, "round": task.round, "changes": changes}


async def next_round(
    database: Database, task: Task, actor: Actor, reason: str, *, final_reason: str = "rounds"
) -> TaskStatus | None:
    """Sample the Task again, or give it up if no rounds are left. Returns None if it changed meanwhile."""
    again = group_closing.another_round(task.round, task.rounds_max)
    target = TaskStatus.QUEUED if again else TaskStatus.DEAD
    moved = await _leave(database, task, target, actor, reason if again else final_reason, task.round + again)
    return target if moved else None


async def kill(database: Database, task: Task, actor: Actor, reason: str) -> bool:
    """Move the Task to the dead letters."""
    return await _leave(database, task, TaskStatus.DEAD, actor, reason, task.round)


def refuse_requeue(task: Task) -> None:
    """Raises RefusedError, with the history of the task, if a requeue makes no sense."""
    if task.status == TaskStatus.LEASED:
        raise RefusedError(
            f"{task.id} is leased by step {task.step} of {task.lineage}; it cannot be sampled again now."
        )
    check(TASK, task.status, TaskStatus.QUEUED, Actor.OPERATOR, story(task))


async def requeue(database: Database, task_id: str, reason: str, *, by: str = "") -> Task:
    """Requeue for an operator, once per operation `by`. Raises RefusedError, with the history of the task, if that
    makes no sense."""
    task = await get(database, task_id)
    if by and task.requeued_by == by:
        await sweep(database, task.id, Actor.OPERATOR)
        return task
    refuse_requeue(task)
    # A queued Task has no round to end. An admitted one has, even before its seats exist: they may still be inserted,
    # and would have the names of those that the next admission opens.
    round = task.round + (task.status != TaskStatus.QUEUED)
    if not await _leave(database, task, TaskStatus.QUEUED, Actor.OPERATOR, reason, round, requeued_by=by):
        raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    return await get(database, task_id)


async def _leave(
    database: Database, task: Task, target: TaskStatus, actor: Actor, reason: str, round: int, **more: str
) -> bool:
    """End the present round; in the new status none of its records holds a seat."""
    check(TASK, task.status, target, actor, story(task))
    left: Plain = {
        "$set": {
            "status": target,
            "reason": reason,
            "round": round,
            "sweeping": True,
            "seating": False,
            "signal": False,
            "baseline": None,
            "shares": [],
            "members": 0,
            "repairs": [],
            "repairing": False,
            "lineage": "",
            "step": -1,
            # The next round will have its own details.
            "pruned": False,
            **more,
        }
    }
    if not await database.update_one("Task", unchanged(task), left):
        return False
    await sweep(database, task.id, actor)
    return True


async def sweep(database: Database, task_id: str, actor: Actor = Actor.STEWARD) -> None:
    """Supersede records that hold seats of rounds that are over."""
    task = load_if(Task, await database.find_one("Task", {"_id": task_id, "sweeping": True}))
    if task is None:
        return
    check(RECORD, RecordStatus.OPEN, RecordStatus.SUPERSEDED, actor)
    over = task.round if task.status == TaskStatus.DEAD else task.round - 1
    seated = {"task": task.id, "round": {"$lte": over}, "status": {"$in": _SWEPT}}
    await _supersede(database, seated, task.reason)
    same = {"_id": task.id, "round": task.round, "status": task.status}
    await database.update_one("Task", same, {"$set": {"sweeping": False}})


async def _supersede(database: Database, filter: Plain, reason: str) -> None:
    await database.update_many("Record", filter, {"$set": {"status": RecordStatus.SUPERSEDED, "reason": reason}})


async def repair(database: Database) -> int:
    """Finish work that a process left half done."""
    seating = await database.find("Task", {"seating": True}, projection=_SEATS_FOLLOW_FROM)
    sweeping = await database.find("Task", {"sweeping": True}, projection=["_id"])
    await seat(database, [load(Task, found) for found in seating if found["status"] == TaskStatus.ADMITTED])
    for found in sweeping:
        await sweep(database, found["_id"])
    return len(seating) + len(sweeping)


async def again(database: Database, task_id: str, *, most: int) -> bool:
    """Let a trained Task train once more. The steward calls it after the interval."""
    check(TASK, TaskStatus.TRAINED, TaskStatus.READY, Actor.STEWARD, task_id)
    allowed = {"_id": task_id, "status": TaskStatus.TRAINED, "trained_count": {"$lt": most}}
    return await database.update_one("Task", allowed, {"$set": {"status": TaskStatus.READY, "lineage": "", "step": -1}})


async def exhausted(database: Database, epochs: Mapping[str, int]) -> bool:
    """Whether no Task that could train is queued or admitted, or will be; `epochs` says how many there are of each
    environment."""
    waiting = {"status": {"$in": [TaskStatus.QUEUED, TaskStatus.ADMITTED]}, "purpose": {"$in": list(TRAINS)}}
    for environment, many in epochs.items():
        begun = {"environment": environment, "split": "train", "done": True}
        if await database.count("Epoch", begun) < many:
            return False
    # Queried after the epochs, so that their new tasks are already in the queue.
    return await database.find_one("Task", waiting, projection=["_id"]) is None


def story(task: Task) -> str:
    reason = f" ({task.reason})" if task.reason else ""
    where = f", step {task.step} of {task.lineage}" if task.lineage else ""
    return f"{task.id} is {task.status}{reason} in round {task.round} of {task.rounds_max}{where}"
