"""Forks: records that go on from a place in another record, the base.

Invariants:
- A repair is decided by one conditional update of its Task, which also excludes the base. Its consequences can be
  written again at any time (`finish_repairs`), and the group does not close before they are written.
- A seat is never held by a repair and another attempt. An attempt that ended before the base was excluded keeps the
  seat, and the repair is withdrawn.
- A branch is one Task, whose id is made from the operation and the place, so it is inserted once.
- The sampler that claims a fork copies its trunk under the ids of the fork; copying again changes nothing. In a branch,
  the copied tokens are marked as context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from agentrl.errors import RefusedError
from agentrl.policies.fork_rules import NOT_ENDED, ForkKind
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.status_tables import (
    HOLDS_SEAT,
    RECORD,
    TASK,
    Actor,
    RecordStatus,
    TaskStatus,
    ToolCallStatus,
    check,
)
from agentrl.store import tasks
from agentrl.store.call_writer import CALLS
from agentrl.store.calls import WITH_TOKENS
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import within
from agentrl.store.documents import Fork, Record, Task, load, storable, to_bson
from agentrl.store.update_expressions import literally

_ENDED = (ToolCallStatus.OK, ToolCallStatus.TOOL_ERROR, ToolCallStatus.TIMEOUT, ToolCallStatus.CANCELLED)
_ANSWERED = (*_ENDED, ToolCallStatus.REFUSED)
"""Statuses of tool calls whose result the model could read."""


async def done_before(database: Database, task: Task, fork: Fork) -> str:
    """The record or the task that this operation has already forked from this place; empty if there is none. Finishes a
    repair that was decided."""
    if any((one.base, one.operation) == (fork.base, fork.operation) for one in task.repairs):
        await _finish_repairs_of(database, task.id)
    repaired = await _repaired(database, task.id, fork)
    if repaired is not None:
        return repaired
    id = branch_id(task, fork)
    if await database.find_one("Task", {"_id": id}, projection=["_id"]) is None:
        return ""
    await _note_fork(database, fork, id)
    return id


# ---- repairs ----


async def repair(database: Database, task: Task, base: Record, fork: Fork) -> str:
    """Give the seat of a record to a fork of it. Returns the id of the fork. Raises RefusedError if the task changed
    since it was read, or another attempt at the seat ended."""
    check(RECORD, base.status, RecordStatus.EXCLUDED, Actor.OPERATOR, base.id)
    fields = {"excluded": sorted({*task.excluded, base.id}), "repairs": [*task.repairs, fork], "repairing": True}
    fields |= {"changes": task.changes + 1}
    unchanged = tasks.unchanged(task) | {"status": TaskStatus.ADMITTED}
    if base.id in task.excluded or not await database.update_one("Task", unchanged, [{"$set": literally(fields)}]):
        raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    await _finish_repairs_of(database, task.id)
    done = await _repaired(database, task.id, fork)
    if done is None:
        raise RefusedError(f"{task.id} went on meanwhile.", hint="Look at it again.")
    return done


async def finish_repairs(database: Database) -> int:
    """Write the consequences of repairs that were decided. The steward calls it."""
    documents = await database.find("Task", {"repairing": True}, projection=["_id"])
    for task in documents:
        await _finish_repairs_of(database, task["_id"])
    return len(documents)


async def _repaired(database: Database, task: str, fork: Fork) -> str | None:
    """The record that this operation has forked from the base."""
    same = {"task": task, "fork.base": fork.base, "fork.operation": fork.operation}
    document = await database.find_one("Record", same, projection=["_id"], sort=[("attempt", 1)])
    return None if document is None else str(document["_id"])


async def _finish_repairs_of(database: Database, id: str) -> None:
    task = await tasks.get(database, id)
    for fork in task.repairs:
        base = load(Record, await _one(database, fork.base))
        if not await _exclude_base(database, base, fork):
            await _withdraw(database, id, fork)
            continue
        record = await _take_seat(database, task, base, fork)
        await _note_fork(database, fork, record)
        await database.update_one("Task", {"_id": id}, {"$pull": {"repairs": to_bson(fork)}})
    await database.update_one("Task", {"_id": id, "repairs": []}, {"$set": {"repairing": False}})


async def _exclude_base(database: Database, base: Record, fork: Fork) -> bool:
    """The base then counts as if it had not been sampled, so its seat may fail as often as any other. Returns False if
    another attempt has the seat, because it ended since the repair was planned."""
    if base.status != RecordStatus.EXCLUDED and await _is_taken(database, base):
        return False
    sources = RECORD.sources(RecordStatus.EXCLUDED, Actor.OPERATOR)
    excluded = {"status": RecordStatus.EXCLUDED, "reason": "repaired by a fork", "excluded_by": fork.operation}
    held = {"_id": base.id, "status": {"$in": list(sources)}}
    await database.update_one("Record", held, {"$set": excluded | {"free": True, "followed": True}})
    await database.update_one("DBRecordData", {"_id": base.id}, {"$set": {"advantage": None}})
    return True


async def _is_taken(database: Database, base: Record) -> bool:
    """Whether a later attempt has ended. An attempt that has not ended is superseded, so that it can no longer end."""
    later = {"task": base.task, "round": base.round, "seat": base.seat, "attempt": {"$gt": base.attempt}}
    superseded = {"status": RecordStatus.SUPERSEDED, "reason": f"its seat is taken by a fork of {base.id}"}
    not_begun = later | {"status": {"$in": sorted(NOT_ENDED)}}
    await database.update_many("Record", not_begun, {"$set": superseded | {"free": True}})
    ended = later | {"status": {"$in": sorted(HOLDS_SEAT)}}
    return await database.find_one("Record", ended, projection=["_id"]) is not None


async def _withdraw(database: Database, id: str, fork: Fork) -> None:
    """Withdraw the repair; the base stays as it was."""
    decided = {"_id": id, "repairs": to_bson(fork)}
    undone = {"$pull": {"repairs": to_bson(fork), "excluded": fork.base}, "$inc": {"changes": 1}}
    await database.update_one("Task", decided, undone)


async def _take_seat(database: Database, task: Task, base: Record, fork: Fork) -> str:
    """Open the fork as the next attempt at the seat of its base. An attempt that the steward opened is superseded."""
    seat = {"task": task.id, "round": base.round, "seat": base.seat}
    mine = {"fork.base": base.id, "fork.operation": fork.operation}
    others = seat | {"attempt": {"$gt": base.attempt}, "status": {"$in": sorted(HOLDS_SEAT)}}
    others["$nor"] = [mine]
    superseded = {"status": RecordStatus.SUPERSEDED, "reason": f"its seat is taken by a fork of {base.id}"}
    while True:
        if (there := await database.find_one("Record", seat | mine, projection=["_id"])) is not None:
            await database.update_many("Record", others, {"$set": superseded | {"free": True}})
            return str(there["_id"])
        await database.update_many("Record", others, {"$set": superseded | {"free": True}})
        attempts = await database.find("Record", seat, projection=["attempt"])
        number = max(int(attempt["attempt"]) for attempt in attempts) + 1
        # The steward may open an attempt of this number at the same time; then this one gets the next number.
        await tasks.open_records(database, task, [(base.seat, number)], fork)


# ---- branches ----


def branch_id(base: Task, fork: Fork) -> str:
    place = f"{fork.operation} {fork.base} {fork.turns} {fork.call} {fork.replay}"
    digest = hashlib.blake2b(place.encode(), digest_size=4).hexdigest()
    return f"{base.environment}/branch/{base.row:06d}.{digest}"


async def branch(database: Database, base: Task, fork: Fork, *, purpose: str, query: str | None = None) -> str:
    """Queue a Task whose records begin at a place in a record of another one, before the rows of its epoch. Returns its
    id; an operation does so once for a place."""
    id = branch_id(base, fork)
    check(TASK, "", TaskStatus.QUEUED, Actor.OPERATOR, id)
    task = Task(
        id=id,
        environment=base.environment,
        split=base.split,
        epoch=base.epoch,
        row=base.row,
        place=-1,
        purpose=purpose,
        # One round only: a trunk that cannot be rebuilt now cannot be rebuilt in another round.
        rounds_max=1,
        query=base.query if query is None else query,
        earlier=base.earlier,
        answer=base.answer,
        scorer=base.scorer,
        answer_schema=base.answer_schema,
        agent_name=base.agent_name,
        servers=base.servers,
        extra=base.extra,
        fork=fork,
    )
    await database.insert_new("Task", [storable(to_bson(task))])
    await _note_fork(database, fork, id)
    return id


async def _note_fork(database: Database, fork: Fork, id: str) -> None:
    await database.update_one("Record", {"_id": fork.base}, {"$addToSet": {"forks": id}})


async def end_probes(database: Database) -> int:
    """End forks that do not train once their records are scored."""
    check(TASK, TaskStatus.READY, TaskStatus.DONE, Actor.STEWARD)
    closed = {"status": TaskStatus.READY, "purpose": "probe", "fork.base": {"$exists": True}}
    return await database.update_many("Task", closed, {"$set": {"status": TaskStatus.DONE}})


# ---- trunks ----


async def copy_trunk(database: Database, record: Record, owner: str) -> None:
    """Store the missing parts of a fork's trunk under the ids of the fork."""
    fork = record.fork
    assert fork is not None, f"{record.id} is no fork"
    documents = await trunk(database, fork)
    wanted = [_copied(document, record, fork, owner) for document in documents]
    for document in documents:
        await _copy_chunks(database, document, record, fork)
    await database.insert_new(CALLS, wanted)


