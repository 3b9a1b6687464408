"""Excludes scored records that an operator does not want to train.

Invariants:
- A record that stands in a leased, committed or rolled back step is never excluded: a rollback can make a step count
  again, so only records that never trained leave their group.
- The task changes first, by one conditional update that names what it excluded before; its records follow. Whoever
  closes the group at the same time closes it without them, or not at all.
- A group that was closed gets the baseline and the shares of the records that are left. If too few are left, the task
  goes to its next round.
- The same operation does it once; if it is repeated, it finishes what was begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import RefusedError
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.status_tables import RECORD, Actor, RecordStatus, StepStatus, TaskStatus, check
from agentrl.store import groups, tasks
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS, Record, Task, load
from agentrl.store.update_expressions import literally

CHANGEABLE = (TaskStatus.ADMITTED, TaskStatus.READY)
TOO_FEW = "too few of its records are left after an exclusion"
_VERBS = {
    StepStatus.LEASED: "is leased by",
    StepStatus.COMMITTED: "trained in",
    StepStatus.ROLLED_BACK: "trained, before a rollback, in",
}


@dataclass
class Exclusion:
    """Which records of which tasks can be excluded, and why others cannot."""

    tasks: dict[str, Task] = field(default_factory=dict)
    records: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By task."""
    refused: dict[str, str] = field(default_factory=dict)
    """By record: a sentence."""
    done: list[str] = field(default_factory=list)
    """Records that were excluded before."""

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))


async def plan(database: Database, ids: Sequence[str], *, by: str = "") -> Exclusion:
    """Sort records into those that can be excluded and those that cannot. Records that the operation `by` began to
    exclude count as ones that can."""
    planned = Exclusion()
    records = {one["_id"]: load(Record, one) for one in await database.find("Record", {"_id": {"$in": list(ids)}})}
    of_tasks = {"_id": {"$in": sorted({record.task for record in records.values()})}}
    found = {one["_id"]: load(Task, one) for one in await database.find("Task", of_tasks, projection=_TASK)}
    taken = await _taken(database, list(records))
    for id in dict.fromkeys(ids):
        record = records.get(id)
        if record is None:
            planned.refused[id] = f"There is no record {id}."
        elif record.status == RecordStatus.EXCLUDED and not _is_unfinished(record, found.get(record.task), by):
            planned.done.append(id)
        elif why := _refusal(record, found.get(record.task), taken.get(id)):
            planned.refused[id] = why
        else:
            planned.tasks[record.task] = found[record.task]
            planned.records[record.task].append(id)
    return planned


async def exclude(
    database: Database, task: Task, records: Sequence[str], note: str, *, by: str, rule: GroupRule
) -> bool:
    """Exclude records of one task. Returns False if its other records are too few, so that it is sampled again.
    Raises RefusedError if the task changed since it was read."""
    check(RECORD, RecordStatus.SCORED, RecordStatus.EXCLUDED, Actor.OPERATOR, task.id)
    after, enough = await _after(database, task, records, rule)
    unchanged = {"_id": task.id, "status": task.status, "round": task.round, **groups.excluding_the_same(task)}
    if not await database.update_one("Task", unchanged, [{"$set": literally(after)}]):
        raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    reason = f"excluded: {note}" if note else "excluded by an operator"
    await database.update_many(
        "Record",
        {"_id": {"$in": list(records)}, "status": RecordStatus.SCORED},
        {"$set": {"status": RecordStatus.EXCLUDED, "reason": reason, "excluded_by": by}},
    )
    await database.update_many("DBRecordData", {"_id": {"$in": list(records)}}, {"$set": {"advantage": None}})
    if not enough:
        await tasks.requeue(database, task.id, TOO_FEW, by=by)
    elif task.status == TaskStatus.READY:
        await groups.settle(database, [await tasks.get(database, task.id)])
    return enough


async def sampled_again(database: Database, planned: Exclusion, rule: GroupRule) -> int:
    """How many of the groups would have too few records left."""
    closed = [task for task in planned.tasks.values() if task.status == TaskStatus.READY]
    return sum([not (await _after(database, task, planned.records[task.id], rule))[1] for task in closed])


async def _after(
    database: Database, task: Task, records: Sequence[str], rule: GroupRule
) -> tuple[Mapping[str, Any], bool]:
    """The fields of a task without these records, and whether enough are left."""
    excluded = sorted({*task.excluded, *records})
    if task.status == TaskStatus.ADMITTED:
        return {"excluded": excluded}, True
    members = {share.record for share in task.shares} - set(excluded)
    found = await database.find("Record", {"_id": {"$in": sorted(members)}}, projection=groups.READ)
    closed = groups.closing_of(task, [load(Record, document) for document in found], rule)
    return {"excluded": excluded, **groups.closed_fields(closed, len(found), rule)}, closed.enough


def _refusal(record: Record, task: Task | None, step: Plain | None) -> str:
    if step is not None:
        verb = {"leased": "is leased by", "committed": "trained in"}.get(
            step["status"], "trained, before a rollback, in"
        )
        return f"{record.id} {verb} step {step['step']} of {step['lineage']}."
    if record.purpose not in TRAINS:
        return f"{record.id} does not train: its purpose is {record.purpose}."
    if record.status not in (RecordStatus.SCORED, RecordStatus.EXCLUDED):
        return f"{record.id} is {record.status}; only scored records can be excluded."
    if task is None or task.round != record.round or task.status not in CHANGEABLE:
        return f"{record.id} is over: {tasks.story(task) if task else 'its task does not exist'}."
    return ""


def _is_unfinished(record: Record, task: Task | None, by: str) -> bool:
    """Whether the operation excluded it, and may have ended before it wrote everything that follows."""
    return bool(by) and record.excluded_by == by and task is not None and task.round == record.round


async def step_with(database: Database, record: str) -> str:
    """The number and lineage of the newest step that has this record, also if it was rolled back; empty if none has."""
    step = (await _taken(database, [record])).get(record)
    return f"{step['step']} of {step['lineage']}" if step else ""


async def _taken(database: Database, records: Sequence[str]) -> dict[str, Plain]:
    """The newest step that has each of these records."""
    has_them = {"status": {"$in": list(_VERBS)}, "records": {"$in": list(records)}}
    fields = ["status", "lineage", "step", "records"]
    found = await database.find("Step", has_them, sort=[("leased_at", 1)], projection=fields)
    wanted = set(records)
    return {record: step for step in found for record in step["records"] if record in wanted}


_TASK = {"query": 0, "answer": 0, "extra": 0}
