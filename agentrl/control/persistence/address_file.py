"""Writes `coordinator.json` in the state directory: the addresses of the coordinator for clients, host agents and
`doctor`.

Invariants:
- If its coordinator is dead, pid, start time and boot id show that.
- Only its owner can read it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from agentrl.control.persistence.atomic_file import replace_file
from agentrl.host import procfs

FILE = "coordinator.json"


class CoordinatorAddress(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int
    boot_id: str
    host: str
    run: str
    name: str
    address: str
    feed: str
    metrics: str
    listen: str = ""
    public: str = ""
    """The server's public key, if it listens on tcp."""
    started_at: float = 0.0
    version: str = ""

    def write(self, state_dir: Path) -> bool:
        """Write the file unless it already has this content. Returns whether it was written."""
        path, content = state_dir / FILE, msgspec.json.format(msgspec.json.encode(self))
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return False
        replace_file(path, content, mode=0o600, durable=False)
        return True


def remove(state_dir: Path) -> None:
    (state_dir / FILE).unlink(missing_ok=True)


def own_identity() -> procfs.Identity:
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    return procfs.Identity(stat.pid, stat.start_ticks, procfs.boot_id())
