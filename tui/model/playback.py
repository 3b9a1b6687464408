"""Plays a recording: its position, its speed, and the mirror as it was at that position.

Invariants:
- The mirror depends only on the position, not on earlier positions.
- A time at which nothing was recorded is skipped.
- Playback stops at the end of the recording and after a jump to a mark.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import ProtocolError
from agentrl.protocol.wire import decode_row
from agentrl.recording.file_format import Change
from agentrl.recording.reader import Mark, Recording
from tui.model.mirror import Mirror
from tui.model.recorded_steps import RecordedSteps, ShownSteps, StepReport, step_reports
from tui.model.step_cache import StepCache

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 60.0, 600.0)


class Playback:
    def __init__(self, source: Recording, mirror: Mirror, *, speed: float = 1.0, what: str = "recording") -> None:
        self.source = source
        self.what = what
        """Which recording it is, for the banner."""
        self.position = source.begin
        """The time that is shown."""
        self.speed = speed
        self.playing = True
        self.problem = next(iter(source.damaged), "")
        """The newest problem of the recording, in a sentence."""
        self._mirror = mirror
        self._steps = RecordedSteps()
        self._shown = ShownSteps()
        self._index = -1
        """The current frame, its changes, and the first change that is not applied."""
        self._changes: Sequence[Change] = ()
        self._next = 0

    @property
    def over(self) -> bool:
        return self.position >= self.source.end

    # ---- position ----

    def advance(self, seconds: float, clock: float) -> None:
        """Plays for the given time."""
        if self.playing and not self.over:
            self._play_to(min(self.position + seconds * self.speed, self.source.end), clock)
        self._mirror.message_received(clock)

    def seek(self, at: float, clock: float) -> None:
        """Shows another time."""
        at, self._index = self.source.recorded_at(at, backwards=at < self.position)
        self._changes, problem = self.source.read(self._index)
        self._next = 0
        self.problem = problem or self.problem
        self._steps.keep(self._index, step_reports(self._changes))
        self.position = at
        self._mirror.begin()
        for change in {change.key: change for change in self._changes_until(at)}.values():
            self._put(change)
        self._mirror.whole(clock)

    def step(self, by: int, clock: float) -> Mark | None:
        """Jumps to the next mark (or the one before) and stops there, because at a high speed a person could not see
        it. Returns None if there is no such mark.
        """
        found = self.source.next_mark(self.position, backwards=by < 0)
        if found is None:
            return None
        self.playing = False
        self.seek(found[0], clock)
        return found[1]

    def faster(self, by: int) -> None:
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.speed))
        self.speed = SPEEDS[min(max(nearest + by, 0), len(SPEEDS) - 1)]

    def _play_to(self, at: float, clock: float) -> None:
        frames = self.source.frames
        while self._index + 1 < len(frames) and (
            frames[self._index + 1].at <= at or (at > frames[self._index].until and self.source.gap_after(self._index))
        ):
            # The next frame begins with a snapshot, so the rest of this one is not needed.
            at = max(at, frames[self._index + 1].at)
            self.seek(frames[self._index + 1].at, clock)
        for change in self._changes_until(at):
            self._put(change)
        self.position = at

    def _changes_until(self, at: float) -> Sequence[Change]:
        """The next changes of the frame up to a time."""
        first = self._next
        while self._next < len(self._changes) and self._changes[self._next].at <= at:
            self._next += 1
        return self._changes[first : self._next]

    def _put(self, change: Change) -> None:
        try:
            self._mirror.put(change.key, None if change.gone else decode_row(change.value))
        except ProtocolError:
            self.problem = f"{change.key} was written by another version and is left out."

    # ---- Steps ----

    def fill_steps(self, steps: StepCache) -> ShownSteps:
        """Fills the cache with the Steps up to the position, if they have changed."""
        shown = self._steps.steps_at(self._index, self.position)
        if shown is not self._shown:
            self._shown = shown
            steps.take("", shown.rows, more=shown.more)
        return shown

    @property
    def unread(self) -> Sequence[int]:
        """The frames that have to be read for missing Steps, in the order in which they are needed."""
        return self._steps.steps_at(self._index, self.position).unread

    def read_steps(self, index: int) -> list[StepReport]:
        """Reads the Steps of another frame. It is slow, and may run in a thread."""
        return step_reports(self.source.read(index)[0])

    def keep(self, index: int, found: list[StepReport]) -> None:
        self._steps.keep(index, found)
