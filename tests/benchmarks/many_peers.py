"""Measures ten thousand registered units that send a heartbeat every second: CPU time of the coordinator, and lost
units.

The same peers then send to a bare ROUTER, which shows whether the machine or the coordinator is slow.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from agentrl.protocol import messages
from agentrl.protocol.wire import encode
from tests.benchmarks.coordinator_with_fake_units import FakeFleet, fake_fleet
from tests.benchmarks.report import Outcome
from tests.waiting import eventually

PEERS = int(os.environ.get("BENCH_PEERS", "10000"))
PROCESSES = 5
HEARTBEAT_S = 1.0
FOR_S = 20.0
CPU_PERCENT = 20.0

Member = subprocess.Popen[str]


def measure() -> Outcome:
    outcome = Outcome(f"{PEERS:,} registered units in {PROCESSES} processes, each beats once a second")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    floor, _ = of_bare_router()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, fake_fleet(Path(folder)) as real:
        began = time.monotonic()
        spawns = real.register(PEERS, {"heartbeat_s": HEARTBEAT_S})
        ordered = time.monotonic()
        with _peer_processes(real.address, [real.hello_of(spawn) for spawn in spawns]) as members:
            joined = time.monotonic()
            eventually(lambda: _states(real) == {"ready": PEERS}, within_s=120, every_s=1.0)
            since = time.time()
            cpu, seen = _share_of_a_core(real.psutil, members)
            lost = _lost_since(real, since)
    outcome.at_most("the coordinator's share of a core", cpu, "%", CPU_PERCENT)
    outcome.within("the coordinator's share of a core", cpu, "%", "bare ROUTER", floor, 1.3)
    outcome.at_most("leases that were lost or doubted", lost, "", 0)
    outcome.plain("accepted and ordered to start", ordered - began, "s")
    outcome.plain("all hellos", joined - ordered, "s")
    outcome.notes.append(f"answers in {FOR_S:g} s: {dict(seen)}")
    return outcome


def of_bare_router(peers: int = PEERS) -> tuple[float, Counter[str]]:
    """CPU share of a bare ROUTER that reads the same heartbeats."""
    welcome = messages.Welcome(epoch="e", run="r", run_name="bench", now_ct=0.0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        address = f"ipc://{folder}/bare"
        answers = [encode(message).hex() for message in (welcome, messages.BeatAck(1, 0.0))]
        command = [sys.executable, str(Path(__file__).with_name("bare_router.py")), address, *answers]
        router = subprocess.Popen(command)
        try:
            with _peer_processes(address, [b"hello"] * peers) as members:
                return _share_of_a_core(psutil.Process(router.pid), members)
        finally:
            router.kill()
            router.wait()


def _share_of_a_core(process: psutil.Process, members: list[Member]) -> tuple[float, Counter[str]]:
    """Returns the CPU share in percent, kernel included, and the counts of the peers in that time."""
    time.sleep(2)
    _reports(members)
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(FOR_S)
    after, took = process.cpu_times(), time.monotonic() - began
    return 100 * (after.user - before.user + after.system - before.system) / took, _reports(members)


def _lost_since(real: FakeFleet, since: float) -> int:
    return sum(row.state != "ready" or row.since_at > since for row in real.units())


@contextmanager
def _peer_processes(address: str, hellos: list[bytes]) -> Iterator[list[Member]]:
    """Yields the processes of the peers when all peers are welcomed."""
    with ExitStack() as ends:
        members = [ends.enter_context(_member(address, hellos[n::PROCESSES])) for n in range(PROCESSES)]
        for member in members:
            assert _line(member) == "ready", "a peer was refused"
        yield members
        for member in members:
            assert member.stdin is not None
            member.stdin.close()


def _member(address: str, hellos: list[bytes]) -> Member:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.many_peers_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(" ".join([address, *(hello.hex() for hello in hellos)]) + "\n")
    process.stdin.flush()
    return process


def _line(member: Member) -> str:
    assert member.stdout is not None
    return member.stdout.readline().strip()


def _reports(members: list[Member]) -> Counter[str]:
    """Returns the counts of the peers since the last report, and their own largest delay in milliseconds."""
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


def _states(real: FakeFleet) -> dict[str, int]:
    return dict(Counter(row.state.value for row in real.units()))
