"""Says whether a process of a run listens on a port of this host."""

from __future__ import annotations

import os
import time

from agentrl.host import procfs

REMEMBERED_S = 5.0
_LISTEN = "0A"
"""The state in /proc/net/tcp."""


class ListeningPorts:
    """Of one run. Tool servers do not count: nothing but their toolbox talks to them."""

    def __init__(self, run: str) -> None:
        self._run = run.encode()
        self._until: dict[int, float] = {}

    def has(self, port: int) -> bool:
        """Blocks for some milliseconds unless the port was found a moment ago."""
        now = time.monotonic()
        if self._until.get(port, 0.0) > now:
            return True
        self._until.pop(port, None)
        inodes = _listening(port)
        if not inodes or not any(_holds(pid, inodes) for pid in procfs.all_pids() if self._is_of_run(pid)):
            return False
        self._until[port] = now + REMEMBERED_S
        return True

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
