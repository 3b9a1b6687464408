"""Measures claimed and finished records per second of eight sampler processes, compared with the raw driver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from agentrl.store import indexes
from agentrl.store.database import connect
from tests.benchmarks.episodes import Shape, prepare
from tests.benchmarks.report import Outcome
from tests.store.server import shared_server

PROCESSES = 8
CONCURRENCY = 16
GROUPS, N = int(os.environ.get("BENCH_GROUPS", "250")), 8
SHAPE = Shape(turns=3, prompt=60, output=20, result=5)
LEAST = 0.5


def measure() -> Outcome:
    records = GROUPS * N
    outcome = Outcome(f"{records} records of {SHAPE.turns} turns, claimed and ended by {PROCESSES} processes")
    ours, raw = _measured("ours", records), _measured("raw", records)
    outcome.share("records, claimed and ended", ours.rate, "/s", "raw driver", raw.rate, least=LEAST)
    outcome.faster("CPU of a process per record", ours.client_ms, "ms", "raw driver", raw.client_ms)
    outcome.faster("CPU of mongod per record", ours.mongod_ms, "ms", "raw driver", raw.mongod_ms)
    return outcome


class Measured(NamedTuple):
    rate: float
    """Records per second."""
    client_ms: float
    mongod_ms: float


def _measured(how: str, records: int) -> Measured:
    """Measured from the common start of all processes."""
    with shared_server() as url:
        asyncio.run(_prepare(url))
        processes = [_process(how, url, number) for number in range(PROCESSES)]
        try:
            for process in processes:
                assert _line(process) == "ready", "a process did not start"
            began, served = time.monotonic(), _mongod_s()
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            reports = [_line(process).split() for process in processes]
            took, served = time.monotonic() - began, _mongod_s() - served
        finally:
            for process in processes:
                process.kill()
                process.wait()
        done, client_s = sum(int(count) for count, _ in reports), sum(float(spent) for _, spent in reports)
        assert done == records, f"{done} of {records} were ended"
        return Measured(records / took, 1e3 * client_s / records, 1e3 * served / records)


def _mongod_s() -> float:
    """CPU time of the database server of this benchmark."""
    (server,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "mongod")
    times = server.cpu_times()
    return float(times.user + times.system)


async def _prepare(url: str) -> None:
    database = connect(url, "bench")
    await indexes.ensure(database)
    await prepare(database, GROUPS, N)
    await database.close()


def _process(how: str, url: str, number: int) -> subprocess.Popen[str]:
    command: Sequence[str] = [sys.executable, "-m", "tests.benchmarks.claims_process", how, str(number)]
    environ = os.environ | {"BENCH_URL": url}
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
