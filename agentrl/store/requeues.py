"""Requeues the seats of records.

Invariants:
- While the group is open, the record is marked, and the steward opens the next attempt at its seat; such an attempt
  costs no re-draw.
- If the group was closed, or its task is dead, the whole task is sampled again in its next round.
- A group is never closed by a process that read the record before it was marked.
- A repeated operation continues where it ended; a record whose task went into a step meanwhile is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import RefusedError
from agentrl.policies.group_closing import REDRAWN
from agentrl.policies.status_tables import RecordStatus, TaskStatus
from agentrl.store import groups, tasks
from agentrl.store.chosen_records import Chosen, Refused
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS, Task

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


def is_unfinished(one: Chosen) -> bool:
    """Whether neither the seat nor the whole task of a marked record is attempted again yet."""
    return one.task is not None and one.task.round == one.record.round and one.newest_attempt == one.record.attempt


async def requeue(database: Database, task: Task, records: Sequence[str], note: str, *, by: str) -> int:
    """Returns how many attempts will be opened. Raises RefusedError if the status or round of the task changed
    meanwhile. It may be repeated until it returns: the marks are written first, so that the operation finds its records
    again."""
    ended = {"_id": {"$in": list(records)}, "status": {"$in": list(REDRAWN)}}
    mark = {"requeued_by": by} | ({"followed": False} if is_seat(task) else {})
    marked = await database.update_many("Record", ended, {"$set": mark})
    try:
        if not is_seat(task):
            await tasks.requeue(database, task.id, note or "its records were requeued", by=by)
            return task.n
        if not await groups.note_change(database, task):
            raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    except RefusedError:
        mine = {"_id": {"$in": list(records)}, "requeued_by": by}
        await database.update_many("Record", mine, {"$set": {"requeued_by": ""}})
        raise
    return marked
