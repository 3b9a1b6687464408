"""Finds the log files of a run, `run_dir/logs/UNIT/N.log`, and reads ranges of them.

Invariants:
- A host agent (for clients) and a client (after the end of the run) read the same lines.
- The module imports nothing heavy, because host agents use it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentrl.protocol.messages import LogChunk

MAX_READ_BYTES = 1 << 20
_CUT_LINE = re.compile(rb"\[agentrl: cut (\d+)")


class LogFiles:
    """All logs in one run directory."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "logs"

    def path(self, unit: str, incarnation: int) -> Path:
        return self._folder / unit / f"{incarnation}.log"

    def incarnations(self, unit: str) -> list[int]:
        """The incarnations with a log, oldest first."""
        try:
            names = os.listdir(self._folder / unit)
        except OSError:
            return []
        return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())

    def read(self, unit: str, incarnation: int, offset: int, limit: int) -> LogChunk:
        """A range of a log. Incarnation 0 is the newest one with a log, -1 the one before. Raises FileNotFoundError."""
        if incarnation <= 0:
            known = self.incarnations(unit)
            if len(known) < 1 - incarnation:
                raise FileNotFoundError(f"{unit} has no such log on this host")
            incarnation = known[incarnation - 1]
        path = self.path(unit, incarnation)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(max(0, min(limit, MAX_READ_BYTES)))
        return LogChunk(
            unit=unit,
            incarnation=incarnation,
            offset=start,
            data=data,
            size=size,
            rotation=cuts(path),
        )


def cut_part(path: Path) -> Path:
    """The file with the older part of a log that was cut."""
    return path.with_name(f"{path.name}.1")


def cut_line(number: int) -> bytes:
    """The first line of the older part."""
    return b"[agentrl: cut %d; older lines are gone]\n" % number


def cuts(path: Path) -> int:
    """How often the log was cut."""
    try:
        with open(cut_part(path), "rb") as file:
            found = _CUT_LINE.match(file.read(64))
    except OSError:
        return 0
    return int(found[1]) if found else 0
