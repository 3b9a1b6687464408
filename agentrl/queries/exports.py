"""Whole trajectories as JSON lines, in stretches that fit into messages.

Invariants: only what has ended is exported, so a line is the same whenever it is made, and one that is longer than a
message goes on where it was cut; the order is that of the ends, so an export that is repeated behind its last record
finds what ended since (but not what a judge scored late). A line holds every token once, with its log-prob, version and
whether it trained.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

import msgspec

from agentrl.chat.template import Template
from agentrl.protocol.data_commands import ExportPart, ExportRecords
from agentrl.queries import loop_messages
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.store import calls, chunks, lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, load
from agentrl.tokens import version_runs
from agentrl.tokens.binary_format import length, unpack_floats
from agentrl.tokens.spans import Span, StoredCall, full_prompts, span_ids
from agentrl.tokens.token_tree import TokenTree

PART_BYTES = 1 << 20
LOOKED_AT = 256
"""Records of a part at most."""
FIRST_AT_ONCE = 4
"""Records that are read together before the size of a line is known, if they may be long."""
SHORT_AT_ONCE = 32
SHORT_TOKENS = 500
"""A line of as many generated tokens, each with its log-prob, takes some 20 kB and what tools answered."""
GROWTH = 4
_OF_CALL = (
    *("id", "index", "turn", "status", "base", "base_length", "sampling", "finish_reason", "engine", "error"),
    *("sent_at", "done_at", "versions"),
)
ENDED = {"finished_at": {"$ne": None}, "status": {"$nin": ["open", "running", "finished", "unscored"]}}


async def part(database: Database, published: PublishedTokenizer, args: ExportRecords) -> ExportPart:
    query, after = args.filter, args.after
    most = min(args.limit or LOOKED_AT, LOOKED_AT)
    found = await lists.page(
        database, "Record", filter=query, sort="finished_at", after=after or None, limit=most, also=ENDED
    )
    data, offset, complete = bytearray(), args.offset, 0
    async with contextlib.aclosing(_lines(database, await published.template(), found.rows)) as lines:
        async for id, line in lines:
            room = PART_BYTES - len(data)
            data += line[offset : offset + room]
            if offset + room < len(line):
                return ExportPart(bytes(data), after, offset + room, complete)
            after, offset, complete = id, 0, complete + 1
    return ExportPart(bytes(data), after, 0, complete, end=found.after is None)


async def _lines(
    database: Database, template: Template | None, records: Sequence[Plain]
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Each record with its line. As many are read together as fit into a part, if they are as long as those before, and
    at most GROWTH times as many as the last time."""
    short = all(record.get("generated_tokens", SHORT_TOKENS) < SHORT_TOKENS for record in records[:SHORT_AT_ONCE])
    made, size, at_once = 0, 0, SHORT_AT_ONCE if short else FIRST_AT_ONCE
    while made < len(records):
        for one in await trajectories(database, template, records[made : made + at_once]):
            line = msgspec.json.encode(one) + b"\n"
            made, size = made + 1, size + len(line)
            yield one["record"]["id"], line
        # Longer ones may follow short ones, so the number grows step by step.
        at_once = max(1, min(GROWTH * at_once, (PART_BYTES - size) * made // size))


async def trajectories(database: Database, template: Template | None, records: Sequence[Plain]) -> list[Plain]:
    """Everything of these records, each complete in itself."""
    ids = [record["id"] for record in records]
    tasks, by_record, data, cut = await asyncio.gather(
        _tasks(database, sorted({record["task"] for record in records})),
        _calls(database, ids),
        database.find("DBRecordData", {"_id": {"$in": ids}}),
        chunks.cut_of(database, ids),
    )
    from_loop: dict[str, dict[int, list[Plain]]] = {}
    if template is not None:
        results = await loop_messages.cut_results(database, cut)
        from_loop = await asyncio.to_thread(_from_loop, template, by_record, results)
    data_of = {one["_id"]: load(DBRecordData, one) for one in data}
    return [
        await _trajectory(
            database,
            record,
            tasks.get(record["task"]),
            by_record[record["id"]],
            data_of.get(record["id"]),
            cut,
            from_loop.get(record["id"], {}),
        )
        for record in records
    ]


def _from_loop(
    template: Template, by_record: Mapping[str, Sequence[Plain]], results: Mapping[str, str]
) -> dict[str, dict[int, list[Plain]]]:
    return {record: loop_messages.by_turn(template, found, results) for record, found in by_record.items()}


async def _tasks(database: Database, ids: Sequence[str]) -> dict[str, Plain]:
    found = await database.find("Task", {"_id": {"$in": list(ids)}}, projection={"shares": 0})
    return {task["_id"]: task for task in found}


async def _calls(database: Database, records: Sequence[str]) -> dict[str, list[Plain]]:
    """All model calls of each record, in their order."""
    by_record: dict[str, list[Plain]] = {record: [] for record in records}
    for asked in calls.of_records(records):
        for call in await database.find(CALLS, asked):
            by_record[call["record"]].append(call)
    return {record: sorted(found, key=lambda call: int(call["index"])) for record, found in by_record.items()}


async def _trajectory(
    database: Database,
    record: Plain,
    task: Plain | None,
    found: Sequence[Plain],
    data: DBRecordData | None,
    cut: Collection[tuple[str, str]],
    from_loop: Mapping[int, list[Plain]],
) -> Plain:
    """`cut`: documents with the field of which they hold only the ends. `from_loop`: what the loop put before turns."""

    async def whole(row: Plain, field: str) -> Plain:
        if (row["id"], field) not in cut:
            return row
        return row | {field: await chunks.whole(database, row["id"], field)}

    answered = [load(DispatchedSamplingTask, one) for one in found if one["status"] in calls.WITH_TOKENS]
    turns = [lists.shown(calls.turn_row(one)) for one in found if one.get("over_at")]
    tool_calls = [lists.shown(tool) for one in found for tool in calls.tool_rows(one)]
    return {
        "record": record,
        "task": None if task is None else lists.shown(task),
        "turns": [await whole(turn, "text") | {"from_loop": from_loop.get(turn["index"], [])} for turn in turns],
        "tool_calls": [await whole(call, "result") for call in tool_calls],
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
    plain: Plain = {name: getattr(call, name) for name in _OF_CALL}
    plain["sampling"] = lists.shown(call.sampling)
    plain["new_prompt_tokens"], plain["output_tokens"] = length(call.prompt), length(call.output)
    return plain
