"""From the kill of a process to the first act of its replacement."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.arrivals import Arrivals
from tests.benchmarks.figures import Outcome, median, p95
from tests.benchmarks.supervisors import Agentrl, Circus, Floor, Supervisor, Supervisord

UNITS = 50
ONE_BY_ONE_S = 40.0
"""A supervisor that is slow has fewer than all of its units killed one by one."""
SETTLE_S = 2.0
CIRCUS_FACTOR = 5.0
FLOOR_FACTOR = 3.0


@dataclass
class Latencies:
    """In milliseconds."""

    one_by_one: list[float]
    at_once: list[float]


def measure() -> Outcome:
    found = {kind.name: _latencies_of(kind) for kind in (Floor, Agentrl, Circus, Supervisord)}
    ours, floor = found[Agentrl.name], found[Floor.name]
    outcome = Outcome(f"kill -9 to the replacement's first act, {UNITS} units without probe")
    for what, pick in (("one after another", "one_by_one"), ("all at once", "at_once")):
        for how, of in (("median", median), ("p95", p95)):
            mine = of(getattr(ours, pick))
            label = f"{what}, {how}"
            for peer in (Circus.name, Supervisord.name):
                by = CIRCUS_FACTOR if peer == Circus.name and how == "median" else 0.0
                outcome.faster(label, mine, "ms", peer, of(getattr(found[peer], pick)), by)
            outcome.within(label, mine, "ms", Floor.name, of(getattr(floor, pick)), FLOOR_FACTOR)
    for name, latencies in found.items():
        outcome.notes.append(f"{name}: {len(latencies.one_by_one)} killed one by one, {len(latencies.at_once)} at once")
    return outcome


def _latencies_of(kind: type[Supervisor]) -> Latencies:
    """Each unit is killed once in a life of the supervisor: a second death may rightly be answered by a pause."""
    return Latencies(_in_a_life(kind, _one_by_one), _in_a_life(kind, _all_at_once))


def _in_a_life(kind: type[Supervisor], kill: Callable[[Arrivals], list[float]]) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        arrivals = Arrivals(Path(folder) / "arrivals")
        supervisor = kind(Path(folder) / "supervisor", arrivals)
        try:
            supervisor.start(UNITS)
            arrivals.wait_count(UNITS)
            # Whatever a supervisor does after a start is over by then.
            time.sleep(max(SETTLE_S, supervisor.settle_s))
            return kill(arrivals)
        finally:
            supervisor.stop()
            arrivals.close()


def _one_by_one(arrivals: Arrivals) -> list[float]:
    latencies: list[float] = []
    until = time.monotonic() + ONE_BY_ONE_S
    for name, arrival in list(arrivals.latest.items()):
        if time.monotonic() > until:
            break
        killed = time.monotonic()
        os.kill(arrival.pid, signal.SIGKILL)
        latencies.append((arrivals.wait_replaced(name, arrival.pid) - killed) * 1e3)
        # Not in step with any clock of the supervisor, nor right behind the work that the last death caused.
        time.sleep(random.uniform(0.02, 0.12))
    return latencies


def _all_at_once(arrivals: Arrivals) -> list[float]:
    before, killed = dict(arrivals.latest), {}
    for name, arrival in before.items():
        killed[name] = time.monotonic()
        os.kill(arrival.pid, signal.SIGKILL)
    arrivals.wait(lambda latest: all(latest[name].pid != before[name].pid for name in before))
    return [(arrivals.latest[name].at - killed[name]) * 1e3 for name in before]
