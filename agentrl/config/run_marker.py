"""The marker in the directory of a run, `coordinator.json`: the host that coordinates the run.

A lock holds on one host only, and hosts may share the directory. So the coordinator rewrites the marker every few
seconds, and a coordinator that finds the marker of another host does not start, or ends.

Invariants:
- A marker that is being rewritten belongs to a living coordinator, whatever the clocks of both hosts show.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

MARKER = "coordinator.json"
WRITTEN_EVERY_S = 2.0
FRESH_S = 30.0
"""A marker younger than this, or with a time in the future because clocks differ, belongs to a living coordinator."""
WATCHED_S = 2.5 * WRITTEN_EVERY_S
"""How long an older marker is watched: the clock of its host may be behind."""


class Marker(msgspec.Struct, frozen=True):
    """The content of the file."""

    host: str
    boot_id: str
    name: str
    uuid: str
    heartbeat_at: float

    def is_fresh(self, now: float) -> bool:
        return now - self.heartbeat_at <= FRESH_S


def read_marker(run_dir: Path) -> Marker | None:
    """The marker in a run directory; None if it is missing or unreadable."""
    try:
        return msgspec.json.decode((run_dir / MARKER).read_bytes(), type=Marker)
    except (OSError, msgspec.DecodeError):
        return None


def is_written_anew(run_dir: Path, known: Marker) -> bool:
    """Whether a coordinator is rewriting this marker. Takes some seconds if none is."""
    deadline = time.monotonic() + WATCHED_S
    while time.monotonic() < deadline:
        if read_marker(run_dir) not in (known, None):
            return True
        time.sleep(WRITTEN_EVERY_S / 10)
    return False
