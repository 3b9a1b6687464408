"""One record, turn by turn: texts, calls and their durations, and why it ended.

Invariants: every record has one reason for its end, the outcome that was classified when it ended; generated tokens
are counted by their stored size and never loaded; a text that is cut says so, and how much is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from agentrl.chat.template import Template
from agentrl.formatting.amounts import counted
from agentrl.policies.status_tables import RecordStatus, StepStatus
from agentrl.policies.version_tree import UnknownVersionError, VersionTree
from agentrl.protocol.data_commands import RecordStory, ShowRecord
from agentrl.queries import image_words, loop_messages, pages
from agentrl.queries.details import whole
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.store import calls, chunks, lists, publications
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.document_ids import within
from agentrl.store.documents import DBRecordData, load
from agentrl.tracing import trace_context

MOST_TURNS = 1000
BYTES_A_NUMBER = 4
"""Bytes of a packed id; one byte before all ids gives the format."""
_NAMES = "index turn branch status base base_length versions sampling finish_reason engine error sent_at done_at"
_CALL: Mapping[str, Any] = {
    **dict.fromkeys(_NAMES.split(), 1),
    "prompt_bytes": {"$binarySize": "$prompt"},
    "output_bytes": {"$binarySize": "$output"},
}
_AROUND: Mapping[str, Any] = {**_CALL, **dict.fromkeys(("record", "task", "owner"), 1)}
_TURN: Mapping[str, Any] = {**_AROUND, **dict.fromkeys(("text", "parsed", "tool_calls", "began_at", "over_at"), 1)}
_TOOLS = "id server tool status error_class tried_again latency_s session requested_at done_at"
_UNDER_WAY: Mapping[str, Any] = {**_AROUND, **{f"tool_calls.{name}": 1 for name in _TOOLS.split()}}


async def show(database: Database, published: PublishedTokenizer, run: str, args: ShowRecord) -> RecordStory:
    record = await whole(database, "Record", args.id, hint="See `agentrl records list`.")
    task = await whole(database, "Task", record["task"], hint="Its record has lost it; see `agentrl accounting`.")
    row = pages.shortened("Record", record)
    await pages.add_activity(database, [row])
    turns, more = await _turns(database, args)
    texts = {name: str(task.get(name, "")) for name in ("query", "answer")}
    if not args.marks:
        turns = await image_words.described(database, turns)
        texts = await image_words.described(database, texts)
    await _add_loop_messages(database, await published.template(), args, turns)
    return RecordStory(
        record=row,
        task={name: task.get(name) for name in ("id", "environment", "split", "purpose", "status", "round", "baseline")}
        | {name: both_ends(text, args.chars) for name, text in texts.items()},
        ending=ending_of(record),
        turns=tuple(turns),
        under_way=tuple(await _outside_of_turns(database, args.id)),
        attempts=tuple(await _attempts(database, record)),
        training=await _training(database, record),
        more_turns=more,
        trace=trace_context.of_record(run, args.id).trace_id,
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
    over = {"_id": within(args.id), "turn": {"$gt": args.after_turn}, "over_at": {"$ne": None}}
    documents = await database.find(CALLS, over, sort=[("turn", 1)], limit=limit + 1, projection=_TURN)
    return [await _turn(database, document, args.chars) for document in documents[:limit]], len(documents) > limit


async def _turn(database: Database, document: Plain, chars: int) -> Plain:
    turn = lists.shown(calls.turn_row(document))
    turn["text"] = await _text(database, turn, "text", chars)
    turn["seconds"] = _seconds(turn["started_at"], turn["done_at"])
    turn["call"] = _call(document)
    turn["tool_calls"] = [lists.shown(tool_row) for tool_row in calls.tool_rows(document)]
    for call in turn["tool_calls"]:
        call["result"] = await _text(database, call, "result", chars)
        call["arguments"] = {name: both_ends(value, chars) for name, value in call["arguments"].items()}
    for row in (turn, *turn["tool_calls"]):
        for internal in ("record", "task", "owner"):
            row.pop(internal, None)
    return turn


async def _add_loop_messages(
    database: Database, template: Template | None, args: ShowRecord, turns: list[Plain]
) -> None:
    """Add to each turn what the loop put before it."""
    if template is None or not turns:
        return
    around = {"$gte": turns[0]["index"] - 1, "$lte": turns[-1]["index"]}
    matched = {"_id": within(args.id), "turn": around}
    documents = await database.find(CALLS, matched, projection=loop_messages.FIELDS)
    results = await loop_messages.cut_results(database, await chunks.cut_of(database, [args.id]))
    messages = await asyncio.to_thread(loop_messages.by_turn, template, documents, results)
    for turn in turns:
        turn["from_loop"] = [
            message | {"text": both_ends(message["text"], args.chars)} for message in messages.get(turn["index"], ())
        ]


def _call(document: Mapping[str, Any]) -> Plain:
    call = lists.shown({name: value for name, value in document.items() if name in _CALL or name == "_id"})
    call["new_prompt_tokens"] = _numbers(call.pop("prompt_bytes", None))
    call["output_tokens"] = _numbers(call.pop("output_bytes", None))
    call["seconds"] = _seconds(call.get("sent_at"), call.get("done_at"))
    return call


async def _outside_of_turns(database: Database, record: str) -> list[Plain]:
    """Calls of the turn that is not over, and calls that failed or were continued."""
    alone = {"_id": within(record), "over_at": None}
    documents = await database.find(CALLS, alone, sort=[("index", 1)], projection=_UNDER_WAY)
    tools = [lists.shown(tool) for document in documents for tool in calls.tool_rows(document)]
    for tool in tools:
        tool.pop("task")
    return [_call(document) for document in documents] + tools


async def _attempts(database: Database, record: Mapping[str, Any]) -> list[Plain]:
    seat = {name: record[name] for name in ("task", "round", "seat")}
    documents = await database.find("Record", seat, sort=[("attempt", 1)])
    names = ("id", "attempt", "status", "outcome", "outcome_class", "error", "score", "owner", "turns", "duration_s")
    return [{name: pages.cut(lists.shown(document).get(name)) for name in names} for document in documents]


async def _training(database: Database, record: Mapping[str, Any]) -> Plain:
    data = await database.find_one("DBRecordData", {"_id": record["id"]}, projection={"spans": 0, "task": 0})
    steps = await database.find(
        "Step",
        {"tasks": record["task"], "records": record["id"]},
        projection=["status", "step", "lineage", "base_version"],
    )
    trained = [] if data is None else load(DBRecordData, data).trained_versions
    if steps and trained:
        tree = VersionTree(await publications.parents(database))
        for step in steps:
            # A version that is no longer known has no age.
            with contextlib.suppress(UnknownVersionError):
                step["staleness"] = tree.staleness(trained, step["base_version"])
    row = {} if data is None else lists.shown(data)
    row.pop("id", None)
    counting = [step["_id"] for step in steps if step["status"] == StepStatus.COMMITTED]
    return row | {"steps": [lists.shown(step) for step in steps], "trained_in": counting}


async def _text(database: Database, row: Plain, field: str, chars: int) -> Any:
    """The whole text if there is no limit; otherwise both ends of the inline text."""
    if chars:
        return both_ends(row[field], chars)
    return await chunks.whole(database, row["id"], field) or row[field]


def both_ends(text: Any, most: int) -> Any:
    if not isinstance(text, str) or not most or len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n[… {counted(len(text) - most, 'characters')} left out …]\n{text[-tail:] if tail else ''}"


def _numbers(packed_bytes: int | None) -> int:
    return max(0, (packed_bytes or 0) - 1) // BYTES_A_NUMBER


def _seconds(begin: Any, end: Any) -> float | None:
    return None if begin is None or end is None else round((end - begin).total_seconds(), 3)
