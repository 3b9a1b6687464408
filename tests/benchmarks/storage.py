"""Measures the size of a trajectory of a hundred turns, compared with one document per turn with the whole history.

Both have the same tokens, log-probs and tool results in the same encoding; sizes are those of BSON, uncompressed.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, NamedTuple

import bson

from agentrl.store import calls, indexes
from agentrl.store.database import Database, connect
from agentrl.tokens.binary_format import pack_ids, unpack_ids
from agentrl.tokens.spans import full_prompts
from tests.benchmarks.episodes import Sampler, Shape, prepare
from tests.benchmarks.report import Outcome
from tests.store.server import shared_server

SHAPE = Shape(turns=100, prompt=200, output=100, result=200)
COLLECTIONS = ("Record", "DispatchedSamplingTask", "DBRecordData")
TIMES = 20.0


def measure(shape: Shape = SHAPE) -> Outcome:
    outcome = Outcome(
        f"storage of a trajectory of {shape.turns} turns, {shape.output} tokens and {shape.result} of a tool each"
    )
    with shared_server() as url:
        found = asyncio.run(sizes(url, shape))
    outcome.smaller("BSON", found.ours / 1024, "KiB", "full history per turn", found.history / 1024, by=TIMES)
    outcome.plain("of a turn", found.ours / shape.turns, "bytes")
    return outcome


class Sizes(NamedTuple):
    ours: int
    history: int


async def sizes(url: str, shape: Shape) -> Sizes:
    """Sizes of one trajectory, in a temporary database."""
    database = connect(url, f"bench-{os.getpid()}")
    try:
        await indexes.ensure(database)
        await prepare(database, 1, 1)
        assert await Sampler(database, "sampler-0", shape).run(1) == 1
        (record,) = await database.find("Record", {})
        ours = sum([await _size_of(database, collection) for collection in COLLECTIONS])
        history = sum(len(bson.encode(turn)) for turn in await _with_history(database, record["_id"]))
        return Sizes(ours, history)
    finally:
        await database.drop()
        await database.close()


async def _size_of(database: Database, collection: str) -> int:
    sizes = [{"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}}]
    return int((await database.aggregate(collection, sizes))[0]["bytes"])


async def _with_history(database: Database, record: str) -> list[dict[str, Any]]:
    """Documents that each have the whole prompt of a turn and its conversation."""
    stored = await calls.of_record(database, record)
    prompts = full_prompts(calls.stored_calls(stored))
    messages: list[dict[str, str]] = []
    documents = []
    for call in stored:
        messages.append({"role": "assistant", "content": call.text})
        documents.append(
            {
                "_id": call.id,
                "prompt": pack_ids(prompts[call.index]),
                "output": pack_ids(unpack_ids(call.output)),
                "log_probs": call.log_probs,
                "messages": list(messages),
            }
        )
        messages += [{"role": "tool", "content": answer.result} for answer in call.tool_calls]
    return documents