async def trunk(database: Database, fork: Fork) -> list[Plain]:
    """The model calls of the base that are in the trunk, in their order."""
    turns = fork.turns + bool(fork.call)
    within_trunk = {"_id": within(fork.base), "turn": {"$gte": 0, "$lt": turns}, "status": {"$in": WITH_TOKENS}}
    return await database.find(CALLS, within_trunk, sort=[("index", 1)])


def whole_turns(documents: Sequence[Plain]) -> set[int]:
    """The turns in which the answer of the model is complete."""
    return {int(document["turn"]) for document in documents if document["status"] == "done"}


def _copied(document: Plain, record: Record, fork: Fork, owner: str) -> Plain:
    last = bool(fork.call) and document["turn"] == fork.turns
    kept = [call for call in document.get("tool_calls", ()) if not last or _is_kept(call, fork)]
    return document | {
        "_id": _renamed(document["_id"], record, fork),
        "record": record.id,
        "task": record.task,
        "owner": owner,
        "base": _renamed(document["base"], record, fork) if document.get("base") else "",
        "context": bool(document.get("context")) or fork.kind == ForkKind.BRANCH,
        "tool_calls": [_copied_call(call, record, fork) for call in kept],
        # Cleared, because lists of tool calls must show each call once.
        "called_at": None,
        "failed_at": None,
        "over_at": None if last else document.get("over_at"),
    }


