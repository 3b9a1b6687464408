"""Measures the time to start fifty units from nothing, fifty more, ten more, and to stop ten.

The time lasts from the command to the first act, or the end, of the last child. The first figure includes the start of
the supervisor, the others only that of its command line.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.report import Outcome, median
from tests.benchmarks.start_times import StartTimes
from tests.benchmarks.supervisors import Agentrl, BareLoop, Circus, Supervisor, Supervisord

UNITS = 50
BY = 10
REPEATS = 3


@dataclass
class Times:
    """In milliseconds, one per repeat."""

    start: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    more: list[float] = field(default_factory=list)
    fewer: list[float] = field(default_factory=list)


def measure() -> Outcome:
    found = {kind.name: _times_of(kind) for kind in (BareLoop, Agentrl, Circus, Supervisord)}
    ours, circus = found[Agentrl.name], found[Circus.name]
    outcome = Outcome(f"start of {UNITS} units; scale by {BY} (medians of {REPEATS})")
    start, again = median(ours.start), median(ours.again)
    outcome.faster(f"{UNITS} units of a supervisor that runs", again, "ms", Circus.name, median(circus.again), by=1)
    outcome.faster("supervisor and units from nothing", start, "ms", Circus.name, median(circus.start), by=1)
    for peer in (Supervisord.name, BareLoop.name):
        outcome.faster("supervisor and units from nothing", start, "ms", peer, median(found[peer].start))
    outcome.faster(f"scale +{BY}", median(ours.more), "ms", Circus.name, median(circus.more))
    outcome.faster(f"scale -{BY}", median(ours.fewer), "ms", Circus.name, median(circus.fewer))
    outcome.notes.append("Each command line is part of its time (agentrl, circusctl).")
    outcome.notes.append("supervisord cannot change the number of processes of a running program.")
    return outcome


def _times_of(kind: type[Supervisor]) -> Times:
    times = Times()
    for _ in range(REPEATS):
        _one_life(kind, times)
    return times


def _one_life(kind: type[Supervisor], times: Times) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        start_times = StartTimes(Path(folder) / "arrivals")
        supervisor = kind(Path(folder) / "supervisor", start_times)
        try:
            began = time.monotonic()
            supervisor.start(UNITS)
            times.start.append((start_times.wait_count(UNITS) - began) * 1e3)
            if supervisor.scales:
                times.again.append(_more(supervisor, start_times, UNITS))
                times.more.append(_more(supervisor, start_times, BY))
                times.fewer.append(_fewer(supervisor, start_times))
        finally:
            supervisor.stop()
            start_times.close()


def _more(supervisor: Supervisor, start_times: StartTimes, by: int) -> float:
    """Returns the milliseconds until this many more units have started."""
    before, began = len(start_times.latest), time.monotonic()
    supervisor.scale(by)
    return (start_times.wait_count(before + by) - began) * 1e3


def _fewer(supervisor: Supervisor, start_times: StartTimes) -> float:
    """Returns the milliseconds until ten units have ended."""
    before, began = start_times.alive(), time.monotonic()
    supervisor.scale(-BY)
    return (_when(lambda: start_times.alive() <= before - BY) - began) * 1e3


def _when(condition: Callable[[], bool], within_s: float = 120.0) -> float:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the units did not end")
        time.sleep(0.002)
    return time.monotonic()
