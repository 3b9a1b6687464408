"""Whole trajectories as JSON lines, in stretches that fit into messages.

Invariants: only ended records are exported, so a line is always the same, and a line that is longer than a message
continues where it was cut; records are ordered by their ends, so an export that continues after its last record finds
the records that ended since (but not those that a judge scored late). A line holds every token once, with its log-prob,
version and whether it trained.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from agentrl.chat.template import Template
from agentrl.errors import UnavailableError
from agentrl.protocol.data_commands import ExportPart, ExportRecords
from agentrl.queries import dataset_rows, loop_messages
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.store import calls, chunks, images, lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, load
from agentrl.tokens import image_ids, version_runs
from agentrl.tokens.binary_format import length, unpack_floats
from agentrl.tokens.spans import Span, StoredCall, full_prompts, span_ids
from agentrl.tokens.token_tree import TokenTree

PART_BYTES = 1 << 20
LOOKED_AT = 256
"""The most records of a part."""
FIRST_AT_ONCE = 4
"""Records that are read together before the size of a line is known, if they may be long."""
SHORT_AT_ONCE = 32
SHORT_TOKENS = 500
"""A line with this many generated tokens and their log-probs has about 20 kB, plus the results of tools."""
GROWTH = 4
_OF_CALL = (
    *("id", "index", "turn", "status", "base", "base_length", "sampling", "finish_reason", "engine", "error"),
    *("sent_at", "done_at", "versions"),
)
ENDED = {"finished_at": {"$ne": None}, "status": {"$nin": ["open", "running", "finished", "unscored"]}}


async def part(database: Database, published: PublishedTokenizer, args: ExportRecords) -> ExportPart:
    query, after = args.filter, args.after
    most = min(args.limit or LOOKED_AT, LOOKED_AT)
    page = await lists.page(
        database, "Record", filter=query, sort="finished_at", after=after or None, limit=most, also=ENDED
    )
    data, offset, complete = bytearray(), args.offset, 0
    template = await published.template()
    if args.form == "dataset":
        if template is None:
            raise UnavailableError("No tokenizer is published, so tokens cannot be read as messages.")
        made = dataset_rows.lines(database, template, page.rows)
    else:
        made = _lines(database, template, page.rows)
    async with contextlib.aclosing(made) as lines:
        async for id, line in lines:
            room = PART_BYTES - len(data)
            data += line[offset : offset + room]
            if offset + room < len(line):
                return ExportPart(bytes(data), after, offset + room, complete)
            after, offset, complete = id, 0, complete + 1
    return ExportPart(bytes(data), after, 0, complete, end=page.after is None)


async def _lines(
    database: Database, template: Template | None, records: Sequence[Plain]
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Each record with its line. The next batch is read while the lines of the present one are made."""
    short = all(record.get("generated_tokens", SHORT_TOKENS) < SHORT_TOKENS for record in records[:SHORT_AT_ONCE])
    sizes = _BatchSizes(SHORT_AT_ONCE if short else FIRST_AT_ONCE)
    begun, reading = 0, _begin(database, records[: sizes.last])
    try:
        while reading is not None:
            batch = await reading
            begun += len(batch.records)
            # Before the first line has its length, only short ones are read ahead: they surely fit.
            ahead = sizes.next(begun) if sizes.lines or short else 0
            reading = _begin(database, records[begun : begun + ahead])
            from_loop = await _messages_from_loop(database, template, batch)
            for record in batch.records:
                line = msgspec.json.encode(await _trajectory(database, record, batch, from_loop)) + b"\n"
                sizes.add(len(line))
                yield record["id"], line
                await asyncio.sleep(0)  # Lets the read of the next batch make progress.
            reading = reading or _begin(database, records[begun : begun + max(1, sizes.next(begun))])
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


