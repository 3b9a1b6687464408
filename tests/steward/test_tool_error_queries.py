"""Failed tool calls by kind and by list, as the steward answers them over a real database."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentrl.filters.fields import TOOL_CALLS
from agentrl.filters.parser import parse
from agentrl.formatting.repeated_lines import pattern_of
from agentrl.protocol.data_commands import (
    ListCalls,
    Page,
    ToolErrorGroup,
    ToolErrors,
)
from agentrl.queries import tool_error_kinds, tool_errors
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from tests.steward.test_queries import asked
from tests.waiting import aeventually


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("failed to decode tool call: line 1 column 17", "failed to decode tool call:  line 3 column 5"),
        ("no item 'bake'", "no item 'stew'"),
        ("<Session 0x7f21> is gone", "<Session 0x99> is gone"),
        ("timeout after 30.5 s at 10.0.0.7:80", "timeout after 3 s at 10.0.0.9:81"),
    ],
)
def test_messages_that_differ_in_numbers_and_names_are_of_one_kind(one: str, other: str) -> None:
    assert pattern_of(one) == pattern_of(other)
    assert pattern_of(one) != pattern_of("something else")


async def test_errors_are_counted_by_kind_with_samples_to_jump_to(db: Database) -> None:
    await db.insert_many(CALLS, [malformed(number) for number in range(192)])
    await db.insert_many(CALLS, [inside(timed_out(number)) for number in range(3)])
    fine = {"id": "fine", "status": "ok", "error_class": ""}
    await db.insert_many(CALLS, [{"_id": "r/000", "record": "r", "tool_calls": [fine]}])
    found: Sequence[ToolErrorGroup] = await asked(db, "tool_errors", ToolErrors())
    assert [(kind.count, kind.status, kind.error_class, kind.message) for kind in found] == [
        (192, "malformed", "policy", "failed to decode tool call at #"),
        (3, "timeout", "infrastructure", "no answer within # s"),
    ]
    assert {sample.record for sample in found[0].samples} <= {f"r{number}" for number in range(192)}
    only: Sequence[ToolErrorGroup] = await asked(db, "tool_errors", ToolErrors(filter="server=search"))
    assert [kind.count for kind in only] == [3]
    read: Sequence[ToolErrorGroup] = await asked(db, "tool_errors", ToolErrors(filter="status=malformed and task=t1"))
    assert [kind.count for kind in read] == [96]


async def test_errors_that_name_other_things_are_one_kind_with_a_sample_of_each(db: Database) -> None:
    reply = [f"no such item: {name}" for name in ("baek", "baek", "stwe", "soop", "pei")] + ["too long"]
    await db.insert_many(CALLS, [inside(failed(number, message)) for number, message in enumerate(reply)])
    found: Sequence[ToolErrorGroup] = await asked(db, "tool_errors", ToolErrors())
    assert [(kind.count, kind.message) for kind in found] == [(5, "no such item: …"), (1, "too long")]
    samples = {sample.text for sample in found[0].samples}
    assert len(samples) == tool_error_kinds.SAMPLES, "names differ among the samples"
    assert (found[0].first_at, found[0].last_at) == (1_700_000_000.0, 1_700_000_004.0)


async def test_calls_listed_for_a_message_are_those_counted_under_it(db: Database) -> None:
    said = [f"no such item: {name}" for name in ("baek", "stwe", "soop")] + ["took 5 s", "took 9 s", "took too long"]
    await db.insert_many(CALLS, [inside(failed(number, message)) for number, message in enumerate(said)])
    kinds: Sequence[ToolErrorGroup] = await asked(db, "tool_errors", ToolErrors())
    listed: dict[str, list[str]] = {}
    for kind in kinds:
        page: Page = await asked(db, "list_calls", ListCalls(filter="tool=find", error=kind.message))
        listed[kind.message] = [row["result"] for row in page.rows]
        assert len(page.rows) == kind.count
    assert listed["no such item: …"] == ["no such item: soop", "no such item: stwe", "no such item: baek"]
    assert listed["took # s"] == ["took 9 s", "took 5 s"]
    first: Page = await asked(db, "list_calls", ListCalls(limit=2, error="no such item: …"))
    rest: Page = await asked(db, "list_calls", ListCalls(after=first.after, error="no such item: …"))
    assert [row["result"] for row in rest.rows] == ["no such item: baek"]


async def test_new_failures_are_counted_without_reading_all_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read = [0.0], list[datetime]()
    errors = tool_errors._errors

    async def slow(database: Database, query: Any, since: datetime) -> AsyncIterator[Plain]:
        read.append(since)
        now[0] += 10.0 if since == tool_errors.BEGINNING else 0.01
        async for error in errors(database, query, since):
            yield error

    monkeypatch.setattr(tool_errors, "_errors", slow)
    queries = tool_errors.ToolErrorQueries(db, clock=lambda: now[0])
    wanted = ListCalls(error="took # s")
    await db.insert_many(CALLS, [inside(failed(0, "took 5 s")), malformed(0)])
    for count in range(2, 20):
        at = datetime.now(UTC)
        turn = {"done_at": at, "over_at": at}
        await db.insert_many(CALLS, [inside(failed(count, f"took {count} s")) | turn | {"failed_at": at}])
        await db.insert_many(CALLS, [malformed(count) | turn])
        now[0] += tool_errors.FRESH_S
        assert [kind.count for kind in await queries.grouped(ToolErrors())] == [count, count]
        assert len((await queries.calls(wanted)).rows) == count
    assert read.count(tool_errors.BEGINNING) == 2, "once for each question"
    await db.delete_many(CALLS, {"_id": "t0/000"})
    read.clear()

    async def read_again() -> bool:
        now[0] += tool_errors.FRESH_S
        return [kind.count for kind in await queries.grouped(ToolErrors())] == [19, 18]

    await aeventually(read_again)
    assert read.count(tool_errors.BEGINNING) == 1
    assert len(read) > 5, "answers do not wait for it"


async def test_second_failure_of_a_turn_counts_once_and_the_first_not_again(db: Database) -> None:
    """The turn is found again by its last failure."""
    queries = tool_errors.ToolErrorQueries(db)
    queries._counts["", False] = kept = tool_errors._KeptCounts(
        db, parse("", TOOL_CALLS), with_calls=False, clock=time.monotonic
    )
    kept.used_at, kept._took_s = time.monotonic(), 1.0
    first = inside(failed(0, "took 5 s")) | {"over_at": None}
    await db.insert_many(CALLS, [first])
    assert [kind.count for kind in await queries.grouped(ToolErrors())] == [1]
    second = failed(0, "took 6 s") | {"id": "t0/000.1"}
    more = {"$push": {"tool_calls": second}, "$set": {"failed_at": datetime.now(UTC)}}
    await db.update_one(CALLS, {"_id": first["_id"]}, more)
    kept._answer_until = 0.0
    assert [kind.count for kind in await queries.grouped(ToolErrors())] == [2]
    kept._answer_until = 0.0
    assert [kind.count for kind in await queries.grouped(ToolErrors())] == [2]


@pytest.mark.parametrize("clocks_differ_s", [-3.0, 0.0, 3.0, 3600.0])
async def test_failures_are_counted_once_whenever_they_are_stored(
    db: Database, monkeypatch: pytest.MonkeyPatch, clocks_differ_s: float
) -> None:
    server_now = [datetime(2030, 1, 1, tzinfo=UTC)]

    async def at() -> datetime:
        return server_now[0]

    monkeypatch.setattr(db, "now", at)
    counted = await tool_errors._Counted.read(db, parse("", TOOL_CALLS), with_calls=False)
    for number in range(30):
        ended = server_now[0] + timedelta(seconds=clocks_differ_s)
        server_now[0] += timedelta(seconds=1)
        await db.insert_many(CALLS, [inside(failed(number, "took 5 s")) | {"failed_at": ended, "over_at": ended}])
        (errors,) = (await counted.with_new_errors()).values()
        assert errors.count == number + 1


async def test_tools_that_a_model_made_up_are_one_kind(db: Database) -> None:
    tools = ("lookuplookup", "lookupcalculator", "luk")
    made_up = [failed(n, f"There is no tool {tool}. There are: lookup, calculator.") for n, tool in enumerate(tools)]
    made_up = [call | {"server": "", "tool": tool} for call, tool in zip(made_up, tools, strict=True)]
    made_up += [failed(9, "too long") | {"tool": "lookup"}, failed(10, "too long") | {"tool": "calculator"}]
    await db.insert_many(CALLS, [inside(call) for call in made_up])
    found: Sequence[ToolErrorGroup] = await asked(db, "tool_errors", ToolErrors())
    assert [(kind.count, kind.tool, kind.message) for kind in found] == [
        (3, "…", "There is no tool …. There are: lookup, calculator."),
        (1, "calculator", "too long"),
        (1, "lookup", "too long"),
    ], "tools that are there are told apart"


async def test_more_names_than_there_is_room_for_are_one_kind_all_the_same(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_error_kinds, "MOST_KINDS", 20)
    names = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]
    await db.insert_many(CALLS, [inside(failed(number, f"no such item: {name}x")) for number, name in enumerate(names)])
    (found,) = await asked(db, "tool_errors", ToolErrors())
    assert (found.count, found.message) == (64, "no such item: …")


def failed(number: int, message: str) -> dict[str, Any]:
    return timed_out(number) | {
        "status": "error",
        "error_class": "policy",
        "result": message,
        "requested_at": datetime.fromtimestamp(1_700_000_000 + number, UTC),
    }


def malformed(number: int) -> dict[str, Any]:
    return {
        "_id": f"r{number}/000",
        "record": f"r{number}",
        "task": f"t{number % 2}",
        "turn": 0,
        "parsed": [{"name": "", "error": f"failed to decode tool call at {number}"}, {"name": "fine", "error": ""}],
    }


def timed_out(number: int) -> dict[str, Any]:
    reply = f"no answer within {number} s"
    same = {"server": "search", "tool": "find", "status": "timeout", "error_class": "infrastructure"}
    return {"id": f"t{number}/000.0", "result": reply, **same}


def inside(tool_call: dict[str, Any]) -> dict[str, Any]:
    """The model call that caused it."""
    call = tool_call["id"].rpartition(".")[0]
    at = tool_call.get("requested_at") or datetime.fromtimestamp(1_600_000_000, UTC)
    around = {"_id": call, "record": call.partition("/")[0], "turn": 0}
    return around | {"called_at": at, "failed_at": at, "tool_calls": [tool_call]}
