"""Excludes scored records that an operator does not want to train.

Invariants:
- A record that is in a leased, committed or rolled back step is never excluded: a rollback can make a step count again,
  so only records that never trained leave their group.
- The task changes first, by one conditional update that names what it excluded before; then its records change. A
  process that closes the group at the same time closes it without these records, or not at all.
- A group that was closed gets the baseline and the shares of the records that are left. If too few are left, the task
  goes to its next round.
- An operation excludes once; if it is repeated, it finishes what it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import RefusedError
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.status_tables import RECORD, Actor, RecordStatus, TaskStatus, check
from agentrl.store import groups, tasks
from agentrl.store.chosen_records import Chosen, Refused
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS, Task
from agentrl.store.update_expressions import literally

CHANGEABLE = (TaskStatus.ADMITTED, TaskStatus.READY)
TOO_FEW = "too few of its records are left after an exclusion"


def refusal(one: Chosen) -> Refused | None:
    record = one.record
    if one.trained is not None:
        return one.trained
    if record.purpose not in TRAINS:
        return Refused("they do not train", f"{record.id} does not train: its purpose is {record.purpose}.")
    if record.status not in (RecordStatus.SCORED, RecordStatus.EXCLUDED):
        return Refused("they are not scored", f"{record.id} is {record.status}; only scored records can be excluded.")
    return one.over(CHANGEABLE)


def is_unfinished(one: Chosen, by: str) -> bool:
    """Whether the operation excluded the record, and may have been interrupted before it wrote the consequences."""
    return one.record.excluded_by == by and one.task is not None and one.task.round == one.record.round


async def exclude(
    database: Database, task: Task, records: Sequence[str], note: str, *, by: str, rule: GroupRule
) -> bool:
    """Exclude records of one task. Returns False if its other records are too few, so that it is sampled again.
    Raises RefusedError if the task changed since it was read."""
    check(RECORD, RecordStatus.SCORED, RecordStatus.EXCLUDED, Actor.OPERATOR, task.id)
    after, enough = await _after(database, task, records, rule)
    changed = literally({**after, "changes": task.changes + 1})
    if not await database.update_one("Task", tasks.unchanged(task), [{"$set": changed}]):
        raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    reason = f"excluded: {note}" if note else "excluded by an operator"
    await database.update_many(
        "Record",
        {"_id": {"$in": list(records)}, "status": RecordStatus.SCORED},
        {"$set": {"status": RecordStatus.EXCLUDED, "reason": reason, "excluded_by": by}},
    )
    none = {"advantage": None, "excluded": True}
    await database.update_many("DBRecordData", {"_id": {"$in": list(records)}}, {"$set": none})
    if not enough:
        await tasks.requeue(database, task.id, TOO_FEW, by=by)
    elif task.status == TaskStatus.READY:
        await groups.settle(database, [await tasks.get(database, task.id)])
    return enough


async def leaves_enough(database: Database, task: Task, records: Sequence[str], rule: GroupRule) -> bool:
    """Whether a closed group would still have enough records."""
    return (await _after(database, task, records, rule))[1]


async def _after(
    database: Database, task: Task, records: Sequence[str], rule: GroupRule
) -> tuple[Mapping[str, Any], bool]:
    """The fields of a task without these records, and whether enough are left."""
    excluded = sorted({*task.excluded, *records})
    if task.status == TaskStatus.ADMITTED:
        return {"excluded": excluded}, True
    fields, enough = await groups.closed_again(database, task, rule, without=excluded)
    return {"excluded": excluded, **fields}, enough
