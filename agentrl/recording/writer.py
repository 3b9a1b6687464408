"""The writer: keeps what a feed tells on disk, within its limits.

Invariants: what happened more than a second ago is in the file, whenever the process dies; the oldest files go first,
and the one that is being written never goes; a disk that cannot take more ends the frame, not the coordinator: it is
said once, and every minute a new frame is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from agentrl.recording.blocks import MAGIC, Change, Kind, Packer, block

SUFFIX = ".rec"
FRAME_S = 60.0
FLUSH_S = 1.0
SIGN_S = 10.0
"""Where nothing changes a block without rows says so: silence of a file is that of its writer."""
FILE_S = 3600.0
"""A file holds an hour, so that what is too old can go in pieces."""
MARKED = frozenset({"incident", "alert", "op"})
log = logging.getLogger(__name__)

Rows = Iterable[tuple[str, msgspec.Raw]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept of a run; a size of 0 keeps nothing."""

    most_bytes: int = 2 * 1024**3
    keep_s: float = 7 * 86_400.0


class Writer:
    def __init__(self, directory: Path, epoch: str, snapshot: Callable[[], Rows], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.trouble = ""
        """Why nothing is recorded now, in a sentence."""
        self._directory = directory
        self._epoch = epoch
        self._snapshot = snapshot
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._packer = Packer()
        self._pending: list[Change] = []
        self._marks: list[tuple[float, str]] = []
        self._known: set[str] = set()
        """Keys that were marked in this frame or stood in its snapshot."""
        self._file_until = self._frame_until = self._flush_at = self._sign_at = float("-inf")

    def row(self, at: float, key: str, value: msgspec.Raw | None) -> None:
        """A row changed, or is gone."""
        if self._file is None:
            return  # the snapshot of the next frame has it
        self._pending.append(Change(at, key) if value is None else Change(at, key, value))
        if value is not None and key not in self._known and key.partition("/")[0] in MARKED:
            self._known.add(key)
            self._marks.append((at, key))

    def tick(self, now: float) -> None:
        """Write what is due; call it several times a second. `now` is the time of the rows."""
        if now < self._flush_at:
            return
        self._flush_at = now + FLUSH_S
        try:
            if self.limits.most_bytes <= 0:
                self.close()
            elif now >= self._frame_until:
                self._begin_frame(now)
            else:
                self._flush(now)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """What is pending is written; call it at the end."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with file:
                file.write(self._bodies(self._flush_at))
        except OSError as error:
            log.warning("the last second of the recording is lost: %s", error)

    def _flush(self, now: float) -> None:
        if self._file is not None and (self._pending or now >= self._sign_at):
            self._file.write(self._bodies(now))
            self._file.flush()
            self._sign_at = now + SIGN_S

    def _bodies(self, now: float) -> bytes:
        pending, self._pending = self._pending, []
        marks, self._marks = self._marks, []
        told = b"".join(block(Kind.MARK, at, key.encode()) for at, key in marks)
        return told + block(Kind.ROWS, now, self._packer.pack(pending))

    def _begin_frame(self, now: float) -> None:
        self._flush(now)
        self._frame_until = now + FRAME_S
        if self._file is None or now >= self._file_until:
            self._begin_file(now)
        assert self._file is not None
        rows = [Change(now, key, value) for key, value in self._snapshot()]
        self._pending.clear()
        self._known = {row.key for row in rows}
        self._packer = Packer()
        self._file.write(block(Kind.FRAME, now, self._epoch.encode()))
        self._file.write(block(Kind.ROWS, now, self._packer.pack(rows)))
        self._file.flush()
        self._sign_at = now + SIGN_S
        self.trouble = ""

    def _begin_file(self, now: float) -> None:
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._directory / f"{int(now * 1000):015d}{SUFFIX}"
        self._prune(now)
        self._file = self._path.open("ab")
        self._path.chmod(0o600)
        if not self._file.tell():
            self._file.write(MAGIC)
        self._file_until = now + FILE_S

    def _prune(self, now: float) -> None:
        """Files that are too old, and the oldest beyond the size."""
        files = sorted(path for path in self._directory.glob(f"*{SUFFIX}") if path != self._path)
        sizes = {path: path.stat() for path in files}
        total = sum(found.st_size for found in sizes.values())
        for path in files:
            if total <= self.limits.most_bytes and now - sizes[path].st_mtime <= self.limits.keep_s:
                break
            path.unlink(missing_ok=True)
            total -= sizes[path].st_size

    def _give_up(self, error: OSError) -> None:
        if not self.trouble:
            log.error("nothing is recorded: %s", error)
        self.trouble = f"Nothing is recorded: {error.strerror or error}."
        file, self._file = self._file, None
        self._pending.clear()
        self._marks.clear()
        if file is not None:
            try:
                file.close()
            except OSError:
                log.debug("the recording could not be closed", exc_info=True)
