"""Whole trajectories as JSON lines, in stretches that fit into messages.

Invariants: only what has ended is exported, so a line is the same whenever it is made, and one that is longer than a
message goes on where it was cut; the order is that of the ends, so an export that is repeated behind its last record
finds what ended since (but not what a judge scored late). A line holds every token once, with its log-prob, version and
whether it trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.protocol.data_commands import ExportPart, ExportRecords
from agentrl.store import calls, chunks, lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, load, load_if, within
from agentrl.tokens import version_runs
from agentrl.tokens.binary_format import unpack_floats, unpack_ids
from agentrl.tokens.spans import Span, StoredCall, full_prompts, span_ids
from agentrl.tokens.token_tree import TokenTree

PART_BYTES = 1 << 20
LOOKED_AT = 32
"""Records whose ids are fetched at once; most parts hold fewer."""
ENDED = {"finished_at": {"$ne": None}, "status": {"$nin": ["open", "running", "finished", "unscored"]}}


async def part(database: Database, args: ExportRecords) -> ExportPart:
    query, after = args.filter, args.after
    most = min(args.limit or LOOKED_AT, LOOKED_AT)
    found = await lists.page(
        database, "Record", filter=query, sort="finished_at", after=after or None, limit=most, also=ENDED
    )
    data, offset, complete = bytearray(), args.offset, 0
    for row in found.rows:
        line = await _line(database, row)
        room = PART_BYTES - len(data)
        data += line[offset : offset + room]
        if offset + room < len(line):
            return ExportPart(bytes(data), after, offset + room, complete)
        after, offset, complete = row["id"], 0, complete + 1
    return ExportPart(bytes(data), after, 0, complete, end=found.after is None)


async def _line(database: Database, record: Plain) -> bytes:
    return msgspec.json.encode(await trajectory(database, record)) + b"\n"


async def trajectory(database: Database, record: Plain) -> Plain:
    """Everything of one record, complete in itself."""
    id = record["id"]
    task = await database.find_one("Task", {"_id": record["task"]}, projection={"shares": 0})
    found = await database.find(CALLS, {"_id": within(id)}, sort=[("index", 1)])
    answered = [load(DispatchedSamplingTask, one) for one in found if one["status"] in calls.WITH_TOKENS]
    turns = [lists.shown(calls.turn_row(one)) for one in found if one.get("over_at")]
    tool_calls = [lists.shown(tool) for one in found for tool in calls.tool_rows(one)]
    data = load_if(DBRecordData, await database.find_one("DBRecordData", {"_id": id}))
    return {
        "record": record,
        "task": None if task is None else lists.shown(task),
        "turns": [await _whole_text(database, turn, "text") for turn in turns],
        "tool_calls": [await _whole_text(database, call, "result") for call in tool_calls],
        "calls": [_call(call) for call in answered],
        "segments": segments(answered, data),
        "advantage": data.advantage if data else None,
        "capped": data.capped if data else False,
    }


def segments(answered: Sequence[DispatchedSamplingTask], data: DBRecordData | None) -> list[Plain]:
    """The token tree, every token once. `parent` is the index of the segment before it, -1 at the root. Empty if the
    calls were pruned."""
    stored = calls.stored_calls(answered)
    by_index = {call.index: call for call in answered}
    trains = data is not None and data.advantage is not None
    spans = data.spans if data else _spans(stored)
    if not all(span.call in by_index for span in spans):
        return []
    return [_segment(span, by_index[span.call], stored, trains=trains) for span in spans]


def _spans(stored: Mapping[int, StoredCall]) -> list[Span]:
    """Of a record that was not scored: the structure follows from the calls."""
    prompts = full_prompts(stored)
    return TokenTree.from_calls((index, prompts[index], stored[index].output) for index in sorted(stored)).spans


def _segment(span: Span, call: DispatchedSamplingTask, stored: Mapping[int, StoredCall], *, trains: bool) -> Plain:
    segment: Plain = {
        "parent": span.parent,
        "kind": span.kind,
        "call": span.call,
        "ids": span_ids(span, stored),
        "trains": trains and span.kind == "model",
    }
    if span.kind == "model":
        segment["log_probs"] = unpack_floats(call.log_probs)[span.start : span.start + span.length]
        segment["versions"] = version_runs.cut(call.versions, span.start, span.length)
    return segment


def _call(call: DispatchedSamplingTask) -> Plain:
    """Without tokens: the segments have them."""
    names = ("id", "index", "turn", "status", "base", "base_length", "sampling", "finish_reason", "engine", "error")
    plain: Plain = {name: getattr(call, name) for name in (*names, "sent_at", "done_at", "versions")}
    return lists.shown(plain) | {
        "new_prompt_tokens": len(unpack_ids(call.prompt)),
        "output_tokens": len(unpack_ids(call.output)),
    }


async def _whole_text(database: Database, row: Plain, field: str) -> Plain:
    text: Any = await chunks.whole(database, row["id"], field)
    return row if text is None else row | {field: text}
