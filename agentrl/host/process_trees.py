"""The process tree of one incarnation: which processes belong to it, and how they are ended.

* A tree counts as empty only after a pass that found no process.
* A process is killed only through a pidfd with the right start time.
* A process belongs to an incarnation by evidence (cgroup, mark, session, descent, its log). A process that could belong
  to another incarnation is left alone.
* Concurrent sweeps share one pass over /proc.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.host import procfs
from agentrl.host.cgroups import Group
from agentrl.protocol.messages import ProcessInfo

# Pauses between checks of a killed tree; a process in an uninterruptible call may take long to end.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 1.0


@dataclass
class ProcessTree:
    """The places in which the processes of one incarnation may be found."""

    name: str
    """The incarnation, `web-0.7`."""
    leader: procfs.Identity | None
    group: Group = field(default_factory=Group)
    log: Path | None = None
    remembered: dict[int, int] = field(default_factory=dict)
    """Pid to start time of the processes that were seen in the tree."""


class Snapshot:
    """One pass over /proc."""

    def __init__(self) -> None:
        self.stats = procfs.all_stats()
        self.children: dict[int, list[int]] = {}
        for stat in self.stats.values():
            self.children.setdefault(stat.ppid, []).append(stat.pid)
        self._marks: dict[int, dict[bytes, bytes] | None] = {}

    def marks(self, pid: int) -> dict[bytes, bytes] | None:
        if pid not in self._marks:
            self._marks[pid] = procfs.marks(pid)
        return self._marks[pid]

    def with_marks(self) -> Snapshot:
        """Read all environments now, in the thread of the snapshot."""
        for pid in self.stats:
            self.marks(pid)
        return self

    def descendants(self, roots: dict[int, str]) -> dict[int, str]:
        """The roots and their descendants."""
        found = dict(roots)
        waiting = list(roots)
        while waiting:
            for child in self.children.get(waiting.pop(), ()):
                if child not in found:
                    found[child] = "descent"
                    waiting.append(child)
        return found


class Attribution:
    """Which processes of a snapshot belong to which incarnation of this agent."""

    def __init__(self, run: str, own_pids: Callable[[], frozenset[int]], rivals: Callable[[str, int], bool]) -> None:
        self._run = run
        self._own_pids = own_pids
        self._rivals = rivals
        """`rivals(name, start_ticks)`: whether another incarnation could have started a process at that time."""
        self._agent = os.getpid()

    def members(self, tree: ProcessTree, snapshot: Snapshot) -> dict[int, str]:
        """Living processes of the tree, by pid, with the evidence."""
        roots = {pid: "cgroup" for pid in tree.group.members() or () if pid in snapshot.stats}
        for pid, stat in snapshot.stats.items():
            if pid not in roots and (why := self._evidence(tree, snapshot, stat)):
                roots[pid] = why
        found = snapshot.descendants(roots)
        protected = self._own_pids() - {tree.leader.pid if tree.leader else 0}
        return {
            pid: why
            for pid, why in found.items()
            if pid != self._agent and pid not in protected and snapshot.stats[pid].state not in "ZX"
        }

    def _evidence(self, tree: ProcessTree, snapshot: Snapshot, stat: procfs.Stat) -> str:
        leader = tree.leader
        if leader is not None and stat.pid == leader.pid:
            return "leader" if stat.start_ticks == leader.start_ticks else ""
        marks = snapshot.marks(stat.pid) or {}
        if procfs.is_of_run(marks, self._run) and marks.get(procfs.MARK_INCARNATION) == tree.name.encode():
            return "mark"
        if tree.remembered.get(stat.pid) == stat.start_ticks:
            return "descent"
        if leader is not None and self._in_session_of(leader, snapshot, stat):
            return "session"
        if stat.ppid == self._agent and not marks and stat.pid not in self._own_pids():
            return self._orphan_evidence(tree, stat)
        return ""

    @staticmethod
    def _in_session_of(leader: procfs.Identity, snapshot: Snapshot, stat: procfs.Stat) -> bool:
        if leader.pid not in (stat.session, stat.pgrp) or stat.start_ticks < leader.start_ticks:
            return False
        namesake = snapshot.stats.get(leader.pid)
        return namesake is None or namesake.start_ticks == leader.start_ticks

    def _orphan_evidence(self, tree: ProcessTree, stat: procfs.Stat) -> str:
        """The evidence for an unmarked child that the agent did not spawn: its parents died."""
        if tree.log is not None and any(_link(stat.pid, fd) == str(tree.log) for fd in (1, 2)):
            return "writes to its log"
        born_under = tree.leader is not None and tree.leader.start_ticks <= stat.start_ticks
        if born_under and not self._rivals(tree.name, stat.start_ticks):
            return "orphan of the host agent, and nothing else lived here then"
        return ""


class Sweeper:
    """Kills trees until they are empty."""

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._next_snapshot: asyncio.Task[Snapshot] | None = None

    async def empty(self, tree: ProcessTree) -> tuple[ProcessInfo, ...]:
        """Kill the processes of the tree until none is left; returns the killed processes other than the leader."""
        swept: dict[tuple[int, int], ProcessInfo] = {}
        pause_s = _FIRST_PAUSE_S
        empty_looks = 0
        while True:
            empty_looks = 0 if await self._one_pass(tree, swept) else empty_looks + 1
            # A pass over /proc can miss a process that forks or executes at that moment. So a tree without a cgroup
            # that had other processes than the leader counts as empty only after two passes.
            certain = tree.group.populated() is False or not (swept or len(tree.remembered) > 1)
            if empty_looks >= (1 if certain else 2):
                return tuple(swept.values())
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _one_pass(self, tree: ProcessTree, swept: dict[tuple[int, int], ProcessInfo]) -> bool:
        """True if there was a process."""
        populated = tree.group.populated()
        if populated is False:
            return False
        if populated:
            for pid in tree.group.members() or ():
                _note(swept, tree, pid, "cgroup")
            return tree.group.kill() or self._kill_members(tree, await self._snapshot(), swept)
        return self._kill_members(tree, await self._snapshot(), swept)

    def _kill_members(self, tree: ProcessTree, snapshot: Snapshot, swept: dict[tuple[int, int], ProcessInfo]) -> bool:
        members = self._attribution.members(tree, snapshot)
        for pid, why in members.items():
            _note(swept, tree, pid, why)
        for pid in members:
            procfs.kill_exactly(pid, snapshot.stats[pid].start_ticks)
        return bool(members)

    async def _snapshot(self) -> Snapshot:
        """A snapshot that starts after this call; calls before its start share it."""
        if self._next_snapshot is None:
            self._next_snapshot = asyncio.create_task(self._take(), name="snapshot of /proc")
        return await asyncio.shield(self._next_snapshot)

    async def _take(self) -> Snapshot:
        await asyncio.sleep(0)  # lets sweeps of everything that ended in this turn of the loop share the snapshot
        self._next_snapshot = None
        return await asyncio.to_thread(lambda: Snapshot().with_marks())


def kill_all_and_wait(processes: list[ProcessInfo], within_s: float) -> list[ProcessInfo]:
    """For callers without a loop: kill these processes; returns those that still live after that time."""
    for info in processes:
        procfs.kill_exactly(info.pid, info.start_ticks)
    deadline = time.monotonic() + within_s
    left = processes
    while left and time.monotonic() < deadline:
        left = [info for info in left if procfs.Identity(info.pid, info.start_ticks, procfs.boot_id()).alive()]
        if left:
            time.sleep(0.005)
    return left


def describe(pid: int, *, incarnation: str, why: str) -> ProcessInfo | None:
    stat = procfs.read_stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    return ProcessInfo(
        pid=pid, command=procfs.command(pid), start_ticks=stat.start_ticks, incarnation=incarnation, why=why
    )


def _note(swept: dict[tuple[int, int], ProcessInfo], tree: ProcessTree, pid: int, why: str) -> None:
    if tree.leader is not None and pid == tree.leader.pid:
        return
    info = describe(pid, incarnation=tree.name, why=why)
    if info is not None:
        swept.setdefault((pid, info.start_ticks), info)


def _link(pid: int, fd: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
