"""Measures the time from the kill of a process to the first act of its replacement.

Each unit is killed once per supervisor, because a supervisor may delay the restart after a second death.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.host import cgroups
from tests.benchmarks.report import Outcome, median, p95
from tests.benchmarks.start_times import StartTimes
from tests.benchmarks.supervisors import (
    Agentrl,
    BareLoop,
    BareLoopInCgroups,
    Circus,
    EagerCircus,
    Supervisor,
    Supervisord,
)

UNITS = 50
SPREAD_S = 12.0
"""Longer than two polling intervals of the slowest supervisor."""
SETTLE_S = 2.0
CIRCUS_FACTOR = 5.0
BARE_LOOP_FACTOR = 3.0


@dataclass
class Latencies:
    """In milliseconds."""

    spread: list[float]
    at_once: list[float]


def measure() -> Outcome:
    found = {kind.name: _latencies_of(kind) for kind in _kinds()}
    outcome = Outcome(f"kill -9 to the replacement's first act, {UNITS} units without probe, each killed once")
    for what, pick in (("one by one", "spread"), ("all at once", "at_once")):
        for how, of in (("median", median), ("p95", p95)):
            mine = of(getattr(found[Agentrl.name], pick))
            for peer, latencies in found.items():
                theirs = of(getattr(latencies, pick))
                if peer in (BareLoop.name, BareLoopInCgroups.name):
                    outcome.within(f"{what}, {how}", mine, "ms", peer, theirs, BARE_LOOP_FACTOR)
                elif peer != Agentrl.name:
                    by = CIRCUS_FACTOR if peer == Circus.name and how == "median" else 0.0
                    outcome.faster(f"{what}, {how}", mine, "ms", peer, theirs, by)
    outcome.notes.append(f"one by one: at random moments of {SPREAD_S:g} s, independent of any supervisor's clock.")
    return outcome


def _kinds() -> list[type[Supervisor]]:
    kinds: list[type[Supervisor]] = [BareLoop, BareLoopInCgroups, Agentrl, Circus, EagerCircus, Supervisord]
    return kinds if cgroups.usable() else [kind for kind in kinds if kind is not BareLoopInCgroups]


def _latencies_of(kind: type[Supervisor]) -> Latencies:
    return Latencies(_in_a_life(kind, _spread), _in_a_life(kind, _at_once))


def _in_a_life(kind: type[Supervisor], moments: Callable[[], list[float]]) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        start_times = StartTimes(Path(folder) / "arrivals")
        supervisor = kind(Path(folder) / "supervisor", start_times)
        try:
            supervisor.start(UNITS)
            start_times.wait_count(UNITS)
            # Wait until the supervisor has finished its work after the start.
            time.sleep(max(SETTLE_S, supervisor.settle_s))
            return _kill_all(start_times, moments())
        finally:
            supervisor.stop()
            start_times.close()


def _spread() -> list[float]:
    return sorted(random.uniform(0.0, SPREAD_S) for _ in range(UNITS))


def _at_once() -> list[float]:
    return [0.0] * UNITS


def _kill_all(start_times: StartTimes, moments: list[float]) -> list[float]:
    """Kills one unit at a time. Returns the latency of each replacement."""
    before, killed, began = dict(start_times.latest), {}, time.monotonic()
    for (name, arrival), moment in zip(before.items(), moments, strict=True):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        killed[name] = time.monotonic()
        os.kill(arrival.pid, signal.SIGKILL)
    start_times.wait(lambda latest: all(latest[name].pid != before[name].pid for name in before))
    return [(start_times.latest[name].at - killed[name]) * 1e3 for name in before]
