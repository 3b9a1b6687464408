"""Lists of tool calls: every filter, order and page finds what a search through all calls finds."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentrl.filters.evaluate import matches
from agentrl.filters.parser import parse
from agentrl.filters.sorting import parse_sort, values_of
from agentrl.store import calls, indexes, lists
from agentrl.store.call_writer import CALLS, Writer
from agentrl.store.database import Database, connect
from agentrl.store.document_ids import call_id, record_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, ToolCall
from tests.store import flow

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = record_id("t1", 1, 2, 1)
FILTERS = (
    *("", "failed=true", "failed=false", "tool=find", "tool in (find, gone)", "status=timeout", "latency_s>5"),
    *("error_class=infrastructure and tool=find", "status in (timeout, lost) or tool=find", "not tool=find"),
    *("tool!=find and status!=ok", "result~'item 3'", f"record='{RECORD}'", f"record='{RECORD}' or failed=true"),
    *(
        "requested_at>2026-01-01T00:00:20Z",
        "called_at<=2026-01-01T00:00:20Z and tool=find",
        "turn=1 and not failed=true",
    ),
    *(f"id='{RECORD}/000.1'", f"id in ('{RECORD}/000.1', '{RECORD}/001.0')"),
)
SORTS = ("", "id", "-id", "called_at", "-latency_s", "latency_s", "tool,-status", "-requested_at")


@pytest.fixture
async def stored(db: Database) -> list[dict[str, Any]]:
    """The rows of some turns, of which some have many tool calls and most were made at the same time as others."""
    chance = random.Random(5)
    documents = [_turn(f"t{task}", seat, turn, chance) for task in range(4) for seat in range(3) for turn in range(3)]
    await db.insert_many(CALLS, documents)
    return [
        lists.shown({**row, "called_at": document["called_at"], "failed": bool(row["error_class"])})
        for document in documents
        for row in calls.tool_rows(document)
    ]


def _turn(task: str, seat: int, turn: int, chance: random.Random) -> dict[str, Any]:
    record = record_id(task, 1, seat, 1)
    name, at = call_id(record, turn), BEGAN + timedelta(seconds=chance.randrange(0, 40, 5))
    tools = [_tool_call(name, number, at, chance) for number in range(chance.choice((0, 1, 2, 12)))]
    failed = [tool["requested_at"] for tool in tools if tool["error_class"]]
    called = [tool["requested_at"] for tool in tools]
    around = {"_id": name, "record": record, "task": task, "turn": turn, "owner": "sampler-0.1"}
    return around | {
        "called_at": max(called, default=None),
        "failed_at": max(failed, default=None),
        "tool_calls": tools,
    }


def _tool_call(call: str, number: int, at: datetime, chance: random.Random) -> dict[str, Any]:
    status = chance.choice(("ok", "ok", "timeout", "tool_error", "lost"))
    return {
        "id": tool_call_id(call, number),
        "server": chance.choice(("shop", "search")),
        "tool": chance.choice(("find", "price")),
        "status": status,
        "error_class": "" if status == "ok" else chance.choice(("policy", "infrastructure")),
        "result": f"item {number}",
        "latency_s": float(chance.randrange(10)),
        "requested_at": at - timedelta(seconds=chance.randrange(3)),
    }


@pytest.mark.parametrize("sort", SORTS)
async def test_pages_together_are_the_whole_list(db: Database, stored: list[dict[str, Any]], sort: str) -> None:
    fields, now = lists.FIELDS["ToolCall"], datetime.now(UTC)
    keys = parse_sort(sort or lists.NEWEST_FIRST["ToolCall"], fields)
    for filter in FILTERS:
        expected = [row for row in stored if matches(parse(filter, fields), row, now)]
        for number in reversed(range(len(keys))):
            expected.sort(key=lambda row: values_of(keys, row)[number], reverse=keys[number].descending)
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = await lists.page(db, "ToolCall", filter=filter, sort=sort, after=after, limit=9)
            found += page.rows
            if (after := page.after) is None:
                break
        assert [row["id"] for row in found] == [row["id"] for row in expected], filter


async def test_list_goes_on_behind_the_id_of_a_row(db: Database, stored: list[dict[str, Any]]) -> None:
    whole = await lists.page(db, "ToolCall", limit=1000)
    middle = len(whole.rows) // 2
    rest = await lists.page(db, "ToolCall", after=whole.rows[middle]["id"], limit=1000)
    assert rest.rows == whole.rows[middle + 1 :]


async def test_calls_that_a_sampler_writes_are_listed_at_once(db: Database) -> None:
    owner = await flow.sampler(db)
    call = DispatchedSamplingTask(id="r/000", record="r", task="t", owner=owner)
    first = ToolCall(id="r/000.0", server="shop", tool="find", requested_at=BEGAN)
    second = ToolCall(id="r/000.1", server="shop", tool="find", requested_at=BEGAN + timedelta(seconds=9))
    writer = Writer(db)
    call.tool_calls.append(first)
    await writer.insert(call)
    assert [row["status"] for row in (await lists.page(db, "ToolCall")).rows] == ["requested"]
    await writer.update(call, (), new=[second])
    first.status, first.error_class, first.done_at = "timeout", "infrastructure", BEGAN + timedelta(seconds=5)
    await writer.update(call, (), [first])
    found = (await lists.page(db, "ToolCall")).rows
    assert [(row["id"], row["called_at"]) for row in found] == [
        ("r/000.1", second.requested_at),
        ("r/000.0", second.requested_at),
    ]
    failed = (await lists.page(db, "ToolCall", filter="failed=true")).rows
    assert [(row["id"], row["failed"]) for row in failed] == [("r/000.0", True)]


async def test_calls_that_a_former_version_stored_are_listed(db: Database) -> None:
    tool = {"id": "r/000.0", "server": "shop", "tool": "find", "status": "ok", "error_class": "", "requested_at": BEGAN}
    await db.insert_many(
        CALLS, [{"_id": "r/000", "record": "r", "tool_calls": [tool]}, {"_id": "r/001", "record": "r"}]
    )
    assert (await lists.page(db, "ToolCall")).rows == []
    await db.drop_indexes(CALLS, indexes.INDEXES[CALLS])
    await indexes.ensure(db)
    assert [row["called_at"] for row in (await lists.page(db, "ToolCall")).rows] == [BEGAN]


async def test_indexes_of_a_large_run_take_longer_than_an_operation_may(db: Database, mongo_url: str) -> None:
    await db.drop_indexes(CALLS, [index for index in indexes.INDEXES[CALLS] if index.document["name"] == "called"])
    calls_of_turn = [{"id": "x", "status": "ok", "latency_s": float(n), "requested_at": BEGAN} for n in range(10)]
    for turn in range(0, 10_000, 1000):
        await db.insert_many(
            CALLS, [{"_id": f"r/{turn + n}", "record": "r", "tool_calls": calls_of_turn} for n in range(1000)]
        )
    hasty = connect(mongo_url, db.name, within_s=0.1)
    try:
        await indexes.ensure(hasty)
    finally:
        await hasty.close()
    assert "called" in await db.index_names(CALLS)
    assert await db.count(CALLS, {"called_at": BEGAN}) == 10_000
