"""Measures the latency of the console: its first screen, and the first page of many records.

The first screen is timed from the start of `python -m tui` until a pseudo-terminal shows rows of the run; the page is
a query of the console to the steward's query handler with a real mongod.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agentrl.policies.status_tables import RecordStatus
from agentrl.protocol.data_commands import ListRows
from agentrl.queries import pages
from agentrl.store import document_ids, indexes
from agentrl.store.database import Database, connect
from agentrl.store.documents import Record, to_bson
from tests.benchmarks.report import Outcome, median, p95
from tests.cli.scripted import Scripted
from tests.store.server import shared_server
from tests.tui.conftest import populate
from tui.views.query_views import FIRST

RECORDS = 100_000
BATCH = 10_000
ASKED = 20
STARTS = 7
GRACE_S = 60.0
FIRST_PAGES = {"the newest": "", "of a filter": "score > 0.5 and turns >= 3"}


def measure(outcome: Outcome) -> None:
    """Adds the figures."""
    outcome.at_most("start to the first useful paint, median", median(_starts()), "s", 0.8)
    with shared_server() as url:
        for what, taken in asyncio.run(_pages(url)).items():
            outcome.at_most(f"first page of {RECORDS:,} records, {what}, p95", p95(taken) * 1000, "ms", 300)


# ---- the first screen ----


def _starts() -> list[float]:
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        script = Scripted(Path(folder) / "home")
        populate(script)
        with script:
            return [_first_paint(script) for _ in range(STARTS)]


def _first_paint(script: Scripted) -> float:
    """Returns the seconds until the screen shows the units of the run."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environ = {**os.environ, "AGENTRL_HOME": str(script.state_dir.parent), "TERM": "xterm-256color"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "tui", "--run", script.state_dir.name]
    began, seen = time.perf_counter(), b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        try:
            while b"judge-0 is fatal" not in seen:
                assert time.perf_counter() - began < GRACE_S, "nothing was painted"
                seen += os.read(ours, 1 << 16)
            return time.perf_counter() - began
        finally:
            process.kill()
            os.close(ours)


# ---- the first page ----


async def _pages(url: str) -> dict[str, list[float]]:
    database = connect(url, "bench_looking")
    try:
        await database.drop()
        await indexes.ensure(database)
        await _fill(database)
        taken: dict[str, list[float]] = {}
        for what, filtered in FIRST_PAGES.items():
            wanted = ListRows(filter=filtered, sort="-started_at", limit=FIRST)
            for _ in range(ASKED):
                began = time.perf_counter()
                page = await pages.page(database, "Record", wanted)
                taken.setdefault(what, []).append(time.perf_counter() - began)
                assert len(page.rows) == FIRST
        return taken
    finally:
        await database.drop()
        await database.close()


async def _fill(database: Database) -> None:
    noon = datetime(2030, 1, 31, 12, tzinfo=UTC)
    for first in range(0, RECORDS, BATCH):
        await database.insert_many("Record", to_bson([_record(n, noon) for n in range(first, first + BATCH)]))


def _record(number: int, noon: datetime) -> Record:
    task = document_ids.task_id("shop", "train", number // 80_000, number // 8)
    at = noon + timedelta(seconds=number / 10)
    return Record(
        id=document_ids.record_id(task, 1, number % 8, 1),
        task=task,
        environment="shop",
        round=1,
        seat=number % 8,
        status=RecordStatus.SCORED,
        outcome="answered",
        outcome_class="result",
        score=number % 10 / 10,
        turns=number % 7,
        generated_tokens=number % 500,
        oldest_version=number // 1000,
        newest_version=number // 1000 + 1,
        created_at=at,
        started_at=at,
        finished_at=at,
        duration_s=number % 60,
    )