def _is_kept(call: Plain, fork: Fork) -> bool:
    """Whether a call is kept. Calls of the last turn that gave the model no result are made again."""
    if call["id"] == fork.call and fork.result is not None:
        return True
    return call["status"] in _ANSWERED and call.get("error_class") != OutcomeClass.INFRASTRUCTURE


def _copied_call(call: Plain, record: Record, fork: Fork) -> Plain:
    copied = call | {
        "id": _renamed(call["id"], record, fork),
        "session": record.id,
        "copied_from": call.get("copied_from") or call["id"],
    }
    if call["id"] != fork.call or fork.result is None:
        return copied
    new = {"result": fork.result, "status": fork.status or ToolCallStatus.OK, "error_class": "", "edited": fork.edited}
    if new["status"] != ToolCallStatus.OK:
        new["error_class"] = OutcomeClass.POLICY
    return copied | new


async def _copy_chunks(database: Database, document: Plain, record: Record, fork: Fork) -> None:
    """Copy the chunks of texts and results that are too long for their document."""
    for chunk in await database.find("Chunk", {"_id": within(document["_id"])}):
        await _copy_chunk(database, chunk, record, fork)
    for call in document.get("tool_calls", ()):
        if call["id"] == fork.call and fork.result is not None:
            continue
        for chunk in await database.find("Chunk", {"_id": within(call["id"])}):
            await _copy_chunk(database, chunk, record, fork)


async def _copy_chunk(database: Database, chunk: Plain, record: Record, fork: Fork) -> None:
    names = {name: _renamed(chunk[name], record, fork) for name in ("_id", "document")}
    await database.insert_new("Chunk", [chunk | names])


def _renamed(id: str, record: Record, fork: Fork) -> str:
    return record.id + id.removeprefix(fork.base)


async def _one(database: Database, record: str) -> Plain:
    document = await database.find_one("Record", {"_id": record})
    assert document is not None, f"there is no record {record}"
    return document
