"""Records the feed, so that the console can show any past minute.

Invariants:
- The recording has every published row, so playback shows what clients saw.
- A separate thread compresses and writes, and the event loop never waits for it.
- While it cannot write, the row of the run shows the reason.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentrl.config.run import RunConfig
from agentrl.control.context import Context
from agentrl.protocol.rows import AlertRow, AlertState, AnyRow, IncidentRow, OperationRow
from agentrl.recording.disk_writer import DIRECTORY, Limits
from agentrl.recording.frame_writer import FRAME_S, Writer

_DAY_S = 86_400.0
_MOST_WAITING = 600
_CLOSE_WITHIN_S = 3.0
log = logging.getLogger(__name__)

Work = Callable[[], None]


class FeedRecorder:
    def __init__(self, context: Context, state_dir: Path) -> None:
        self._context = context
        self._work: queue.Queue[Work | None] = queue.Queue(_MOST_WAITING)
        self._writer = Writer(state_dir / DIRECTORY, context.epoch, self._snapshot, run=self._later)
        self._began: dict[str, float] = {}
        """When the marked things began, by key. The same alert may fire again."""
        self._pending_alerts: set[str] = set()
        """Pending alerts. An alert begins when it fires, even if it was pending for a long time."""
        self._thread = threading.Thread(target=self._work_off, name="recorder", daemon=True)
        self._thread.start()
        context.feed.on_row = self._row

    def configure(self, config: RunConfig) -> None:
        own = config.coordinator
        self._writer.limits = Limits(own.recordings_max, own.recordings_days * _DAY_S)

    def tick(self, now: float) -> None:
        """Give the writer the rows that are due."""
        self._writer.tick(now)
        status = self._context.own_status
        if status.not_recording != self._writer.trouble:
            status.not_recording = self._writer.trouble
            self._context.show_run()

    def close(self) -> None:
        """Waits at most three seconds for the disk."""
        self._writer.close()
        self._later(None)
        self._thread.join(_CLOSE_WITHIN_S)

    def _snapshot(self) -> list[tuple[str, msgspec.Raw]]:
        return self._context.feed.snapshot()[0]

    def _row(self, key: str, row: AnyRow | None, value: msgspec.Raw | None) -> None:
        now = self._context.clock.now()
        self._writer.row(now, key, value)
        was_pending, began = key in self._pending_alerts, _began(row)
        self._pending_alerts.discard(key)
        if began is None:
            self._began.pop(key, None)
            if isinstance(row, AlertRow) and row.state is AlertState.PENDING:
                self._pending_alerts.add(key)
        elif began != self._began.get(key):
            self._began[key] = began
            # A new coordinator also publishes things that began long ago.
            if was_pending or now - began < FRAME_S:
                self._writer.mark(now, key)

    def _later(self, work: Work | None) -> bool:
        try:
            self._work.put_nowait(work)
        except queue.Full:
            return False
        return True

    def _work_off(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                # An error ends only this frame; recording continues with the next one.
                log.exception("a part of the recording is lost")


def _began(row: AnyRow | None) -> float | None:
    """The beginning of the event in the row; None if it is over, is only pending, or is not marked."""
    match row:
        case IncidentRow(at=at):
            return at
        case OperationRow(accepted_at=at):
            return at
        case AlertRow(since_at=at, state=AlertState.FIRING | AlertState.ACKNOWLEDGED):
            return at
    return None
