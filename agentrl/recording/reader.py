"""The reader: a run's recording as one line of time, over files and lives of the coordinator.

Invariants: opening reads the heads of blocks only; a file that is being written, or that was cut off, is readable up to
its last whole block; a damaged file is readable up to the damage, and which that is can be asked.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentrl.errors import ConfigError, ProtocolError
from agentrl.recording.file_format import HEAD_BYTES, MAGIC, Change, Head, Kind, Unpacker, head
from agentrl.recording.recording_files import SUFFIX

_BEGIN_ONCE = ("incident/", "op/")


@dataclass(frozen=True, slots=True)
class Frame:
    """A minute: where it begins, and until when it tells."""

    at: float
    until: float
    path: Path
    begin: int
    end: int
    """Its bytes in that file."""


@dataclass(frozen=True, slots=True)
class Mark:
    at: float
    key: str


class Recording:
    def __init__(self, frames: Sequence[Frame], marks: Sequence[Mark], damaged: Sequence[str]) -> None:
        self.frames = sorted(frames, key=lambda frame: frame.at)
        self.marks = _first_of_each(marks)
        self.damaged = tuple(damaged)
        """What could not be read, a sentence each."""

    @classmethod
    def open(cls, where: Path) -> Recording:
        """A file, or all of a directory. ConfigError if there is nothing to see."""
        files = sorted(where.glob(f"*{SUFFIX}")) if where.is_dir() else [where]
        frames: list[Frame] = []
        marks: list[Mark] = []
        damaged: list[str] = []
        for path in files:
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

    @property
    def begin(self) -> float:
        return self.frames[0].at

    @property
    def end(self) -> float:
        return max(frame.until for frame in self.frames)

    def frame_at(self, at: float) -> int:
        """The index of the frame that tells of a time; of the nearest, where nothing was recorded."""
        return max(0, bisect.bisect_right(self.frames, at, key=lambda frame: frame.at) - 1)

    def changes(self, index: int) -> Iterator[list[Change]]:
        """What a frame tells, block by block; the first is everything as it was when the frame began."""
        frame = self.frames[index]
        unpacker = Unpacker()
        with frame.path.open("rb") as file:
            file.seek(frame.begin)
            for found, body_at in _blocks(file, frame.end):
                if found.kind is Kind.ROWS:
                    file.seek(body_at)
                    yield list(unpacker.unpack(file.read(found.length)))


def _first_of_each(marks: Iterable[Mark]) -> list[Mark]:
    """In order. Another coordinator marks once more what happened lately; an alert may really fire again."""
    told: set[str] = set()
    kept: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: mark.at):
        if mark.key not in told:
            kept.append(mark)
            told |= {mark.key} if mark.key.startswith(_BEGIN_ONCE) else set()
    return kept


def _scan(path: Path, frames: list[Frame], marks: list[Mark]) -> None:
    """Add what a file has. ProtocolError at damage; what lies before it was added."""
    begun: tuple[float, int] | None = None
    until, end = 0.0, len(MAGIC)

    def ended() -> None:
        if begun is not None:
            frames.append(Frame(begun[0], until, path, begun[1], end))

    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ProtocolError("It is not a recording.")
        try:
            for found, body_at in _blocks(file, path.stat().st_size):
                if found.kind is Kind.FRAME:
                    ended()
                    begun = (found.at, end)
                elif found.kind is Kind.MARK:
                    marks.append(Mark(found.at, file.read(found.length).decode(errors="replace")))
                until, end = found.at, body_at + found.length
        finally:
            ended()


def _blocks(file: BinaryIO, end: int) -> Iterator[tuple[Head, int]]:
    """Heads and where their bodies begin, from here to the last block that is whole before `end`."""
    at = file.tell()
    while at < end and (found := head(file.read(HEAD_BYTES))) is not None:
        body_at = at + HEAD_BYTES
        at = body_at + found.length
        if at > end:
            return
        yield found, body_at
        file.seek(at)
