"""One process of `claims`: prints `ready`, starts at the end of stdin, and prints its records and CPU seconds."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from pymongo import AsyncMongoClient, InsertOne, ReturnDocument, UpdateOne

from agentrl.store.database import connect
from agentrl.tokens.binary_format import pack_floats, pack_ids
from tests.benchmarks.claims import CONCURRENCY, SHAPE
from tests.benchmarks.episodes import Sampler, result_of


async def ours(url: str, name: str) -> int:
    database = connect(url, "bench")
    try:
        return await Sampler(database, name, SHAPE).run(CONCURRENCY)
    finally:
        await database.close()


async def raw(url: str, name: str) -> int:
    """Writes the same documents in the same order, with only the queries that a claim needs."""
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        database = client["bench"]

        async def work() -> int:
            count = 0
            claimed = {"$set": {"status": "running", "owner": name}}
            while record := await database["Record"].find_one_and_update(
                {"status": "open"}, claimed, sort=[("order", 1), ("seat", 1)], return_document=ReturnDocument.AFTER
            ):
                await play(database, record["_id"], record["task"], name)
                count += 1
            return count

        return sum(await asyncio.gather(*(work() for _ in range(CONCURRENCY))))


async def play(database: Any, record: str, task: str, owner: str) -> None:
    of = {"record": record, "task": task, "owner": owner}
    output = {"output": pack_ids(range(SHAPE.output)), "log_probs": pack_floats([-0.5] * SHAPE.output)}
    for turn in range(SHAPE.turns):
        new = SHAPE.result if turn else SHAPE.prompt
        name = f"{record}/{turn:03d}"
        call = {"index": turn, "turn": turn, "status": "done", "prompt": pack_ids(range(new)), **output, **of}
        call["text"] = " word" * (SHAPE.output // 2)
        if turn < SHAPE.turns - 1:
            call["tool_calls"] = [{"id": f"{name}.0", "tool": "lookup", "status": "requested"}]
        await database["DispatchedSamplingTask"].bulk_write([InsertOne({"_id": name, **call})])
        if turn < SHAPE.turns - 1:
            ok = {"$set": {"tool_calls.0.status": "ok", "tool_calls.0.result": result_of(SHAPE)}}
            await database["DispatchedSamplingTask"].bulk_write([UpdateOne({"_id": name, "owner": owner}, ok)])
        if not turn:
            mine = {"_id": record, "owner": owner}
            await database["Record"].update_one(mine, {"$set": {"turns": 1, "oldest_version": 1}})
    await database["DBRecordData"].insert_one({"_id": record, "task": task, "trained_tokens": 1, "spans": []})
    scored = {"$set": {"status": "scored", "score": 1.0, "turns": SHAPE.turns}}
    await database["Record"].update_one({"_id": record, "owner": owner, "status": "running"}, scored)


def main() -> None:
    how, number = sys.argv[1:]
    act = ours if how == "ours" else raw
    print("ready", flush=True)
    sys.stdin.read()
    began = time.process_time()
    count = asyncio.run(act(os.environ["BENCH_URL"], f"sampler-{number}"))
    print(count, time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
