"""Who listens at a port of this host, as far as the kernel tells us.

Invariant: nothing is claimed that was not seen: a socket of another user, or of another network namespace, has no
holder that could be named.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_LISTENING = b"0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def holds(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes has a socket that listens at the port."""
    sockets = _listening_at(port)
    return bool(sockets) and any(not sockets.isdisjoint(_descriptors(pid)) for pid in pids)


def _listening_at(port: int) -> frozenset[str]:
    """What descriptors of such sockets lead to."""
    end = b":%04X" % port
    found = set()
    for table in _TABLES:
        try:
            lines = Path(table).read_bytes().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[1].endswith(end) and fields[3] == _LISTENING:
                found.add(f"socket:[{fields[9].decode()}]")
    return frozenset(found)


def _descriptors(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(f"{folder}/{name}"))
    except OSError:
        return set()  # it ended, or is somebody else's
    return found
