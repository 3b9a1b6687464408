"""One record, turn by turn: what was said, which calls it made, how long each took, and why it ended.

Invariants: every record has one reason for its end, the outcome that was classified when it ended; tokens are counted
by their stored size and never loaded; a text that is cut says so, and how much is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.formatting.amounts import counted
from agentrl.policies.status_tables import RecordStatus, StepStatus
from agentrl.protocol.data_commands import RecordStory, ShowRecord
from agentrl.queries import pages
from agentrl.queries.details import whole
from agentrl.store import chunks, lists
from agentrl.store.database import Database, Plain

MOST_TURNS = 1000
BYTES_A_NUMBER = 4
"""Of a packed id; one byte before them says the format."""
_NAMES = "index turn status base base_length versions sampling finish_reason engine error sent_at done_at"
_CALL: Mapping[str, Any] = {
    **dict.fromkeys(_NAMES.split(), 1),
    "prompt_bytes": {"$binarySize": "$prompt"},
    "output_bytes": {"$binarySize": "$output"},
}


async def show(database: Database, args: ShowRecord) -> RecordStory:
    record = await whole(database, "Record", args.id, hint="See `agentrl records list`.")
    task = await whole(database, "Task", record["task"], hint="Its record has lost it; see `agentrl accounting`.")
    row = pages.shortened("Record", record)
    await pages.tell_what_they_do(database, [row])
    turns, more = await _turns(database, args)
    return RecordStory(
        record=row,
        task={name: task.get(name) for name in ("id", "environment", "split", "purpose", "status", "round", "baseline")}
        | {name: _both_ends(str(task.get(name, "")), args.chars) for name in ("query", "answer")},
        ending=ending_of(record),
        turns=tuple(turns),
        under_way=tuple(await _outside_of_turns(database, args.id)),
        attempts=tuple(await _attempts(database, record)),
        training=await _training(database, record),
        more_turns=more,
    )


def ending_of(record: Mapping[str, Any]) -> Plain:
    """The one reason why it ended, as it was classified; empty while it goes on."""
    status, outcome = record["status"], record.get("outcome", "")
    kind, error = record.get("outcome_class", ""), record.get("error", "")
    if status in (RecordStatus.OPEN, RecordStatus.RUNNING):
        sentence = "it has not ended"
    elif outcome:
        sentence = f"{outcome} ({kind})" + (f": {error}" if error else "")
    elif status == RecordStatus.SUPERSEDED:
        sentence = f"its task was sampled again before it ended: {record.get('reason') or 'another round'}"
    else:
        sentence = str(status)
    return {"outcome": outcome, "class": kind, "error": error, "sentence": sentence}


async def _turns(database: Database, args: ShowRecord) -> tuple[list[Plain], bool]:
    limit = max(1, min(args.limit, MOST_TURNS))
    asked = {"record": args.id, "index": {"$gt": args.after_turn}}
    found = await database.find("Turn", asked, sort=[("index", 1)], limit=limit + 1)
    turns = [lists.shown(document) for document in found[:limit]]
    if not turns:
        return [], False
    calls = await _calls(database, args.id, [turn["call"] for turn in turns])
    tools = await _tool_calls(database, args, turns[0]["index"], turns[-1]["index"])
    for turn in turns:
        text = turn["text"] if args.chars else await _uncut(database, turn["id"], "text", turn["text"])
        turn["text"] = _both_ends(text, args.chars)
        turn["seconds"] = _seconds(turn.get("started_at"), turn.get("done_at"))
        turn["call"] = calls.get(turn["call"])
        turn["tool_calls"] = tools.get(turn["index"], [])
        for internal in ("record", "task", "owner"):
            turn.pop(internal, None)
    return turns, len(found) > limit


async def _calls(database: Database, record: str, ids: Sequence[str]) -> dict[str, Plain]:
    asked = {"record": record, "_id": {"$in": list(ids)}}
    found = await database.find("DispatchedSamplingTask", asked, projection=_CALL)
    return {document["_id"]: _call(document) for document in found}


def _call(document: Mapping[str, Any]) -> Plain:
    call = lists.shown(document)
    call["new_prompt_tokens"] = _numbers(call.pop("prompt_bytes", None))
    call["output_tokens"] = _numbers(call.pop("output_bytes", None))
    call["seconds"] = _seconds(call.get("sent_at"), call.get("done_at"))
    return call


async def _tool_calls(database: Database, args: ShowRecord, first: int, last: int) -> dict[int, list[Plain]]:
    asked = {"record": args.id, "turn": {"$gte": first, "$lte": last}}
    by_turn: dict[int, list[Plain]] = defaultdict(list)
    for document in await database.find("ToolCall", asked, sort=[("turn", 1), ("_id", 1)]):
        call = lists.shown(document)
        text = call["result"] if args.chars else await _uncut(database, call["id"], "result", call["result"])
        call["result"] = _both_ends(text, args.chars)
        call["arguments"] = {name: _both_ends(value, args.chars) for name, value in call["arguments"].items()}
        for internal in ("record", "task", "owner"):
            call.pop(internal, None)
        by_turn[call["turn"]].append(call)
    return by_turn


async def _outside_of_turns(database: Database, record: str) -> list[Plain]:
    """A turn is written when it is over; until then its calls stand alone, and so do those that failed."""
    last = await database.find_one("Turn", {"record": record}, sort=[("index", -1)], projection=["index"])
    of_turns = await database.distinct("Turn", "call", {"record": record})
    alone = {"record": record, "_id": {"$nin": of_turns}}
    calls = await database.find("DispatchedSamplingTask", alone, sort=[("index", 1)], projection=_CALL)
    beyond = {"record": record, "turn": {"$gt": last["index"] if last else -1}}
    tools = await database.find(
        "ToolCall", beyond, sort=[("turn", 1), ("_id", 1)], projection={"arguments": 0, "result": 0, "task": 0}
    )
    return [_call(call) for call in calls] + [lists.shown(tool) for tool in tools]


async def _attempts(database: Database, record: Mapping[str, Any]) -> list[Plain]:
    seat = {name: record[name] for name in ("task", "round", "seat")}
    found = await database.find("Record", seat, sort=[("attempt", 1)])
    names = ("id", "attempt", "status", "outcome", "outcome_class", "error", "score", "owner", "turns", "duration_s")
    return [{name: pages.cut(lists.shown(document).get(name)) for name in names} for document in found]


async def _training(database: Database, record: Mapping[str, Any]) -> Plain:
    data = await database.find_one("DBRecordData", {"_id": record["id"]}, projection={"spans": 0, "task": 0})
    steps = await database.find(
        "Step", {"tasks": record["task"], "records": record["id"]}, projection=["status", "step", "lineage"]
    )
    told = {} if data is None else lists.shown(data)
    told.pop("id", None)
    counting = [step["_id"] for step in steps if step["status"] == StepStatus.COMMITTED]
    return told | {"steps": [lists.shown(step) for step in steps], "trained_in": counting}


async def _uncut(database: Database, document: str, field: str, inline: str) -> str:
    return await chunks.whole(database, document, field) or inline


def _both_ends(text: Any, most: int) -> Any:
    if not isinstance(text, str) or not most or len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n[… {counted(len(text) - most, 'characters')} left out …]\n{text[-tail:] if tail else ''}"


def _numbers(packed_bytes: int | None) -> int:
    return max(0, (packed_bytes or 0) - 1) // BYTES_A_NUMBER


def _seconds(begin: Any, end: Any) -> float | None:
    return None if begin is None or end is None else round((end - begin).total_seconds(), 3)
