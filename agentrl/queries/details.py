"""Full views of one task, step or checkpoint, and of the accounting.

Invariant: other documents appear as rows of their lists, so the same names mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.errors import UnknownNameError
from agentrl.formatting.names import singular
from agentrl.protocol.data_commands import AccountReport, Story
from agentrl.queries import image_words, pages
from agentrl.store import accounting, lists
from agentrl.store.database import Database, Plain

MOST_RECORDS = 1000


async def task(database: Database, id: str) -> Story:
    """One task with all attempts of all rounds, and the steps that took it."""
    document = await whole(database, "Task", id, hint="See `agentrl tasks list`.")
    document = await image_words.described(database, document)
    taken = {"$or": [{"tasks": id}, {"filtered": id}]}
    steps = await database.find("Step", taken, sort=[("_id", 1)], projection=["status", "committed_at"])
    found, more = await _records(database, {"task": id})
    return Story(document, found, more, {"steps": [lists.shown(step) for step in steps]})


async def step(database: Database, id: str) -> Story:
    """One step with its records, each with its share in the batch."""
    document = await whole(database, "Step", id, hint="See `agentrl steps list`.")
    found, more = await _records(database, {"_id": {"$in": document["records"]}})
    shares = await database.find(
        "DBRecordData",
        {"_id": {"$in": [row["id"] for row in found]}},
        projection=["advantage", "capped", "trained_tokens", "versions"],
    )
    by_record = {share["_id"]: lists.shown(share) for share in shares}
    return Story(document, tuple(row | by_record.get(row["id"], {}) for row in found), more)


async def checkpoint(database: Database, id: str) -> Story:
    """One checkpoint with its files and its publications."""
    document = await whole(database, "Checkpoint", id, hint="See `agentrl checkpoints list`.")
    version = await database.find_one("Publication", {"_id": document["version"]}, projection=lists.LEFT_OUT)
    made_by = {"lineage": document["lineage"], "step": document["step"]}
    step = await database.find_one("Step", made_by, projection=["status", "metrics", "committed_at"])
    return Story(
        document,
        related={
            "publication": None if version is None else lists.shown(version),
            "step": None if step is None else lists.shown(step),
        },
    )


async def replay(database: Database, id: str) -> Story:
    """One replay, with the recorded call beside the runs."""
    return Story(await whole(database, "Replay", id, hint="See `agentrl replays list`."))


async def whole(database: Database, kind: str, id: str, *, hint: str) -> Plain:
    """A document with the field names of rows. Raises UnknownNameError."""
    document = await database.find_one(kind, {"_id": id})
    if document is None:
        raise UnknownNameError(f"There is no {singular(kind)} {id}.", hint=hint)
    return lists.shown(document)


async def _records(database: Database, filter: Mapping[str, Any]) -> tuple[tuple[Plain, ...], int]:
    documents = await database.find("Record", filter, sort=[("_id", 1)], limit=MOST_RECORDS)
    short = [pages.shortened("Record", lists.shown(document)) for document in documents]
    await pages.add_activity(database, short)
    more = await database.count("Record", filter) - len(short) if len(short) == MOST_RECORDS else 0
    return tuple(short), more


async def account(database: Database, max_trained_count: int) -> AccountReport:
    found = await accounting.account(database, max_trained_count=max_trained_count)
    return msgspec.convert({**msgspec.to_builtins(found), "balanced": found.balanced}, AccountReport)
