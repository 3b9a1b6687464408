"""Measures pages of the lists of a million tool calls and of their records, next to a hand-written query for each."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from agentrl.policies.status_tables import RecordStatus
from agentrl.protocol.data_commands import ListCalls, ListRows
from agentrl.queries import pages
from agentrl.queries.tool_errors import ToolErrorQueries
from agentrl.store import indexes
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, connect
from agentrl.store.document_ids import call_id, record_id, task_id, tool_call_id
from agentrl.store.documents import Record, to_bson
from agentrl.tokens.binary_format import pack_floats, pack_ids
from tests.benchmarks.report import Outcome, median
from tests.store.server import shared_server

MOST_CALLS = int(os.environ.get("BENCH_CALLS", "1000000"))
TURNS, IN_TURN = 8, 2
TOOLS = ("lookup", "price", "search", "rare")
WEIGHTS = (600, 300, 99, 1)
FAILED_SHARE = 0.03
RATIO, PAGE_MS = 2.0, 300.0
REPEATS, LIMIT = 5, 100
BEGAN = datetime(2026, 11, 23, tzinfo=UTC)
_DATED: dict[str, Any] = {"called_at": {"$type": "date"}}
_NEWEST: dict[str, Any] = {"$sort": {"called_at": -1, "_id": -1}}
_ROWS: list[dict[str, Any]] = [
    {"$unwind": "$tool_calls"},
    {"$replaceRoot": {"newRoot": {"$mergeObjects": [{"record": "$record", "at": "$called_at"}, "$tool_calls"]}}},
]


RECORD_QUESTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("", "-started_at", {}),
    ("status=failed", "-started_at", {"status": "failed"}),
    (
        "outcome_class=infrastructure and turns>=8",
        "-started_at",
        {"outcome_class": "infrastructure", "turns": {"$gte": 8}},
    ),
    ("score<0.05", "-duration_s", {"score": {"$lt": 0.05}}),
)
"""Filter, order, and the equivalent filter of MongoDB, written by hand."""


def measure() -> Outcome:
    outcome = Outcome(f"pages of {LIMIT} rows of a list of {MOST_CALLS} tool calls")
    with shared_server() as url:
        asyncio.run(_measure(url, outcome))
    return outcome


async def _measure(url: str, outcome: Outcome) -> None:
    database = connect(url, "bench")
    try:
        await indexes.ensure(database)
        await write(database, MOST_CALLS)
        for what, filter, sort, by_hand in questions():
            await _by_hand_ms(database, by_hand)  # A first read fills the cache, so that both start warm.
            page_ms = await _page_ms(database, filter, sort)
            outcome.within(what, page_ms, "ms", "by hand", await _by_hand_ms(database, by_hand), factor=RATIO)
            outcome.at_most(f"{what}: a page", page_ms, "ms", PAGE_MS)
        outcome.at_most("the thousandth page", await _deep_ms(database), "ms", PAGE_MS)
        for filter, sort, query in RECORD_QUESTIONS:
            await _records_by_hand_ms(database, query, sort)
            page_ms = await _records_ms(database, filter, sort)
            what = f"records: {filter or 'all'}, by {sort}"
            outcome.within(
                what, page_ms, "ms", "by hand", await _records_by_hand_ms(database, query, sort), factor=RATIO
            )
            outcome.at_most(f"{what}: a page", page_ms, "ms", PAGE_MS)
    finally:
        await database.close()


def questions() -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """Name, filter and order of each list, with the query that an expert of the indexes would write for it."""
    yield "the newest", "", "", _newest({}, {})
    yield "failed", "failed=true", "", _newest({"failed_at": {"$type": "date"}}, {"error_class": {"$gt": ""}})
    for tool in ("price", "rare"):
        yield f"tool {tool}", f"tool={tool}", "", _newest({"tool_calls.tool": tool}, {"tool": tool})
    timed_out = {"status": "timeout", "tool": "rare"}
    found = {"failed_at": {"$type": "date"}, "tool_calls": {"$elemMatch": timed_out}}
    yield "timeouts of a rare tool", "status=timeout and tool=rare", "", _newest(found, timed_out)
    slow = {"latency_s": {"$gt": 9.99}}
    yield "slow", "latency_s>9.99", "", _newest({"tool_calls": {"$elemMatch": slow}}, slow)
    record = record_id(task_id("shop", "train", 0, 7), 1, 3, 1)
    yield (
        "a record",
        f"record={record}",
        "",
        _newest({"record": record, "_id": {"$gt": record, "$lt": f"{record}0"}}, {}),
    )
    since = BEGAN + timedelta(seconds=100)
    yield (
        "since",
        f"tool=search and requested_at>{since:%Y-%m-%dT%H:%M:%SZ}",
        "",
        _newest({"tool_calls.tool": "search", "called_at": {"$gt": since}}, {"tool": "search"}),
    )
    slowest, last = {"$sort": {"tool_calls.latency_s": -1}}, {"$sort": {"latency_s": -1}}
    yield (
        "the slowest",
        "",
        "-latency_s",
        [{"$match": _DATED}, slowest, {"$limit": LIMIT}, *_ROWS, last, {"$limit": LIMIT}],
    )


def _newest(documents: dict[str, Any], rows: dict[str, Any]) -> list[dict[str, Any]]:
    first = [{"$match": _DATED | documents}, _NEWEST, {"$limit": LIMIT}]
    return [*first, *_ROWS, {"$match": rows}, {"$limit": LIMIT}]


async def _page_ms(database: Database, filter: str, sort: str, after: str = "") -> float:
    args = ListCalls(filter=filter, sort=sort, limit=LIMIT, after=after)
    queries, took = ToolErrorQueries(database), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await queries.calls(args)
        took.append(time.perf_counter() - began)
    return 1e3 * median(took)


async def _by_hand_ms(database: Database, pipeline: list[dict[str, Any]]) -> float:
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await _outcomes_by_hand(database, await database.aggregate(CALLS, pipeline))
        took.append(time.perf_counter() - began)
    return 1e3 * median(took)


async def _outcomes_by_hand(database: Database, rows: list[dict[str, Any]]) -> None:
    """Make the further queries of a page, which shows whether each record trained and the verdict of its newest
    replay."""
    steps = {"status": "committed", "records": {"$in": sorted({row["record"] for row in rows})}}
    await database.find("Step", steps, projection=["records"])
    await database.find("Replay", {"call": {"$in": [row["id"] for row in rows]}}, projection=["call", "verdict"])


async def _records_ms(database: Database, filter: str, sort: str) -> float:
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await pages.page(database, "Record", ListRows(filter=filter, sort=sort, limit=LIMIT))
        took.append(time.perf_counter() - began)
    return 1e3 * median(took)


async def _records_by_hand_ms(database: Database, query: dict[str, Any], sort: str) -> float:
    order, took = [(sort[1:], -1), ("_id", -1)], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        assert len(await database.find("Record", query, sort=order, limit=LIMIT)) == LIMIT
        took.append(time.perf_counter() - began)
    return 1e3 * median(took)


async def _deep_ms(database: Database) -> float:
    middle = tool_call_id(call_id(record_id(task_id("shop", "train", 0, MOST_CALLS // 256), 1, 3, 1), 0), 0)
    return await _page_ms(database, "", "", after=middle)


async def write(database: Database, count: int) -> None:
    chance = random.Random(7)
    documents: list[dict[str, Any]] = []
    for number in range(-(-count // IN_TURN)):
        documents.append(_document(number, chance))
        if len(documents) == 2000:
            await database.insert_many(CALLS, documents, ordered=False)
            documents = []
    await database.insert_many(CALLS, documents, ordered=False)
    records = [_record(number, chance) for number in range(-(-count // (IN_TURN * TURNS)))]
    await database.insert_many("Record", to_bson(records), ordered=False)


def _record(number: int, chance: random.Random) -> Record:
    place, seat = divmod(number, 8)
    task, at = task_id("shop", "train", 0, place), BEGAN + timedelta(milliseconds=8 * number)
    failed = chance.random() < FAILED_SHARE
    return Record(
        id=record_id(task, 1, seat, 1),
        task=task,
        environment="shop",
        seat=seat,
        status=RecordStatus.FAILED if failed else RecordStatus.SCORED,
        outcome="tool_timeout" if failed else "answered",
        outcome_class="infrastructure" if failed else "policy",
        score=None if failed else chance.random(),
        turns=TURNS,
        created_at=at,
        started_at=at,
        finished_at=at,
        duration_s=round(chance.random() * 60, 3),
    )


_TOKENS = {"prompt": pack_ids(range(40)), "output": pack_ids(range(60)), "log_probs": pack_floats([-0.5] * 60)}


def _document(number: int, chance: random.Random) -> dict[str, Any]:
    """A turn with its tool calls; attempts of one task run at the same time."""
    (place, turn), seat = divmod(number // 8, TURNS), number % 8
    task = task_id("shop", "train", 0, place)
    record = record_id(task, 1, seat, 1)
    name, at = call_id(record, turn), BEGAN + timedelta(milliseconds=number)
    tools = [_tool_call(name, place, at, chance) for place in range(IN_TURN)]
    failed = [tool["done_at"] for tool in tools if tool["error_class"]]
    return {
        "_id": name,
        "record": record,
        "task": task,
        "turn": turn,
        "index": turn,
        "owner": "sampler-0.1",
        "status": "done",
        **_TOKENS,
        "text": "<tool_call>lookup(bake)</tool_call>" * IN_TURN,
        "called_at": at,
        "failed_at": max(failed, default=None),
        "tool_calls": tools,
    }


def _tool_call(call: str, number: int, at: datetime, chance: random.Random) -> dict[str, Any]:
    failed = chance.random() < FAILED_SHARE
    (tool,) = chance.choices(TOOLS, WEIGHTS)
    took_s = round(chance.random() * 10, 3)
    return {
        "id": tool_call_id(call, number),
        "server": "shop",
        "tool": tool,
        "arguments": {"item": "bake"},
        "session": call.partition("/")[0],
        "status": chance.choice(("timeout", "tool_error")) if failed else "ok",
        "error_class": "infrastructure" if failed else "",
        "tried_again": "",
        "result": f"no answer within {number} s" if failed else "bake costs 7",
        "latency_s": took_s,
        "requested_at": at,
        "done_at": at + timedelta(seconds=took_s),
    }
