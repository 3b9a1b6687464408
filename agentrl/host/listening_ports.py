"""Finds out whether a process of a run listens on a port of this host."""

from __future__ import annotations

import os
import threading
import time

from agentrl.host import procfs

REMEMBERED_S = 5.0
_LISTEN = "0A"
"""The state in /proc/net/tcp."""


class ListeningPorts:
    """The listening ports of one run. Ports of tool servers do not count, because only their toolbox uses them."""

    def __init__(self, run: str) -> None:
        self._run = run.encode()
        self._looking = threading.Lock()
        self._until: dict[int, float] = {}
        self._held_by: dict[int, int] = {}
        """The process that had the port at the last look; checking it first avoids a search through all processes."""

    def has(self, port: int) -> bool:
        """Whether a process of the run listens on the port. Blocks for some milliseconds unless it was found a moment
        ago. Called by many threads."""
        if self._is_remembered(port):
            return True
        with self._looking:
            return self._is_remembered(port) or self._look(port)

    def _is_remembered(self, port: int) -> bool:
        return self._until.get(port, 0.0) > time.monotonic()

    def _look(self, port: int) -> bool:
        inodes, last = _listening(port), self._held_by.pop(port, None)
        pids = procfs.all_pids() if inodes else []
        for pid in pids if last is None else [last, *pids]:
            if self._is_of_run(pid) and _holds(pid, inodes):
                self._until[port], self._held_by[port] = time.monotonic() + REMEMBERED_S, pid
                return True
        return False

    def _is_of_run(self, pid: int) -> bool:
        return (procfs.marks(pid) or {}).get(procfs.MARK_RUN) == self._run


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen on the port."""
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in procfs.read_bytes(table).decode().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                found.add(words[9])
    return found


def _holds(pid: int, inodes: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if os.readlink(f"{folder}/{descriptor}") in wanted:
                return True
        except OSError:
            continue
    return False
