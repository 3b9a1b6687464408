"""The writer of recordings: turns the rows of a feed into frames and blocks.

Invariants: a process that dies loses at most the last second; callers never wait for the disk: rows that the disk
cannot take are left out and reported, and the next frame contains them again. Frames are encoded where
the disk is written, because compressing a thousand rows takes tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from agentrl.recording.disk_writer import Limits, RecordingFiles
from agentrl.recording.file_format import Change, Kind, Packer, encode_block

FRAME_S = 60.0
FLUSH_S = 1.0
SIGN_S = 10.0
"""While nothing changes, an empty block is written this often, so that a silent file means a dead writer."""
FILE_S = 3600.0
FILES = 8
"""A file holds at most an hour and this part of the size limit, so that old data is removed in small pieces."""
MAX_MARKS = 1000

Rows = Iterable[tuple[str, msgspec.Raw]]
Run = Callable[[Callable[[], None]], bool]
"""Does work on the disk in order, now or soon; returns False if too much work waits."""


def at_once(work: Callable[[], None]) -> bool:
    work()
    return True


class Writer:
    def __init__(
        self,
        directory: Path,
        epoch: str,
        snapshot: Callable[[], Rows],
        limits: Limits | None = None,
        run: Run = at_once,
    ) -> None:
        self.limits = limits or Limits()
        self._files = RecordingFiles(directory)
        self._epoch = epoch
        self._snapshot = snapshot
        self._run = run
        self._late = ""
        self._packer: Packer | None = None
        """None while no frame is being written."""
        self._pending: list[Change] = []
        self._marks: list[tuple[float, str]] = []
        self._bytes = 0
        """Size of the current file."""
        self._file_until = self._frame_until = self._flush_at = self._sign_at = float("-inf")

    @property
    def trouble(self) -> str:
        """Why nothing is recorded now, in a sentence."""
        return self._late or self._files.trouble

    def row(self, at: float, key: str, value: msgspec.Raw | None) -> None:
        """A row changed, or was removed."""
        if self._packer is not None:  # otherwise the snapshot of the next frame contains it
            self._pending.append(Change(at, key) if value is None else Change(at, key, value))

    def mark(self, at: float, key: str) -> None:
        """Marks that something began, so that playback can jump to it."""
        if len(self._marks) < MAX_MARKS:
            self._marks.append((at, key))

    def tick(self, now: float) -> None:
        """Writes what is due. Call it several times a second, with the time of the rows."""
        if now < self._flush_at:
            return
        self._flush_at = now + FLUSH_S
        if self.limits.most_bytes <= 0:
            self._end()
            self._run(self._files.clear)
        elif now >= self._frame_until:
            self._begin_frame(now)
        elif self._files.trouble:
            self._end()
        elif self._packer is not None and (self._pending or self._marks or now >= self._sign_at):
            self._append(self._blocks(now, self._packer))
            self._sign_at = now + SIGN_S

    def close(self) -> None:
        """Writes what is pending. Call it at the end."""
        if self._packer is not None:
            self._append(self._blocks(self._flush_at, self._packer))
        self._end()
        self._run(self._files.close)

    def _end(self) -> None:
        """Ends the frame; marks are kept for the next one."""
        self._packer = None
        self._pending.clear()

    def _begin_frame(self, now: float) -> None:
        if self._packer is not None and not self._files.trouble:
            self._append(self._blocks(now, self._packer))
        self._frame_until, self._sign_at = now + FRAME_S, now + SIGN_S
        limits = self.limits
        new_file = now >= self._file_until or self._bytes >= limits.most_bytes / FILES
        if new_file:
            self._file_until = now + FILE_S
        self._packer = Packer()
        self._pending = [Change(now, key, value) for key, value in self._snapshot()]
        blocks = self._blocks(now, self._packer)

        def write() -> None:
            frame = encode_block(Kind.FRAME, now, self._epoch.encode()) + blocks()
            self._bytes = len(frame) if new_file else self._bytes + len(frame)
            self._files.begin(frame, now, limits, new_file=new_file)

        self._late = ""
        if not self._run(write):
            self._fell_behind()

    def _append(self, blocks: Callable[[], bytes]) -> None:
        def write() -> None:
            data = blocks()
            self._bytes += len(data)
            self._files.append(data)

        if not self._run(write):
            self._fell_behind()

    def _fell_behind(self) -> None:
        self._late = "Nothing is recorded: the disk is too slow."
        self._end()

    def _blocks(self, now: float, packer: Packer) -> Callable[[], bytes]:
        """Encodes what is pending when it is called: where the disk is written."""
        pending, self._pending = self._pending, []
        marks, self._marks = self._marks, []

        def encode() -> bytes:
            marked = b"".join(encode_block(Kind.MARK, at, key.encode()) for at, key in marks)
            return marked + encode_block(Kind.ROWS, now, packer.pack(pending))

        return encode
