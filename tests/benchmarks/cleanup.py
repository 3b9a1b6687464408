"""Ends processes that benchmarks leave behind.

Every process of a benchmark inherits a mark in its environment. A benchmark stops its own processes; those that still
have the mark at the end are killed here and named. SIGTERM and SIGHUP act like Ctrl-C.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

MARK = "BENCHMARK_OF"
"""Not a variable of agentrl, because those are removed when a run is started."""


@contextmanager
def nothing_behind() -> Iterator[list[str]]:
    """Surrounds all benchmarks. At the end the list contains the names of the killed processes."""
    os.environ[MARK] = str(os.getpid())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    ended: list[str] = []
    try:
        yield ended
    finally:
        ended += _end_all()


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _end_all() -> list[str]:
    ended = []
    # A supervisor may restart a killed process, so repeat until none is left.
    while marked := _marked():
        for process in marked:
            ended.append(f"{process.pid} {process.name()}")
            process.kill()
        psutil.wait_procs(marked, timeout=5)
    return ended


def _marked() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours and process.pid != os.getpid():
            found.append(process)
    return found
