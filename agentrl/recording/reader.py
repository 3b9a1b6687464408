"""The reader of recordings: frames, marks and rows of a run on one time line, over files and lives of the coordinator.

Invariants: opening reads only the heads of blocks; a file that is being written or was cut off is readable up to its
last whole block, and a damaged file up to the damage; a time without a recording is never shown as a recorded one.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentrl.errors import ConfigError, ProtocolError
from agentrl.recording.disk_writer import SUFFIX
from agentrl.recording.file_format import HEAD_BYTES, MAGIC, Change, Head, Kind, Unpacker, read_head
from agentrl.recording.frame_writer import SIGN_S

_BEGIN_ONCE = ("incident/", "op/")
GAP_S = 2 * SIGN_S
"""A longer silence means that no coordinator recorded."""
_MARK_DELAY_S = 0.2
"""A moment after a mark also shows the rows that changed together with it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """About one minute, as bytes of a file."""

    at: float
    until: float
    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something began, and the key of its row."""

    at: float
    key: str


class Recording:
    def __init__(self, frames: Sequence[Frame], marks: Sequence[Mark], damaged: Sequence[str]) -> None:
        self.frames = sorted(frames, key=lambda frame: frame.at)
        self.marks = _without_repeats(marks)
        self.damaged = tuple(damaged)
        """A sentence for each file that could not be read to its end."""
        self.begin = self.frames[0].at
        self.end = max(frame.until for frame in self.frames)

    @classmethod
    def open(cls, where: Path) -> Recording:
        """Opens a file, or all files of a directory. Raises ConfigError if there is no recording."""
        frames: list[Frame] = []
        marks: list[Mark] = []
        damaged: list[str] = []
        for path in sorted(where.glob(f"*{SUFFIX}")) if where.is_dir() else [where]:
            try:
                _scan(path, frames, marks)
            except ProtocolError as error:
                damaged.append(f"{path.name}: {error.message}")
            except OSError as error:
                raise ConfigError(
                    f"{path} cannot be read: {error.strerror}.", hint="Name a recording or a run."
                ) from None
        if not frames:
            why = f" {damaged[0]}" if damaged else ""
            raise ConfigError(f"There is no recording in {where}.{why}", hint="A run that was up has one.")
        return cls(frames, marks, damaged)

    # ---- seeking ----

    def frame_at(self, at: float) -> int:
        """The index of the frame that contains a time, or of the nearest one."""
        return max(0, bisect.bisect_right(self.frames, at, key=lambda frame: frame.at) - 1)

    def gap_after(self, index: int) -> bool:
        """Whether nothing was recorded between this frame and the next one."""
        return index + 1 < len(self.frames) and self.frames[index + 1].at - self.frames[index].until > GAP_S

    def recorded_at(self, at: float, *, backwards: bool) -> tuple[float, int]:
        """The nearest time that was recorded, and its frame. In a gap it is the edge in the given direction."""
        at = min(max(at, self.begin), self.end)
        index = self.frame_at(at)
        if at > self.frames[index].until and self.gap_after(index):
            return (self.frames[index].until, index) if backwards else (self.frames[index + 1].at, index + 1)
        return at, index

    def next_mark(self, position: float, *, backwards: bool) -> tuple[float, Mark] | None:
        """The next mark in a direction, and the time at which all of it is visible."""
        visible = ((self._visible_at(mark), mark) for mark in self.marks)
        there = [(at, mark) for at, mark in visible if (at < position if backwards else at > position)]
        return (max if backwards else min)(there, key=lambda each: each[0], default=None)

    def _visible_at(self, mark: Mark) -> float:
        index = self.frame_at(mark.at)
        is_end = index + 1 == len(self.frames) or self.gap_after(index)
        at = mark.at + _MARK_DELAY_S
        return min(at, self.frames[index].until) if is_end else at

    # ---- rows ----

    def blocks(self, index: int) -> Iterator[list[Change]]:
        """The changes of a frame, block by block. The first block is a snapshot. Raises ProtocolError or OSError."""
        frame = self.frames[index]
        unpacker = Unpacker()
        with frame.path.open("rb") as file:
            file.seek(frame.begin)
            for found, body_at in _heads(file, frame.end):
                if found.kind is Kind.ROWS:
                    file.seek(body_at)
                    yield list(unpacker.unpack(file.read(found.length)))

    def read(self, index: int) -> tuple[list[Change], str]:
        """The readable changes of a frame in their order, and a sentence if the rest is damaged."""
        changes: list[Change] = []
        try:
            for block in self.blocks(index):
                changes += block
        except (ProtocolError, OSError) as broken:
            return changes, f"A part of the recording cannot be read: {broken}"
        return changes, ""


def _without_repeats(marks: Iterable[Mark]) -> list[Mark]:
    """In order of time. A new coordinator marks recent incidents and operations again; an alert may fire again."""
    seen: set[str] = set()
    kept: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: mark.at):
        if mark.key not in seen:
            kept.append(mark)
            seen |= {mark.key} if mark.key.startswith(_BEGIN_ONCE) else set()
    return kept


def _scan(path: Path, frames: list[Frame], marks: list[Mark]) -> None:
    """Adds the frames and marks of a file. Raises ProtocolError at damage, after it added what lies before."""
    begun: tuple[float, int] | None = None
    until, end = 0.0, len(MAGIC)

    def end_frame() -> None:
        if begun is not None:
            frames.append(Frame(begun[0], until, path, begun[1], end))

    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ProtocolError("It is not a recording.")
        try:
            for found, body_at in _heads(file, path.stat().st_size):
                if found.kind is Kind.FRAME:
                    end_frame()
                    begun = (found.at, end)
                elif found.kind is Kind.MARK:
                    marks.append(Mark(found.at, file.read(found.length).decode(errors="replace")))
                until, end = found.at, body_at + found.length
        finally:
            end_frame()


def _heads(file: BinaryIO, end: int) -> Iterator[tuple[Head, int]]:
    """Heads and the positions of their bodies, up to the last block that is whole before `end`."""
    at = file.tell()
    while at < end and (found := read_head(file.read(HEAD_BYTES))) is not None:
        body_at = at + HEAD_BYTES
        at = body_at + found.length
        if at > end:
            return
        yield found, body_at
        file.seek(at)