class _BatchSizes:
    """How many records are read together: as many as fit into a part if they are as long as the records before, but at
    most GROWTH times as many as the last time, because longer records may follow short ones."""

    def __init__(self, first: int) -> None:
        self.last = first
        self.lines = self._bytes = 0

    def add(self, line_bytes: int) -> None:
        self.lines += 1
        self._bytes += line_bytes

    def next(self, begun: int) -> int:
        """`begun`: records that were read already. Returns 0 if they fill the part."""
        if self.lines:
            self.last = max(0, min(GROWTH * max(1, self.last), PART_BYTES * self.lines // self._bytes + 1 - begun))
        return self.last


class _Batch(NamedTuple):
    """Records with everything that belongs to them."""

    records: Sequence[Plain]
    tasks: dict[str, Plain]
    """The tasks of these records, as rows."""
    calls: dict[str, list[Plain]]
    data: dict[str, DBRecordData]
    cut: Collection[tuple[str, str]]
    """Ids of documents and the field of which each holds only the ends."""


def _begin(database: Database, records: Sequence[Plain]) -> asyncio.Task[_Batch] | None:
    return asyncio.create_task(_read(database, records), name="read records for an export") if records else None


async def _read(database: Database, records: Sequence[Plain]) -> _Batch:
    ids = [record["id"] for record in records]
    tasks, found, data, cut = await asyncio.gather(
        _tasks(database, sorted({record["task"] for record in records})),
        _calls(database, ids),
        database.find("DBRecordData", {"_id": {"$in": ids}}),
        chunks.cut_of(database, ids),
    )
    return _Batch(records, tasks, found, {one["_id"]: load(DBRecordData, one) for one in data}, cut)


async def _messages_from_loop(
    database: Database, template: Template | None, batch: _Batch
) -> dict[str, dict[int, list[Plain]]]:
    """The messages that the loop put before the turns of each record."""
    if template is None:
        return {}
    results = await loop_messages.cut_results(database, batch.cut)
    return await asyncio.to_thread(_from_loop, template, batch.calls, results)


def _from_loop(
    template: Template, by_record: Mapping[str, Sequence[Plain]], results: Mapping[str, str]
) -> dict[str, dict[int, list[Plain]]]:
    return {record: loop_messages.by_turn(template, found, results) for record, found in by_record.items()}


async def _tasks(database: Database, ids: Sequence[str]) -> dict[str, Plain]:
    documents = await database.find("Task", {"_id": {"$in": list(ids)}}, projection={"shares": 0})
    return {task["_id"]: lists.shown(task) for task in documents}


async def _calls(database: Database, records: Sequence[str]) -> dict[str, list[Plain]]:
    """All model calls of each record, in their order."""
    by_record: dict[str, list[Plain]] = {record: [] for record in records}
    for some in calls.of_records(records):
        for call in await database.find(CALLS, some):
            by_record[call["record"]].append(call)
    return {record: sorted(found, key=lambda call: int(call["index"])) for record, found in by_record.items()}


async def _trajectory(
    database: Database, record: Plain, batch: _Batch, from_loop: Mapping[str, Mapping[int, list[Plain]]]
) -> Plain:
    """Everything of a record, complete in itself."""
    found, data = batch.calls[record["id"]], batch.data.get(record["id"])
    before_turn = from_loop.get(record["id"], {})

    async def whole(row: Plain, field: str) -> Plain:
        if (row["id"], field) not in batch.cut:
            return row
        return row | {field: await chunks.whole(database, row["id"], field)}

    answered = [load(DispatchedSamplingTask, one) for one in found if one["status"] in calls.WITH_TOKENS]
    turns = [lists.shown(calls.turn_row(one)) for one in found if one.get("over_at")]
    tool_calls = [lists.shown(tool) for one in found for tool in calls.tool_rows(one)]
    own = segments(answered, data)
    return {
        "record": record,
        "task": batch.tasks.get(record["task"]),
        "turns": [await whole(turn, "text") | {"from_loop": before_turn.get(turn["index"], [])} for turn in turns],
        "tool_calls": [await whole(call, "result") for call in tool_calls],
        "calls": [_call(call) for call in answered],
        "segments": own,
        "images": await _images(database, own),
        "advantage": data.advantage if data else None,
        "capped": data.capped if data else False,
    }


async def _images(database: Database, own: Sequence[Plain]) -> list[Plain]:
    """What the tokens of images show. Their bytes are in the collection `Image`."""
    numbers = {number for segment in own for number in image_ids.numbers_in(segment["ids"])}
    return [
        {"token": image_ids.id_of(one.number), "sha256": one.id, "bytes": one.length, "format": one.format}
        | {"width": one.width, "height": one.height}
        for one in (await images.described(database, numbers=numbers) if numbers else ())
    ]


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
    """The spans of a record that was not scored, derived from its calls."""
    prompts = full_prompts(stored)
    return TokenTree.from_calls((index, prompts[index], stored[index].output) for index in sorted(stored)).spans


def _segment(span: Span, call: DispatchedSamplingTask, stored: Mapping[int, StoredCall], *, trains: bool) -> Plain:
    segment: Plain = {
        "parent": span.parent,
        "kind": span.kind,
        "call": span.call,
        "ids": span_ids(span, stored),
        "trains": trains and span.kind == "model" and not call.context,
    }
    if span.kind == "model":
        segment["log_probs"] = unpack_floats(call.log_probs)[span.start : span.start + span.length]
        segment["versions"] = version_runs.cut(call.versions, span.start, span.length)
    return segment


def _call(call: DispatchedSamplingTask) -> Plain:
    """A call without its tokens, which are in the segments."""
    plain: Plain = {name: getattr(call, name) for name in _OF_CALL}
    plain["sampling"] = lists.shown(call.sampling)
    plain["new_prompt_tokens"], plain["output_tokens"] = length(call.prompt), length(call.output)
    return plain
