"""Reads the records that an operator chose, with what decides whether they can be changed: their task, the step that
has them, and the newest attempt at their seat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentrl.policies.status_tables import StepStatus
from agentrl.store import tasks
from agentrl.store.database import Database, Plain
from agentrl.store.documents import Record, Task, load

_VERBS = {
    StepStatus.LEASED: "is leased by",
    StepStatus.COMMITTED: "trained in",
    StepStatus.ROLLED_BACK: "trained, before a rollback, in",
}
_TASK = {"query": 0, "answer": 0, "extra": 0}


class Refused(NamedTuple):
    """Why a record cannot be changed."""

    kind: str
    """The kind of reason, in words that fit several records: `a step has them`."""
    sentence: str


class Chosen(NamedTuple):
    record: Record
    task: Task | None
    step: Plain | None
    """The newest step that has the record."""
    newest_attempt: int
    """The number of the newest attempt at its seat."""

    @property
    def trained(self) -> Refused | None:
        """The refusal if a step has it. A rolled back step counts too: another rollback can make it count again."""
        if self.step is None:
            return None
        verb = _VERBS[self.step["status"]]
        step = f"step {self.step['step']} of {self.step['lineage']}"
        return Refused("a step leased or trained them", f"{self.record.id} {verb} {step}.")

    def over(self, among: Iterable[str]) -> Refused | None:
        """The refusal if its task is in another round, or in none of these statuses."""
        if self.task is not None and self.task.round == self.record.round and self.task.status in among:
            return None
        story = tasks.story(self.task) if self.task else "its task does not exist"
        return Refused("their tasks are over", f"{self.record.id} is over: {story}.")


async def read(database: Database, ids: Sequence[str]) -> dict[str, Chosen]:
    """The records that exist, by id."""
    found = await database.find("Record", {"_id": {"$in": list(ids)}})
    records = [load(Record, document) for document in found]
    names = sorted({record.task for record in records})
    documents = await database.find("Task", {"_id": {"$in": names}}, projection=_TASK)
    of_them = {document["_id"]: load(Task, document) for document in documents}
    steps = await _steps(database, [record.id for record in records])
    newest = await _newest_attempts(database, names)
    return {
        record.id: Chosen(
            record,
            of_them.get(record.task),
            steps.get(record.id),
            newest.get((record.task, record.round, record.seat), record.attempt),
        )
        for record in records
    }


async def step_with(database: Database, record: str) -> str:
    """The number and lineage of the newest step that has this record, also if it was rolled back; empty if none has."""
    step = (await _steps(database, [record])).get(record)
    return f"{step['step']} of {step['lineage']}" if step else ""


async def _steps(database: Database, records: Sequence[str]) -> dict[str, Plain]:
    """The newest step that has each of these records."""
    has_them = {"status": {"$in": list(_VERBS)}, "records": {"$in": list(records)}}
    fields = ["status", "lineage", "step", "records"]
    documents = await database.find("Step", has_them, sort=[("leased_at", 1)], projection=fields)
    wanted = set(records)
    return {record: step for step in documents for record in step["records"] if record in wanted}


async def _newest_attempts(database: Database, names: Sequence[str]) -> dict[tuple[str, int, int], int]:
    seat = {name: f"${name}" for name in ("task", "round", "seat")}
    again = {"task": {"$in": list(names)}, "attempt": {"$gt": 1}}
    stages: list[Plain] = [{"$match": again}, {"$group": {"_id": seat, "last": {"$max": "$attempt"}}}]
    documents = await database.aggregate("Record", stages)
    return {(one["_id"]["task"], one["_id"]["round"], one["_id"]["seat"]): int(one["last"]) for one in documents}
