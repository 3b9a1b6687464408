"""Nothing of a measurement outlives it, however it ends.

Every process that a benchmark starts inherits a mark in its environment. Each benchmark stops what it started by
itself; what still carries the mark when all is over is ended here, and named. SIGTERM and SIGHUP end like Ctrl-C.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

MARK = "BENCHMARK_OF"
"""Not one of the run's own variables, which whoever starts a run leaves out."""


@contextmanager
def nothing_behind() -> Iterator[list[str]]:
    """Around all measurements; the list names, at the end, what had to be ended."""
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
    # Whoever is ended may be watched by somebody who starts it again: until nobody is left.
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
