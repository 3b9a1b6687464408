"""Ten thousand registered units that beat once a second: what that costs the coordinator, and whether it keeps up."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from agentrl.protocol.messages import Spawn
from agentrl.protocol.rows import UnitRow
from tests.benchmarks.figures import Outcome
from tests.benchmarks.stage import Stage, stage
from tests.waiting import eventually

PEERS = int(os.environ.get("BENCH_PEERS", "10000"))
PROCESSES = 5
HEARTBEAT_S = 1.0
FOR_S = 30.0
CPU_PERCENT = 20.0


def measure() -> Outcome:
    outcome = Outcome(f"{PEERS:,} registered units in {PROCESSES} processes, each beats once a second")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        real = ends.enter_context(stage(folder))
        began = time.monotonic()
        spawns = real.register(PEERS, {"heartbeat_s": HEARTBEAT_S})
        ordered = time.monotonic()
        members = [ends.enter_context(_member(real, spawns[n::PROCESSES])) for n in range(PROCESSES)]
        for member in members:
            assert _line(member) == "ready"
        joined = time.monotonic()
        eventually(lambda: _states(real) == {"ready": PEERS}, within_s=120, every_s=1.0)
        _watch(real, members, outcome)
        for member in members:
            member.stdin.close()  # type: ignore[union-attr]
        outcome.plain("accepted and ordered to start", ordered - began, "s")
        outcome.plain("all hellos", joined - ordered, "s")
    return outcome


def _watch(real: Stage, members: list[subprocess.Popen[str]], outcome: Outcome) -> None:
    _reports(members)
    time.sleep(2)
    since, process = time.time(), real.psutil
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(FOR_S)
    after, took = process.cpu_times(), time.monotonic() - began
    cpu = 100 * (after.user - before.user + after.system - before.system) / took
    seen = _reports(members)
    rows = [row for row in real.client.snapshot(("unit",)).rows.values() if isinstance(row, UnitRow)]
    lost = sum(row.state != "ready" or row.since_at > since for row in rows)
    outcome.at_most("the coordinator's share of a core", cpu, "%", CPU_PERCENT)
    outcome.at_most("leases that were lost or doubted", lost, "", 0)
    outcome.plain("of the share, in the kernel", 100 * (after.system - before.system) / took, "%")
    outcome.plain("memory of the coordinator", process.memory_info().rss / 2**20, "MiB")
    outcome.notes.append(f"answers in {took:.0f} s: {dict(seen)}")


def _member(real: Stage, spawns: list[Spawn]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.crowd_member"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(" ".join([real.address, *(real.hello_of(spawn).hex() for spawn in spawns)]) + "\n")
    process.stdin.flush()
    return process


def _line(member: subprocess.Popen[str]) -> str:
    assert member.stdout is not None
    return member.stdout.readline().strip()


def _reports(members: list[subprocess.Popen[str]]) -> Counter[str]:
    """What the members saw since they were asked last; how late they were themselves, at worst, in milliseconds."""
    seen: Counter[str] = Counter()
    for member in members:
        assert member.stdin is not None
        member.stdin.write("report\n")
        member.stdin.flush()
        for word in _line(member).split():
            name, _, value = word.partition("=")
            if name == "late":
                seen["ms late"] = max(seen["ms late"], round(float(value) * 1e3))
            else:
                seen[name] += int(value)
    return seen


def _states(real: Stage) -> dict[str, int]:
    rows = real.client.snapshot(("unit",)).rows.values()
    return dict(Counter(row.state.value for row in rows if isinstance(row, UnitRow)))
