"""The writer: what a feed tells, as frames and blocks, at their times.

Invariants: what happened more than a second ago is handed to the disk, whenever the process dies; whoever tells the
feed never waits for the disk: what it does not take is left out, said, and made good by the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from agentrl.recording.file_format import Change, Kind, Packer, block
from agentrl.recording.recording_files import Limits, Shelf

FRAME_S = 60.0
FLUSH_S = 1.0
SIGN_S = 10.0
"""Where nothing changes a block without rows says so: silence of a file is that of its writer."""
FILE_S = 3600.0
FILES = 8
"""A file holds an hour, and at most this part of all that is kept, so that what is too old can go in pieces."""
MOST_MARKS = 1000

Rows = Iterable[tuple[str, msgspec.Raw]]
Run = Callable[[Callable[[], None]], bool]
"""Carries out work on the disk, now or soon, one after another; False if too much is waiting already."""


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
        self._shelf = Shelf(directory)
        self._epoch = epoch
        self._snapshot = snapshot
        self._run = run
        self._late = ""
        self._packer: Packer | None = None
        """Of the frame that is written; None while there is none."""
        self._pending: list[Change] = []
        self._marks: list[tuple[float, str]] = []
        self._bytes = 0
        """Of the present file."""
        self._file_until = self._frame_until = self._flush_at = self._sign_at = float("-inf")

    @property
    def trouble(self) -> str:
        """Why nothing is recorded now, in a sentence."""
        return self._late or self._shelf.trouble

    def row(self, at: float, key: str, value: msgspec.Raw | None) -> None:
        """A row changed, or is gone."""
        if self._packer is not None:  # else the snapshot of the next frame has it
            self._pending.append(Change(at, key) if value is None else Change(at, key, value))

    def mark(self, at: float, key: str) -> None:
        """Something began that one may want to jump to."""
        if len(self._marks) < MOST_MARKS:
            self._marks.append((at, key))

    def tick(self, now: float) -> None:
        """Write what is due; call it several times a second. `now` is the time of the rows."""
        if now < self._flush_at:
            return
        self._flush_at = now + FLUSH_S
        if self.limits.most_bytes <= 0:
            self._end()
            self._run(self._shelf.clear)
        elif now >= self._frame_until:
            self._begin_frame(now)
        elif self._shelf.trouble:
            self._end()
        elif self._packer is not None and (self._pending or self._marks or now >= self._sign_at):
            self._hand_over(self._blocks(now, self._packer))
            self._sign_at = now + SIGN_S

    def close(self) -> None:
        """What is pending is written; call it at the end."""
        if self._packer is not None:
            self._hand_over(self._blocks(self._flush_at, self._packer))
        self._end()
        self._run(self._shelf.close)

    def _end(self) -> None:
        """Nothing more of this frame; marks are kept for the next one."""
        self._packer = None
        self._pending.clear()

    def _begin_frame(self, now: float) -> None:
        if self._packer is not None and not self._shelf.trouble:
            self._hand_over(self._blocks(now, self._packer))
        self._frame_until, self._sign_at = now + FRAME_S, now + SIGN_S
        new_file = now >= self._file_until or self._bytes >= self.limits.most_bytes / FILES
        if new_file:
            self._file_until, self._bytes = now + FILE_S, 0
        self._packer = Packer()
        self._pending = [Change(now, key, value) for key, value in self._snapshot()]
        frame = block(Kind.FRAME, now, self._epoch.encode()) + self._blocks(now, self._packer)
        self._bytes += len(frame)
        limits = self.limits
        self._late = ""
        if not self._run(lambda: self._shelf.begin(frame, now, limits, new_file=new_file)):
            self._fell_behind()

    def _hand_over(self, blocks: bytes) -> None:
        self._bytes += len(blocks)
        if not self._run(lambda: self._shelf.append(blocks)):
            self._fell_behind()

    def _fell_behind(self) -> None:
        self._late = "Nothing is recorded: the disk is too slow."
        self._end()

    def _blocks(self, now: float, packer: Packer) -> bytes:
        pending, self._pending = self._pending, []
        marks, self._marks = self._marks, []
        told = b"".join(block(Kind.MARK, at, key.encode()) for at, key in marks)
        return told + block(Kind.ROWS, now, packer.pack(pending))
