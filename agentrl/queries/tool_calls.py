"""Tool calls: the outcomes of the calls on a page, and everything about one call.

Invariants: the calls of a session are in the order in which they were requested; arguments and results that are cut
say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentrl.errors import UnknownNameError
from agentrl.policies.status_tables import StepStatus
from agentrl.protocol.data_commands import CallStory, ShowCall
from agentrl.queries import image_words, pages, records
from agentrl.queries.details import whole
from agentrl.store import calls, chunks, lists, tool_call_lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import within

_TURN = {"prompt": 0, "output": 0, "log_probs": 0, "tool_calls.result": 0, "tool_calls.arguments": 0}
_OF_SESSION = ("id", "turn", "server", "tool", "status", "error_class", "latency_s", "requested_at")


async def show(database: Database, args: ShowCall) -> CallStory:
    found = await tool_call_lists.one(database, args.id)
    if found is None:
        raise UnknownNameError(f"There is no tool call {args.id}.", hint="See `agentrl calls`.")
    call = lists.shown(found)
    result = call["result"] if args.chars else await chunks.whole(database, args.id, "result") or call["result"]
    result = await image_words.described(database, result)
    call |= {"result": records.both_ends(result, args.chars), "arguments": _cut(call["arguments"], args.chars)}
    replays = await _replays(database, [call])
    await add_trained(database, [call])
    record = await whole(database, "Record", call["record"], hint="Its call has lost it; see `agentrl accounting`.")
    turn = await database.find_one(CALLS, {"_id": tool_call_lists.document_of(args.id)}, projection=_TURN)
    return CallStory(
        call=call,
        record=pages.shortened("Record", record) | {"ending": records.ending_of(record)},
        turn=_turn(turn or {}, args.chars),
        session=tuple(await _session(database, call)),
        replays=tuple(lists.shown(replay) for replay in replays),
    )


async def add_outcomes(database: Database, rows: list[Plain]) -> None:
    """Adds to each call whether a step trained its record, and its newest replay."""
    _, replays = await asyncio.gather(add_trained(database, rows), _replays(database, rows))
    newest = {replay["call"]: replay for replay in replays}
    for row in rows:
        found = newest.get(row["id"])
        row["replay"] = found and (found["verdict"] or found["status"])


async def _replays(database: Database, rows: list[Plain]) -> list[Plain]:
    """The replays of these calls, the oldest first."""
    names = ("call", "status", "verdict", "who", "created_at", "edited")
    of_rows = {"call": {"$in": [row["id"] for row in rows]}}
    return await database.find("Replay", of_rows, sort=[("created_at", 1), ("_id", 1)], projection=names)


async def add_trained(database: Database, rows: list[Plain]) -> None:
    """Whether a step that counts trained the record of each call."""
    wanted = sorted({row["record"] for row in rows})
    tasks = sorted({row["task"] for row in rows if row.get("task")})
    counting = {"tasks": {"$in": tasks}, "status": StepStatus.COMMITTED}
    stages: list[Plain] = [{"$match": counting}, {"$project": {"found": {"$setIntersection": ["$records", wanted]}}}]
    trained = {record for step in await database.aggregate("Step", stages) for record in step["found"]}
    for row in rows:
        row["trained"] = row["record"] in trained


def _turn(document: Plain, chars: int) -> Plain:
    shown = lists.shown(document)
    names = ("id", "turn", "status", "engine", "versions", "finish_reason", "sent_at", "done_at", "began_at", "over_at")
    return {name: shown.get(name) for name in names} | {"text": records.both_ends(shown.get("text", ""), chars)}


async def _session(database: Database, call: Mapping[str, Any]) -> list[Plain]:
    """The calls of one session. A record has a session on each server."""
    mine = {"_id": within(call["record"]), "tool_calls.server": call["server"]}
    documents = await database.find(CALLS, mine, projection=_TURN)
    found = [lists.shown(row) for document in documents for row in calls.tool_rows(document)]
    same = [row for row in found if (row["server"], row["session"]) == (call["server"], call["session"])]
    same.sort(key=lambda row: (row["requested_at"], row["id"]))
    return [{name: row[name] for name in _OF_SESSION} for row in same]


def _cut(value: Any, chars: int) -> Any:
    match value:
        case str():
            return records.both_ends(value, chars)
        case Mapping():
            return {name: _cut(item, chars) for name, item in value.items()}
        case list():
            return [_cut(item, chars) for item in value]
    return value
