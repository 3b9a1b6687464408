"""Measures a coordinator of one thousand units on a hundred simulated hosts: its cost at rest, and the cost of one
event.

A tenth of the units wait for GPUs that no host has. Every other unit beats every two seconds, every host measures its
units every two seconds, and every tenth unit reports metrics once a second. The lower limit is a bare ROUTER that reads
the same number of messages without decoding them.
"""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import psutil
import zmq

from agentrl.config.run import RunConfig
from agentrl.protocol import feed
from agentrl.protocol.messages import Device
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import Resources
from agentrl.protocol.wire import decode_feed
from agentrl.supervision import events
from agentrl.supervision.instructions import Spawn
from tests.benchmarks.coordinator_with_fake_units import PATIENCE_S, FakeFleet, fake_fleet
from tests.benchmarks.many_peers import of_bare_router
from tests.benchmarks.report import Outcome
from tests.ports import free_triplet
from tests.supervision.world import World, spec
from tests.waiting import eventually

_PORT, _TOKEN = free_triplet(), secrets.token_hex()
UNITS = int(os.environ.get("BENCH_UNITS", "1000"))
HOSTS = int(os.environ.get("BENCH_HOSTS", "100"))
WAITING_SHARE = 10
"""Every tenth unit waits for GPUs that no host has, so `up` does not complete either."""
STATS_S = 2.0
FOR_S = 20.0
SCRAPES = 10
DEATHS, WITHIN_S = 3 * UNITS // 10, 15.0
EVENTS_PER_DEATH = 5
"""Exited, GroupEmpty, Spawned, the hello of the next incarnation, and its first row."""
MEMORY_WINDOW_S = 12.0
WARM_UP_S = float(os.environ.get("BENCH_WARM_UP_S", "80"))
"""Six windows of memory are kept; with fast measurements they are full after this time."""


def measure() -> Outcome:
    outcome = Outcome(f"{UNITS:,} units on {HOSTS} simulated hosts")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        fake_fleet(Path(folder)) as real,
        fleet_of(real, HOSTS) as fleet,
    ):
        accepted_s = bring_up(real, UNITS, HOSTS)
        fleet.tell(f"stats {STATS_S / 10}")
        time.sleep(WARM_UP_S)
        fleet.tell(f"stats {STATS_S}")
        time.sleep(5.0)
        rest, seen = _share_of_a_core(real.psutil, fleet, FOR_S)
        fleet.tell(f"die {DEATHS} {WITHIN_S}")
        busy, deaths = _share_of_a_core(real.psutil, fleet, WITHIN_S + 2)
        eventually(lambda: all_ready(real, UNITS), within_s=60, what="every unit is ready again")
        snapshot_s = _snapshot_s(real)
        scrape = _scrape(real)
        fleet.tell("change")
        refresh_s = _seconds_until_all_rows_were_sent(real)
    # As many peers with one heartbeat a second as there are messages in a second.
    floor, _ = of_bare_router(round(seen["messages"] / FOR_S))
    outcome.at_most("the coordinator's share of a core at rest", rest, "%", 30.0)
    outcome.plain("a bare ROUTER with as many messages", floor, "%")
    event_ms = 1e3 * (busy - rest) / 100 * (WITHIN_S + 2) / (DEATHS * EVENTS_PER_DEATH)
    outcome.at_most("processor time of one event", event_ms, "ms", 1.0)
    outcome.at_most("every row changes, until all were sent", refresh_s, "s", 10.0)
    outcome.plain("a snapshot of all rows", snapshot_s, "s")
    outcome.at_most("processor time of a scrape of /metrics", 1e3 * scrape.cpu_s, "ms", 250.0)
    outcome.plain("a scrape, with all series of the units", scrape.took_s, "s")
    outcome.notes.append(f"a scrape has {scrape.series:,} series in {scrape.size_bytes / 1e3:,.0f} kB")
    outcome.plain("from `up` to all units ready", accepted_s, "s")
    outcome.at_most(f"processor time to place {UNITS:,} units that share GPUs", _placement_s(), "s", 1.0)
    outcome.notes.append(f"at rest {seen['messages'] / FOR_S:.0f} messages/s; spawned {deaths.get('Spawn', 0)} again")
    return outcome


