"""Logs of incarnations: `run_dir/logs/UNIT/N.log`.

* Processes append to the file, so it survives the death of the agent and the cuts.
* A log does not grow much beyond its limit, and other users cannot read it.
* Lines for people contain no control codes.
* A cut loses at most the lines that were written during the cut.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from agentrl.config.logfiles import LogFiles, cut_line, cut_part, cuts
from agentrl.formatting.log_lines import as_text

log = logging.getLogger(__name__)

TAIL_LINES = 20
TAIL_LINE_CHARS = 500
_TAIL_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
# Complete escape sequences first, then other control codes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Logs(LogFiles):
    """All logs of one host in one run directory."""

    def __init__(self, run_dir: Path, keep: int = 5) -> None:
        super().__init__(run_dir)
        self._keep = keep

    def open(self, unit: str, incarnation: int) -> int:
        """Open the log for stdout and stderr of a new process. Raises OSError if the disk is full."""
        path = self.path(unit, incarnation)
        for folder in (self._folder, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def size(self, unit: str, incarnation: int) -> int:
        return _size(self.path(unit, incarnation))

    def prune(self, unit: str) -> None:
        """Keep the newest logs only."""
        for old in self.incarnations(unit)[: -self._keep]:
            path = self.path(unit, old)
            path.unlink(missing_ok=True)
            cut_part(path).unlink(missing_ok=True)

    def cut_if_large(self, unit: str, incarnation: int, max_bytes: int) -> bool:
        """Like `cut_if_large`, for the log of an incarnation."""
        return cut_if_large(self.path(unit, incarnation), max_bytes)

    def tail(self, unit: str, incarnation: int) -> tuple[str, ...]:
        """The last lines, safe for a message and a terminal."""
        return tail_of(self.path(unit, incarnation))


def tail_of(path: Path) -> tuple[str, ...]:
    """The last lines of a log, safe for a message and a terminal."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            body = file.read(_TAIL_BYTES)
    except OSError:
        return ()
    lines = body.decode(errors="replace").splitlines()
    if size > _TAIL_BYTES:
        lines = lines[1:] or lines  # the first line is incomplete
    shown = [part for line in lines[-TAIL_LINES:] for part in as_text(line).split("\n")]
    return tuple(clean(line) for line in shown[-TAIL_LINES:])


def cut_if_large(path: Path, max_bytes: int) -> bool:
    """Copy the last half to another file and truncate the log, while its writer continues. Blocks: use a thread."""
    if max_bytes <= 0 or _size(path) <= max_bytes:
        return False
    number = cuts(path) + 1
    try:
        _copy_end(path, cut_part(path), max_bytes // 2, number)
    except OSError as failed:
        # On a full disk the log is cut without a copy.
        log.warning("The older part of %s is lost: %s.", path, failed)
        _note_cut(cut_part(path), number)
    os.truncate(path, 0)
    return True


def clean(line: str) -> str:
    """Remove control codes from a line and limit its length."""
    shown = _CONTROLS.sub("", _ESCAPES.sub("", line)).rstrip()
    return shown if len(shown) <= TAIL_LINE_CHARS else shown[: TAIL_LINE_CHARS - 1] + "…"


def private(path: str | Path, flags: int) -> int:
    """For `open(..., opener=private)`: only the owner may read logs, because they contain prompts."""
    return os.open(path, flags, 0o600)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _note_cut(path: Path, number: int) -> None:
    try:
        with open(path, "wb", opener=private) as file:
            file.write(cut_line(number))
    except OSError as failed:
        log.warning("%s cannot be written: %s.", path, failed)


def _copy_end(source: Path, target: Path, most_bytes: int, number: int) -> None:
    """The last part of a file, from the start of a line on."""
    fresh = target.with_name(f"{target.name}.new")
    try:
        with open(source, "rb") as old, open(fresh, "wb", opener=private) as new:
            old.seek(max(0, os.fstat(old.fileno()).st_size - most_bytes))
            old.readline(1 << 16)
            new.write(cut_line(number))
            while part := old.read(_CHUNK_BYTES):
                new.write(part)
        os.replace(fresh, target)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
