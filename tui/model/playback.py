"""A recording as the console plays it: where it stands, how fast it goes, and the mirror as it was then.

Invariants: wherever one goes, forwards or back, the mirror is as the feed had told it at that moment; a time in which
nothing was recorded is passed over and never shown as if it had been seen; it stands at its end, and where a step led.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from agentrl.errors import ProtocolError
from agentrl.protocol.wire import decode_row
from agentrl.recording.file_format import Change
from agentrl.recording.reader import Frame, Mark
from agentrl.recording.writer import SIGN_S
from tui.model.mirror import Mirror
from tui.model.recorded_steps import Retelling, Telling, Told, tellings
from tui.model.step_cache import StepCache

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 60.0, 600.0)
GAP_S = 2 * SIGN_S
"""A recording that is silent for longer was not written meanwhile."""
_A_LITTLE_S = 0.2
"""After the row by which something began, so that what came with it is seen, too."""


class Source(Protocol):
    """A recording, as its reader gives it."""

    frames: list[Frame]
    marks: list[Mark]
    damaged: tuple[str, ...]

    @property
    def begin(self) -> float: ...

    @property
    def end(self) -> float: ...

    def frame_at(self, at: float) -> int: ...

    def changes(self, index: int) -> Iterator[list[Change]]: ...


class Playback:
    def __init__(self, source: Source, mirror: Mirror, *, speed: float = 1.0, what: str = "recording") -> None:
        self.source = source
        self.what = what
        """Which recording it is, for the banner."""
        self.position = source.begin
        """The time that is shown."""
        self.speed = speed
        self.playing = True
        self.told = next(iter(source.damaged), "")
        """What was noticed on the way, in a sentence."""
        self._mirror = mirror
        self._retelling = Retelling()
        self._taken = Told()
        self._index = -1
        self._changes: Sequence[Change] = ()
        self._next = 0

    @property
    def over(self) -> bool:
        return self.position >= self.source.end

    def advance(self, seconds: float, clock: float) -> None:
        """So much time has passed for whoever looks on."""
        if self.playing and not self.over:
            self._play_to(min(self.position + seconds * self.speed, self.source.end), clock)
        self._mirror.heard(clock)

    def seek(self, at: float, clock: float) -> None:
        """Show another moment."""
        at, index = self._recorded(min(max(at, self.source.begin), self.source.end))
        self._load(index)
        self.position = at
        rows: dict[str, Change] = {}
        while self._next < len(self._changes) and self._changes[self._next].at <= at:
            change = self._changes[self._next]
            rows[change.key] = change
            self._next += 1
        self._mirror.begin()
        for change in rows.values():
            self._put(change)
        self._mirror.whole(clock)

    def _recorded(self, at: float) -> tuple[float, int]:
        """The time, or on the way there the last one before a gap or the first one after it; and its frame."""
        frames, index = self.source.frames, self.source.frame_at(at)
        if index + 1 < len(frames) and at > frames[index].until and _is_gap(frames[index], frames[index + 1]):
            back = at < self.position
            return (frames[index].until, index) if back else (frames[index + 1].at, index + 1)
        return at, index

    def step(self, by: int, clock: float) -> Mark | None:
        """To where the next thing began, or the one before, and stand there: what goes on at a high speed would be back
        where it was before anybody looked. None if there is none."""
        there = [(self._seen_at(mark), mark) for mark in self.source.marks]
        there = [each for each in there if (each[0] > self.position if by > 0 else each[0] < self.position)]
        if not there:
            return None
        at, mark = (min if by > 0 else max)(there, key=lambda each: each[0])
        self.playing = False
        self.seek(at, clock)
        return mark

    def _seen_at(self, mark: Mark) -> float:
        """When one sees what began, and what came with it; where the recording stops before, the last of it."""
        frames, index = self.source.frames, self.source.frame_at(mark.at)
        stops = index + 1 == len(frames) or _is_gap(frames[index], frames[index + 1])
        at = mark.at + _A_LITTLE_S
        return min(at, frames[index].until) if stops else at

    def faster(self, by: int) -> None:
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.speed))
        self.speed = SPEEDS[min(max(nearest + by, 0), len(SPEEDS) - 1)]

    def tell(self, steps: StepCache) -> Told:
        """Have them be those that were told of up to what is shown; there is news if it is another answer."""
        told = self._retelling.told(self._index, self.position)
        if told is not self._taken:
            self._taken = told
            steps.take("", told.rows, more=told.more)
        return told

    @property
    def unread(self) -> Sequence[int]:
        """The frames that tell of the Steps which are missing, those first that are wanted first."""
        return self._retelling.told(self._index, self.position).unread

    def tellings(self, index: int) -> list[Telling]:
        """What another frame tells of Steps. It takes time, and nothing of what is shown."""
        return tellings(_read(self.source, index)[0])

    def keep(self, index: int, found: list[Telling]) -> None:
        self._retelling.keep(index, found)

    def _play_to(self, at: float, clock: float) -> None:
        frames = self.source.frames
        while self._index + 1 < len(frames) and self._follows(frames[self._index + 1], at):
            # The next frame begins with everything as it was: what this one told of its end is in there.
            at = max(at, frames[self._index + 1].at)
            self.seek(frames[self._index + 1].at, clock)
        while self._next < len(self._changes) and self._changes[self._next].at <= at:
            self._put(self._changes[self._next])
            self._next += 1
        self.position = at

    def _follows(self, frame: Frame, at: float) -> bool:
        present = self.source.frames[self._index]
        return frame.at <= at or (at > present.until and _is_gap(present, frame))

    def _load(self, index: int) -> None:
        self._index, self._next = index, 0
        self._changes, broken = _read(self.source, index)
        self.told = broken or self.told
        self._retelling.keep(index, tellings(self._changes))

    def _put(self, change: Change) -> None:
        try:
            self._mirror.put(change.key, None if change.gone else decode_row(change.value))
        except ProtocolError:
            self.told = f"{change.key} was written by another version and is left out."


def _read(source: Source, index: int) -> tuple[list[Change], str]:
    """What a frame tells, and why not all of it, in a sentence."""
    found: list[Change] = []
    try:
        for block in source.changes(index):
            found += block
    except (ProtocolError, OSError) as broken:
        return found, f"A part of the recording cannot be read: {broken}"
    return found, ""


def _is_gap(before: Frame, after: Frame) -> bool:
    return after.at - before.until > GAP_S
