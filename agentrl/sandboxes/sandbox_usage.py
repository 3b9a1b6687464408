"""Measures what sandboxes use: memory, processor, processes and open files.

Invariants:
- One measurement reads the processes of the host once, for all sandboxes.
- Memory and processes are read from the cgroup; without cgroups, the processes below the first one are added up.
- Memory that the kernel can take back at once, such as cached files, does not count.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.tool_sandbox import Sandbox
from agentrl.host import procfs
from agentrl.sandboxes.sandbox_cgroups import SandboxCgroup

OWN_PROCESSES: Mapping[str, int] = {"process": 2}
"""Processes of bubblewrap itself, which the limit of a sandbox does not count."""
_MOST_COUNTED = 64
"""Processes of a sandbox whose open files are counted."""


@dataclass(frozen=True, slots=True)
class Measured:
    pid: int
    """Its first process, as the host sees it."""
    kind: str
    limits: Sandbox
    cgroup: SandboxCgroup | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses. A figure that cannot be read is 0."""

    at: float
    memory_bytes: int = 0
    memory_share: float = 0.0
    """The used share of the limit of the sandbox, or of each process."""
    cpu_percent: float = 0.0
    processes: int = 0
    open_files: int = 0
    """Open files of the process that has the most."""


class UsageMeter:
    """Measures sandboxes. Processor use is a difference, so the meter keeps the last value of each sandbox."""

    def __init__(self) -> None:
        self._ticks: dict[int, tuple[float, int]] = {}
        """By first process: the time of its last measurement, and the ticks of its sandbox until then."""

    def measure(self, sandboxes: Sequence[Measured]) -> dict[int, Usage]:
        """Usage by first process. One that has ended is left out."""
        stats = procfs.all_stats()
        children: dict[int, list[int]] = {}
        for stat in stats.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
        found = {}
        for sandbox in sandboxes:
            inside = [
                stats[pid] for pid in _tree(sandbox.pid, children) if pid in stats and stats[pid].state not in "ZX"
            ]
            if inside:
                found[sandbox.pid] = self._one(sandbox, inside)
        return found

    def forget(self, living: Sequence[int]) -> None:
        """Keep only the values of these sandboxes."""
        self._ticks = {pid: self._ticks[pid] for pid in living if pid in self._ticks}

    def _one(self, sandbox: Measured, inside: Sequence[procfs.Stat]) -> Usage:
        now, ticks = time.monotonic(), sum(stat.cpu_ticks for stat in inside)
        before_at, before = self._ticks.get(sandbox.pid, (now, ticks))
        self._ticks[sandbox.pid] = now, ticks
        passed_s = now - before_at
        # The ticks of a process that ended are gone.
        cpu = max(0, ticks - before) / procfs.TICKS_PER_S / passed_s if passed_s > 0 else 0.0
        memory = _in_cgroup(sandbox.cgroup) or sum(stat.rss_bytes for stat in inside)
        limit = sandbox.limits.memory
        # Each process has the same limit for the data that it may write to.
        largest = max(_data_bytes(stat.pid) for stat in inside) if sandbox.kind == "process" else 0
        bounded = sandbox.kind != "none"
        return Usage(
            at=time.time(),
            memory_bytes=memory,
            memory_share=round(max(memory, largest) / limit, 3) if bounded else 0.0,
            cpu_percent=round(100 * cpu, 1),
            processes=max(0, len(inside) - OWN_PROCESSES.get(sandbox.kind, 0)),
            open_files=max((_open_files(stat.pid) for stat in inside[:_MOST_COUNTED]), default=0),
        )


def _tree(first: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    """A process and all below it."""
    found, at = [first], 0
    while at < len(found):
        found += children.get(found[at], ())
        at += 1
    return found


def _in_cgroup(cgroup: SandboxCgroup | None) -> int:
    """The memory that a cgroup counts; 0 if there is none."""
    for path in cgroup.paths if cgroup is not None else ():
        for file, cached in (("memory.current", b"inactive_file"), ("memory.usage_in_bytes", b"total_inactive_file")):
            if used := procfs.read_bytes(f"{path}/{file}"):
                return max(0, int(used) - _line(path / "memory.stat", cached))
    return 0


def _line(path: Path, name: bytes) -> int:
    words = (line.split() for line in procfs.read_bytes(str(path)).splitlines())
    return next((int(value) for key, value in words if key == name), 0)


def _data_bytes(pid: int) -> int:
    """The bytes that count against the data limit of a process."""
    lines = procfs.read_bytes(f"/proc/{pid}/status").splitlines()
    found = next((line for line in lines if line.startswith(b"VmData:")), b"")
    return int(found.split()[1]) << 10 if found else 0


def _open_files(pid: int) -> int:
    try:
        with os.scandir(f"/proc/{pid}/fd") as files:
            return sum(1 for _ in itertools.islice(files, 1_000_000))
    except OSError:
        return 0