def bring_up(real: FakeFleet, units: int, hosts: int) -> float:
    """Start the units on the simulated hosts. Returns the seconds until all of them are ready."""
    names = [f"host-{number:03d}" for number in range(hosts)]
    peer = {"command": ["true"], "speaks": True, "start_deadline_s": PATIENCE_S, "hosts": names}
    count = units // WAITING_SHARE
    waiting = peer | {"count": count, "resources": {"gpus": 8}}
    config = RunConfig.model_validate(
        {
            "name": real.name,
            "dir": real.run.run_dir,
            "sidecars": {"peer": peer | {"count": units - count}, "waiting": waiting},
            "alerts": {"memory_window_s": MEMORY_WINDOW_S},
            "metrics": {"port": _PORT, "token": f"file:{_token_file(real)}"},
        }
    )
    began = time.monotonic()
    real.client.apply(config.model_dump(mode="json"))
    eventually(lambda: all_ready(real, units), within_s=PATIENCE_S, every_s=0.5, what="every unit is ready")
    return time.monotonic() - began


def _placement_s() -> float:
    """The time that the supervisor alone takes to place all units at once."""
    names = tuple(f"host-{number:03d}" for number in range(HOSTS))
    world = World(names, devices=tuple(Device(f"GPU-{number}", str(number), "cuda") for number in range(8)))
    half = Resources(gpus=0.5)
    groups = tuple(spec(f"w{number}", UNITS // 10, resources=half, hosts=names) for number in range(10))
    began = time.process_time()
    ordered = world.supervisor.handle(events.Applied(by="up", specs=groups), world.now)
    took_s = time.process_time() - began
    assert sum(isinstance(each, Spawn) for each in ordered) == UNITS
    return took_s


def all_ready(real: FakeFleet, units: int) -> bool:
    """Whether all units are ready except those that wait for GPUs."""
    rows = real.units()
    return sum(row.state is UnitState.READY for row in rows) == units - units // WAITING_SHARE


def _snapshot_s(real: FakeFleet) -> float:
    began = time.monotonic()
    real.client.snapshot((), deadline_s=PATIENCE_S)
    return time.monotonic() - began


def _token_file(real: FakeFleet) -> Path:
    file = real.state_dir / "scrape"
    file.touch(mode=0o600)
    file.write_text(_TOKEN)
    return file


class Scrape(NamedTuple):
    took_s: float
    cpu_s: float
    """Processor time of the coordinator, in addition to its use at rest."""
    series: int
    size_bytes: int


def _scrape(real: FakeFleet) -> Scrape:
    """The mean of several scrapes, one after another."""

    def ask() -> str:
        answer = httpx.get(f"http://127.0.0.1:{_PORT}/metrics", headers={"authorization": f"Bearer {_TOKEN}"})
        return answer.raise_for_status().text

    def used() -> float:
        times = real.psutil.cpu_times()
        return times.user + times.system

    ask()  # the first one imports what it needs
    before, began = used(), time.monotonic()
    time.sleep(3.0)
    at_rest = (used() - before) / (time.monotonic() - began)
    before, began = used(), time.monotonic()
    text = [ask() for _ in range(SCRAPES)][-1]
    took = time.monotonic() - began
    cpu_s = used() - before - at_rest * took
    series = sum(not line.startswith("#") for line in text.splitlines())
    return Scrape(took / SCRAPES, cpu_s / SCRAPES, series, len(text))


def _seconds_until_all_rows_were_sent(real: FakeFleet) -> float:
    address = msgspec.json.decode((real.state_dir / "coordinator.json").read_bytes())["feed"]
    missing = {f"unit/{row.unit}" for row in real.units() if row.state is UnitState.READY}
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.connect(address)
        began = time.monotonic()
        while missing and time.monotonic() - began < 120:
            if subscriber.poll(1000):
                message = decode_feed(subscriber.recv())
                if isinstance(message, feed.FeedRow):
                    missing.discard(message.key)
    return time.monotonic() - began


class _Process:
    """The process of the fleet, controlled by lines on its stdin."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def report(self) -> dict[str, float]:
        found: dict[str, float] = msgspec.json.decode(self.tell("report"))
        return found


@contextmanager
def fleet_of(real: FakeFleet, hosts: int) -> Iterator[_Process]:
    """The process of the simulated hosts, all welcomed by the coordinator."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.simulated_fleet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    settings: dict[str, Any] = {
        "address": real.address,
        "run": real.run.uuid,
        "state_dir": str(real.state_dir),
        "hosts": hosts,
        "stats_every_s": STATS_S,
    }
    fleet = _Process(process)
    try:
        assert fleet.tell(msgspec.json.encode(settings).decode()) == "ready"
        yield fleet
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _share_of_a_core(process: psutil.Process, fleet: _Process, for_s: float) -> tuple[float, dict[str, float]]:
    fleet.report()
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(for_s)
    after, took = process.cpu_times(), time.monotonic() - began
    return 100 * (after.user - before.user + after.system - before.system) / took, fleet.report()
