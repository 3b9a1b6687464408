"""What the feed tells is kept, so that any past minute can be looked at again.

Invariants: the recording is the feed, row by row, so whoever replays it sees what was seen; nothing waits for it; while
it cannot be written the run's row says why.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentrl.config.run import RunConfig
from agentrl.control.context import Context
from agentrl.recording.writer import Limits, Writer

DIRECTORY = "recordings"
_DAY_S = 86_400.0


class Recorder:
    def __init__(self, context: Context, state_dir: Path) -> None:
        self._context = context
        self._writer = Writer(state_dir / DIRECTORY, context.epoch, lambda: context.feed.snapshot()[0])
        context.feed.on_row = self._row

    def configure(self, config: RunConfig) -> None:
        own = config.coordinator
        self._writer.limits = Limits(own.recordings_max, own.recordings_days * _DAY_S)

    def tick(self, now: float) -> None:
        """Write what is due."""
        self._writer.tick(now)
        life = self._context.life
        if life.not_recording != self._writer.trouble:
            life.not_recording = self._writer.trouble
            self._context.show_run()

    def close(self) -> None:
        self._writer.close()

    def _row(self, key: str, value: msgspec.Raw | None) -> None:
        self._writer.row(self._context.clock.now(), key, value)
