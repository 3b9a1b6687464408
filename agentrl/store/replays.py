"""Replays of tool calls: the documents, and the conditional updates that move them.

Invariants:
- The recorded call is never changed.
- Every move is one conditional update on status, owner and attempt, so a steward that lost a replay cannot change it.
- If a replay is interrupted and its call with effects outside may have run, it ends as failed and never runs again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from agentrl.errors import UnknownNameError, UsageError
from agentrl.policies.replay_verdicts import EarlierCall
from agentrl.policies.status_tables import REPLAY, Actor, ReplayStatus, check
from agentrl.store import chunks, owners
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import within
from agentrl.store.documents import ToolCall, load, load_if, storable, to_bson
from agentrl.store.replay_documents import Replay
from agentrl.store.update_expressions import NOW, setting

REPLAYS = Replay.__name__
IN_HAND = [ReplayStatus.PREPARING.value, ReplayStatus.REPLAYING.value]
OPEN = [ReplayStatus.QUEUED.value, *IN_HAND]
_RESULTS = dict.fromkeys(("then", "rebuilt", "runs.result", "runs.changes"), 0)
MOST_ATTEMPTS = 3


class RecordedCall(msgspec.Struct, frozen=True):
    """A tool call with the record and the turn that it belongs to."""

    call: ToolCall
    record: str
    task: str
    turn: int

    @property
    def place(self) -> EarlierCall:
        return place_of(self.call, self.turn)


def place_of(call: ToolCall, turn: int) -> EarlierCall:
    number = int(call.id.rpartition(".")[2])
    return EarlierCall(call.id, turn, number, call.server, call.tool, call.status)


# ---- recorded calls ----


async def recorded(database: Database, id: str) -> RecordedCall:
    """Raises UnknownNameError."""
    model_call, _, _ = id.rpartition(".")
    document = await database.find_one(CALLS, {"_id": model_call}, projection=["record", "task", "turn", "tool_calls"])
    found = next((one for one in calls_of(document) if one.call.id == id), None) if document else None
    if found is None:
        raise UnknownNameError(f"There is no tool call {id}.", hint="`agentrl records show RECORD` has its tool calls.")
    return found


async def calls_of_record(database: Database, record: str) -> list[RecordedCall]:
    """All tool calls of a record, in the order of their turns."""
    fields = ["record", "task", "turn", "tool_calls"]
    documents = await database.find(CALLS, {"_id": within(record)}, sort=[("_id", 1)], projection=fields)
    return [one for document in documents for one in calls_of(document)]


def calls_of(document: Plain) -> Iterable[RecordedCall]:
    for call in document.get("tool_calls", ()):
        yield RecordedCall(msgspec.convert(call, ToolCall), document["record"], document["task"], document["turn"])


async def whole_result(database: Database, call: ToolCall) -> str:
    return await chunks.whole(database, call.id, "result") or call.result


# ---- life ----


def replay_id(call: str, operation: str) -> str:
    """The id of a replay. It contains the whole id of the operation, because clients choose ids, which may begin
    alike."""
    return f"{call}~{hashlib.sha256(operation.encode()).hexdigest()[:8]}"


async def insert(database: Database, wanted: Sequence[Replay]) -> int:
    """Queue replays that are not stored yet. The first replay of the operation is inserted last, so its existence shows
    that all are stored. Returns how many were new."""
    for replay in wanted:
        check(REPLAY, "", ReplayStatus.QUEUED, Actor.OPERATOR, replay.id)
    now = await database.now()
    documents = [storable(to_bson(replay)) | {"created_at": now} for replay in wanted]
    others = await database.insert_new(REPLAYS, [document for document in documents if document["place"]])
    return others + await database.insert_new(REPLAYS, [document for document in documents if not document["place"]])


async def claim(database: Database, owner: str, *, besides: Collection[str] = ()) -> Replay | None:
    """The oldest queued replay that is not stopped; None if there is none. `besides`: ids that must not be taken
    now."""
    queued: Plain = {"status": {"$in": list(REPLAY.sources(ReplayStatus.PREPARING, Actor.STEWARD))}, "stopped": False}
    if besides:
        queued["_id"] = {"$nin": list(besides)}
    fields: Plain = {"status": ReplayStatus.PREPARING, "owner": owner}
    update = setting(fields, attempt={"$add": ["$attempt", 1]}, started_at={"$ifNull": ["$started_at", NOW]})
    document = await database.find_one_and_update(REPLAYS, queued, update, sort=[("created_at", 1), ("place", 1)])
    return load_if(Replay, document)


async def move(database: Database, replay: Replay, target: ReplayStatus, fields: Plain | None = None) -> bool:
    """Returns False if the replay now belongs to another attempt; then nothing was changed."""
    sources = REPLAY.sources(target, Actor.STEWARD)
    mine = _mine(replay) | {"status": {"$in": list(sources)}}
    changed: Plain = {"status": target, **storable(to_bson(fields or {}))}
    computed: dict[str, Any] = {}
    if target in (ReplayStatus.JUDGED, ReplayStatus.FAILED):
        took = {"$divide": [{"$subtract": [NOW, "$started_at"]}, 1000.0]}
        computed = {"judged_at": NOW, "duration_s": {"$ifNull": [took, 0.0]}}
    return await database.update_one(REPLAYS, mine, setting(changed, **computed))


async def note_sent(database: Database, replay: Replay, call: str) -> bool:
    """Store that a call with effects outside may have run. Returns False if the replay belongs to another attempt."""
    mine = _mine(replay) | {"status": {"$in": IN_HAND}}
    return await database.update_one(REPLAYS, mine, {"$push": {"sent": call}})


async def note_session(database: Database, replay: Replay, session: str, server_version: str = "") -> bool:
    """Store the open session of the replay, so that it can be closed whichever process dies."""
    fields = {"session": session, **({"server_version": server_version} if server_version else {})}
    return await database.update_one(REPLAYS, _mine(replay), {"$set": fields})


def _mine(replay: Replay) -> Plain:
    return {"_id": replay.id, "owner": replay.owner, "attempt": replay.attempt}


async def put_back(database: Database, replay: Replay, why: str) -> str:
    """End an interrupted attempt: queued again, or failed if it was the last one or a call may have run outside.
    Returns the new status; empty if another attempt has it."""
    document = await database.find_one(REPLAYS, _mine(replay) | {"status": {"$in": IN_HAND}}, projection=["sent"])
    if document is None:
        return ""
    if document["sent"]:
        reason = f"{why}; {document['sent'][-1]} may have run and is not run again"
        target = ReplayStatus.FAILED
    else:
        reason = why
        target = ReplayStatus.QUEUED if replay.attempt < MOST_ATTEMPTS else ReplayStatus.FAILED
    fields: Plain = {"reason": reason}
    if target is ReplayStatus.QUEUED:
        fields |= {"owner": "", "rebuilt": [], "runs": []}
    return target.value if await move(database, replay, target, fields) else ""


async def free_orphans(database: Database) -> list[Replay]:
    """Put back what dead stewards were replaying. Returns these replays as they were; their sessions are still open."""
    names = await database.distinct(REPLAYS, "owner", {"status": {"$in": IN_HAND}})
    dead = sorted(await owners.dead_among(database, names))
    if not dead:
        return []
    documents = await database.find(REPLAYS, {"status": {"$in": IN_HAND}, "owner": {"$in": dead}})
    left = [load(Replay, one) for one in documents]
    return [one for one in left if await put_back(database, one, f"{one.owner} died during it")]


async def free_unknown(database: Database, owner: str, known: Collection[str]) -> None:
    """Put back replays that this owner holds without knowing it, because the answer to its claim was lost."""
    unknown = {"status": {"$in": IN_HAND}, "owner": owner, "_id": {"$nin": list(known)}}
    for one in await database.find(REPLAYS, unknown):
        await put_back(database, load(Replay, one), "the answer to its claim was lost")


# ---- operators ----


async def of_operation(database: Database, operation: str) -> list[Replay]:
    """The replays of an operation, without results."""
    return await _without_results(database, {"operation": operation})


async def _without_results(database: Database, query: Plain) -> list[Replay]:
    """A projection without results: the progress of an operation reads up to a thousand replays each time, which may
    have gigabytes of results."""
    documents = await database.find(REPLAYS, query, sort=[("place", 1)], projection=_RESULTS)
    return [load(Replay, one) for one in documents]


async def get(database: Database, id: str) -> Replay:
    """Raises UnknownNameError."""
    document = await database.find_one(REPLAYS, {"_id": id})
    if document is None:
        raise UnknownNameError(f"There is no replay {id}.", hint="See `agentrl replays list`.")
    return load(Replay, document)


async def stop(database: Database, ids: Sequence[str]) -> int:
    """Hold queued replays back. Returns their number. Running replays go on to their end."""
    queued = {"_id": {"$in": list(ids)}, "status": ReplayStatus.QUEUED, "stopped": False}
    return await database.update_many(REPLAYS, queued, {"$set": {"stopped": True}})


async def continue_stopped(database: Database, ids: Sequence[str], by: str) -> int:
    """Continue replays that were held back. An operation does so once, so repeating it does not undo a later stop."""
    held = {"_id": {"$in": list(ids)}, "stopped": True, "continued_by": {"$ne": by}}
    return await database.update_many(REPLAYS, held, {"$set": {"stopped": False, "continued_by": by}})


async def chosen(database: Database, names: Iterable[str]) -> list[Replay]:
    """Replays without results, by their ids or by the beginning of the id of their operation.

    Raises UnknownNameError or UsageError.
    """
    replays: dict[str, Replay] = {}
    for name in names:
        of_name: Plain = {"_id": name} if "~" in name else {"operation": {"$gte": name, "$lt": f"{name}~"}}
        some = await _without_results(database, of_name)
        if not some:
            raise UnknownNameError(f"There is no replay {name}, nor an operation.", hint="See `agentrl replays list`.")
        if len(fitting := {replay.operation for replay in some}) > 1:
            raise UsageError(f"{name} is the beginning of {len(fitting)} operations.", hint="Give more of its id.")
        replays |= {replay.id: replay for replay in some}
    return list(replays.values())


async def decide(database: Database, replay: Replay, target: ReplayStatus, *, by: str, fields: Plain) -> bool:
    """Store the decision of an operator on a judged replay. Returns True also if the same operation already decided."""
    judged = {"_id": replay.id, "status": {"$in": list(REPLAY.sources(target, Actor.OPERATOR))}}
    changed: Plain = {"status": target, "decided_by": by, **storable(fields)}
    if await database.update_one(REPLAYS, judged, {"$set": changed}):
        return True
    done = {"_id": replay.id, "status": target, "decided_by": by}
    return await database.find_one(REPLAYS, done, projection=["_id"]) is not None
