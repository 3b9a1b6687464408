"""Measures the replay of failed tool calls whose sessions are rebuilt, next to the same calls one after another."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from agentrl.protocol.data_changes import ReplayCalls
from agentrl.steward.replays import AT_ONCE
from agentrl.store import indexes, replays
from agentrl.store.call_writer import CALLS, now
from agentrl.store.database import Database, connect
from agentrl.store.document_ids import call_id, record_id, task_id, tool_call_id
from agentrl.toolbox.client import ToolboxClient
from tests.benchmarks.report import Outcome
from tests.steward.replaying import House
from tests.store.server import shared_server
from tests.toolbox.conftest import TOKEN, faulty

REPLAYS = int(os.environ.get("BENCH_REPLAYS", "200"))
CALL_S = 0.5
IN_TURN = 10
"""The number of records whose calls are made one after another."""
SHARE = 0.75
"""The least speed-up, as a share of the number of calls that a tool server takes at the same time."""


def measure() -> Outcome:
    outcome = Outcome(f"replay of {REPLAYS} failed calls of {CALL_S:g} s, each after one that rebuilds its session")
    with shared_server() as url, tempfile.TemporaryDirectory() as place:
        asyncio.run(_measure(url, Path(place), outcome))
    return outcome


async def _measure(url: str, place: Path, outcome: Outcome) -> None:
    database = connect(url, f"bench-{os.getpid()}")
    try:
        await indexes.ensure(database)
        house = House(database, place, {"faulty": faulty()})
        async with house.toolbox_up():
            one_by_one_s = await in_turn_s(house, place, IN_TURN) / IN_TURN
            async with house.steward_up():
                took_s = await replayed_s(house, await write(database, place, REPLAYS))
        outcome.share("at the same time", REPLAYS * one_by_one_s / took_s, "", "the server's limit", AT_ONCE, SHARE)
        outcome.plain("all of them", took_s, "s")
        outcome.plain("one after another, of as many", REPLAYS * one_by_one_s, "s")
    finally:
        await database.drop()
        await database.close()


async def write(database: Database, place: Path, count: int) -> list[str]:
    """Records with a call that worked and one that failed. Returns the ids of the failed ones."""
    failed = []
    for row in range(count):
        record = record_id(task_id("shop", "train", 0, row), 1, 0, 1)
        for turn, status in enumerate(("ok", "timeout")):
            id = call_id(record, turn)
            call: dict[str, Any] = {"id": tool_call_id(id, 0), "server": "faulty", "tool": "note", "status": status}
            call |= {"arguments": arguments(place), "result": "noted" if status == "ok" else "", "session": record}
            call |= {"error_class": "" if status == "ok" else "infrastructure", "requested_at": now()}
            around = {"_id": id, "record": record, "task": record.partition("#")[0], "turn": turn, "index": turn}
            await database.insert_many(CALLS, [around | {"status": "failed", "tool_calls": [call]}])
        failed.append(call["id"])
    return failed


def arguments(place: Path) -> dict[str, Any]:
    return {"path": str(place / "notes"), "seconds": CALL_S}


async def replayed_s(house: House, calls: list[str]) -> float:
    began = time.monotonic()
    wanted = ReplayCalls(calls=tuple(calls))
    await house.ask("replay_calls", wanted, id="bench")

    while await house.db.count("Replay", {"status": {"$in": replays.OPEN}}):
        await asyncio.sleep(0.05)
    took_s = time.monotonic() - began
    verdicts = {replay.verdict for replay in await replays.of_operation(house.db, "bench")}
    assert verdicts == {"fixed"}, verdicts
    return took_s


async def in_turn_s(house: House, place: Path, count: int) -> float:
    """How long both calls of this many records take, one after another."""
    began = time.monotonic()
    async with await _client(house) as client:
        for number in range(count):
            await client.open(f"turn-{number}", ["faulty"])
            for call in range(2):
                await client.call(f"turn-{number}", f"turn-{number}.{call}", "faulty", "note", arguments(place))
            await client.close(f"turn-{number}")
    return time.monotonic() - began


async def _client(house: House) -> ToolboxClient:
    service = await house.db.find_one("Service", {"kind": "toolbox"})
    assert service is not None
    return ToolboxClient(service["url"], TOKEN)
