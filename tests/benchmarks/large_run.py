"""Measures the account and the export of a run with fifty thousand records, with the code of the steward."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

from agentrl.protocol.data_commands import ExportPart, ExportRecords
from agentrl.queries import exports
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.store import accounting, indexes
from agentrl.store.database import Database, connect
from tests.benchmarks import finished_run
from tests.benchmarks.report import Outcome, median
from tests.store.server import shared_server

RECORDS = int(os.environ.get("BENCH_RECORDS", "50048"))
REPEATS = 3
ACCOUNT_S = 2.0
EXPORT_MS = 0.5
"""The time to export one record; this is 2,000 per second."""


def measure() -> Outcome:
    outcome = Outcome(f"questions to the store of a run with {RECORDS} records, each of {finished_run.TURNS} turns")
    with shared_server() as url:
        asyncio.run(_ask(url, outcome))
    return outcome


async def _ask(url: str, outcome: Outcome) -> None:
    database = connect(url, "bench")
    # Every unit does this when it is ready.
    gc.collect()
    gc.freeze()
    try:
        await indexes.ensure(database)
        written = await finished_run.write(database, RECORDS)
        outcome.at_most("accounting", median([await _account_s(database) for _ in range(REPEATS)]), "s", ACCOUNT_S)
        began = time.monotonic()
        exported = await export(database)
        took_s = time.monotonic() - began
        assert exported == written, f"{exported} of {written} records were exported"
        outcome.at_most("export of a record", 1e3 * took_s / written, "ms", EXPORT_MS)
    finally:
        await database.close()


async def _account_s(database: Database) -> float:
    began = time.monotonic()
    account = await accounting.account(database)
    assert account.balanced, account.problems
    return time.monotonic() - began


async def export(database: Database) -> int:
    """Returns how many records were exported."""
    records, part = 0, ExportPart()
    published = PublishedTokenizer(database, Path("nowhere"))
    while not part.end:
        part = await exports.part(database, published, ExportRecords(after=part.after, offset=part.offset))
        records += part.records
    return records
