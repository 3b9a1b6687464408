"""Which kinds of processes the suite starts, and the processor seconds of each kind.

Looks at all descendants of this process every few seconds. A process that lives shorter than that is missed; its
seconds are part of what the lanes counted, and are listed as the rest.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
OF_FORKS = {"suite-tests": "tests themselves", "suite-command": "agentrl commands", "suite-lane": "lanes"}
REST = "processes that were too short to be seen"


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    cpu_s: float
    begun: str


class ProcessCosts:
    """The processes seen so far."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], tuple[str, float]] = {}

    def look(self) -> None:
        processes = {process.pid: process for process in _processes()}
        ours = {os.getpid()}
        foreign: set[int] = set()
        for process in processes.values():
            chain: list[int] = []
            pid = process.pid
            while pid in processes and pid not in ours and pid not in foreign:
                chain.append(pid)
                pid = processes[pid].parent
            (ours if pid in ours else foreign).update(chain)
        for pid in ours - {os.getpid()}:
            if pid in processes:
                process = processes[pid]
                self._seen[pid, process.begun] = (_kind(process), process.cpu_s)

    def table(self, whole_s: float) -> list[tuple[str, int, float]]:
        """Kind, number of processes and their processor seconds; the most expensive first, then the rest."""
        counts: dict[str, int] = defaultdict(int)
        seconds: dict[str, float] = defaultdict(float)
        for kind, cpu_s in self._seen.values():
            counts[kind] += 1
            seconds[kind] += cpu_s
        rows = sorted(((kind, counts[kind], seconds[kind]) for kind in counts), key=lambda row: -row[2])
        return [*rows, (REST, 0, max(0.0, whole_s - sum(seconds.values())))]


def _processes() -> Iterator[_Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            yield _Process(int(entry), int(fields[1]), name, (int(fields[11]) + int(fields[12])) / TICKS, fields[19])


def _kind(process: _Process) -> str:
    if process.name in OF_FORKS:
        return OF_FORKS[process.name]
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    if "-m" in words[:6]:
        module = words[words.index("-m") + 1]
        return f"python -m {module}"
    if "-c" in words[:6]:
        return f"{Path(words[0]).name} -c"
    scripts = [word for word in words[1:3] if word.endswith(".py")]
    return Path((scripts or words or [""])[0]).name or process.name
