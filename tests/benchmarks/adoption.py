"""Measures the time from the kill of the coordinator until its successor has adopted every unit."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.client.discovery import read_coordinator
from agentrl.errors import AgentrlError
from agentrl.protocol.rows import HostRow, UnitRow
from tests.benchmarks.report import Outcome, median
from tests.e2e.running import Run
from tests.waiting import eventually

SIDECARS, SPEAKING = 20, 10
REPEATS = 5
LIMIT_S = 3.0


def measure() -> Outcome:
    outcome = Outcome(f"kill -9 of the coordinator until all {SIDECARS + SPEAKING} units are adopted")
    taken = [_once() for _ in range(REPEATS)]
    outcome.at_most(f"median of {REPEATS}", median(taken), "s", LIMIT_S)
    outcome.at_most("slowest", max(taken), "s", LIMIT_S)
    outcome.notes.append(
        "adopted: the host is connected, every unit is ready, and those that send heartbeats sent one."
    )
    return outcome


def _once() -> float:
    """Returns seconds. Each measurement has a new run, because a restart after a second death is delayed on purpose."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Run(Path(folder), f"bench-{os.getpid()}", factor=1.0)
        run.sidecar("web", ["sleep", "100000"], count=SIDECARS)
        run.unit("tick", "step_loop", "--every", "0.5", count=SPEAKING)
        try:
            run.up()
            before = {unit: row.pid for unit, row in run.units().items()}
            old, killed_at, killed = run.coordinator_pid(), time.time(), time.monotonic()
            os.kill(old, signal.SIGKILL)
            client = eventually(lambda: _successor(run, old), every_s=0.005)
            try:
                eventually(lambda: _adopted(client, before, killed_at), every_s=0.005)
                return time.monotonic() - killed
            finally:
                client.close()
        finally:
            run.close()


def _successor(run: Run, old: int) -> BlockingClient | None:
    known = read_coordinator(run.state_dir)
    if known is None or run.coordinator_pid() == old:
        return None
    try:
        return BlockingClient(Client.connect(run.name, state_dir=run.state_dir, timeout_s=1.0))
    except AgentrlError:
        return None


def _adopted(client: BlockingClient, before: dict[str, int], killed_at: float) -> bool:
    rows = client.snapshot().rows.values()
    hosts = [row for row in rows if isinstance(row, HostRow)]
    units = [row for row in rows if isinstance(row, UnitRow)]
    assert {row.unit: row.pid for row in units} == before, "a unit was restarted"
    got = all(row.heard_at > killed_at for row in units if row.group == "tick")
    return got and all(row.state == "ready" for row in units) and [row.state for row in hosts] == ["up"]
