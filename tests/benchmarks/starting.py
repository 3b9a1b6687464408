"""Starting fifty units from nothing, ten more, ten fewer: from the command to the last child's first act or end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.arrivals import Arrivals
from tests.benchmarks.figures import Outcome, median
from tests.benchmarks.supervisors import Agentrl, Circus, Floor, Supervisor, Supervisord

UNITS = 50
BY = 10
REPEATS = 3


@dataclass
class Times:
    """In milliseconds, one per repeat."""

    start: list[float] = field(default_factory=list)
    more: list[float] = field(default_factory=list)
    fewer: list[float] = field(default_factory=list)


def measure() -> Outcome:
    found = {kind.name: _times_of(kind) for kind in (Floor, Agentrl, Circus, Supervisord)}
    ours = found[Agentrl.name]
    outcome = Outcome(f"start of {UNITS} units from nothing; scale by {BY} (medians of {REPEATS})")
    start = median(ours.start)
    outcome.faster("start", start, "ms", Circus.name, median(found[Circus.name].start), by=1)
    outcome.faster("start", start, "ms", Supervisord.name, median(found[Supervisord.name].start))
    outcome.faster("start", start, "ms", Floor.name, median(found[Floor.name].start))
    outcome.faster(f"scale +{BY}", median(ours.more), "ms", Circus.name, median(found[Circus.name].more))
    outcome.faster(f"scale -{BY}", median(ours.fewer), "ms", Circus.name, median(found[Circus.name].fewer))
    outcome.notes.append("agentrl starts a host agent and a coordinator first; its command line is part of every time.")
    outcome.notes.append("supervisord cannot change the number of processes of a running program.")
    return outcome


def _times_of(kind: type[Supervisor]) -> Times:
    times = Times()
    for _ in range(REPEATS):
        _one_life(kind, times)
    return times


def _one_life(kind: type[Supervisor], times: Times) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        arrivals = Arrivals(Path(folder) / "arrivals")
        supervisor = kind(Path(folder) / "supervisor", arrivals)
        try:
            began = time.monotonic()
            supervisor.start(UNITS)
            times.start.append((arrivals.wait_count(UNITS) - began) * 1e3)
            if supervisor.scales:
                began = time.monotonic()
                supervisor.scale(BY)
                times.more.append((arrivals.wait_count(UNITS + BY) - began) * 1e3)
                times.fewer.append(_fewer(supervisor, arrivals))
        finally:
            supervisor.stop()
            arrivals.close()


def _fewer(supervisor: Supervisor, arrivals: Arrivals) -> float:
    began = time.monotonic()
    supervisor.scale(-BY)
    return (_when(lambda: arrivals.alive() <= UNITS) - began) * 1e3


def _when(condition: Callable[[], bool], within_s: float = 120.0) -> float:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the units did not end")
        time.sleep(0.002)
    return time.monotonic()
