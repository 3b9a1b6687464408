"""Has the seats of records attempted again.

Invariants:
- While the group is open, the record is marked, and the steward opens the next attempt at its seat; such an attempt
  costs no re-draw.
- If the group was closed, or its task is dead, the whole task is sampled again in its next round.
- A group is never closed by a process that read the record before it was marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import RefusedError
from agentrl.policies.group_closing import REDRAWN
from agentrl.policies.status_tables import RecordStatus, TaskStatus
from agentrl.store import groups, tasks
from agentrl.store.chosen_records import Chosen, Refused
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS, Record, Task

OPEN = (TaskStatus.ADMITTED, TaskStatus.READY, TaskStatus.DEAD)
_HINTS = {
    RecordStatus.SCORED: "exclude it first, or sample its whole task again with `agentrl tasks requeue`",
    RecordStatus.UNSCORABLE: "its answer is there, and no scorer can judge it",
}


def refusal(one: Chosen) -> Refused | None:
    record = one.record
    if record.status not in REDRAWN:
        can = "only records that failed, or were abandoned, excluded or cancelled, can be requeued"
        hint = f"; {_HINTS[RecordStatus(record.status)]}" if record.status in _HINTS else ""
        return Refused("they did not fail", f"{record.id} is {record.status}; {can}{hint}.")
    if over := one.over(OPEN):
        return over
    assert one.task is not None
    if is_seat(one.task) and one.newest_attempt > record.attempt:
        followed = f"{record.id} is followed by attempt {one.newest_attempt} at its seat."
        return Refused("their seats are attempted again already", followed)
    if not is_seat(one.task) and record.purpose not in TRAINS:
        return Refused("they do not train", f"{record.id} does not train, and its group is closed.")
    return None


def is_seat(task: Task) -> bool:
    """Whether only the seat is attempted again, and not the whole task."""
    return task.status == TaskStatus.ADMITTED


def is_unfinished(record: Record, task: Task) -> bool:
    """Whether the task of a record that was marked is still where it was, and closed."""
    return task.round == record.round and task.status in OPEN and not is_seat(task)


async def requeue(database: Database, task: Task, records: Sequence[str], note: str, *, by: str) -> int:
    """Returns how many attempts will be opened; raises RefusedError if the task went on meanwhile."""
    ended = {"_id": {"$in": list(records)}, "status": {"$in": list(REDRAWN)}}
    if not is_seat(task):
        await database.update_many("Record", ended, {"$set": {"requeued_by": by}})
        await tasks.requeue(database, task.id, note or "its records were requeued", by=by)
        return task.n
    marked = await database.update_many("Record", ended, {"$set": {"requeued_by": by, "followed": False}})
    if not await groups.note_change(database, task):
        raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    return marked
