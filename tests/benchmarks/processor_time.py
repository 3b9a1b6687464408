"""The processor time of a run, by kind of process.

Processes that ended during the measurement do not count. Neither does work that the kernel accounts to no process,
which is most of the work for a network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

from agentrl.host import procfs
from tests.e2e.running import Run

ALL = "all processes of the machine"
Spent = dict[tuple[int, str], float]
"""Seconds by pid and kind."""


def spent(run: Run) -> Spent:
    found: Spent = {}
    for process in run.processes():
        try:
            times = process.cpu_times()
            found[process.pid, _kind(process)] = times.user + times.system
        except psutil.Error:
            continue
    machine = psutil.cpu_times()
    found[0, ALL] = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice - machine.steal
    return found


def between(earlier: Spent, later: Spent) -> Counter[str]:
    """Seconds by kind."""
    found: Counter[str] = Counter()
    for key, seconds in later.items():
        found[key[1]] += seconds - earlier.get(key, 0.0)  # type: ignore[assignment]
    return found


def table(columns: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """As Markdown: a row for each kind, a column for each run."""
    kinds = sorted({kind for column in columns.values() for kind in column}, key=lambda kind: -_most(columns, kind))
    rows = [[kind, *(f"{column.get(kind, 0.0):.2f}" for column in columns.values())] for kind in kinds]
    rows = [[f"in {unit}", *columns], ["---", *("---:" for _ in columns)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _most(columns: Mapping[str, Mapping[str, float]], kind: str) -> float:
    return max(column.get(kind, 0.0) for column in columns.values())


def _kind(process: psutil.Process) -> str:
    """The group of a unit with its children, or the name of a daemon."""
    marks = procfs.marks(process.pid) or {}
    words = process.cmdline()
    if unit := re.match(r"[a-z_]+", marks.get(procfs.MARK_INCARNATION, b"").decode()):
        return unit[0]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1].removeprefix("daemons.").removeprefix("agentrl.")
    return next((Path(word).stem for word in words if word.endswith(".py")), Path(words[0]).name if words else "?")
