"""Passes points of curves to a sink in a separate thread, so that no step waits for a sink.

Invariants:
- `put` never blocks: a full queue drops the new point, and the drop is counted.
- Points reach the sink in their order. A point that the sink refuses is tried again, after growing pauses.
- `close` waits only a few seconds for what is left.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from agentrl.telemetry.data_plane_metrics import CURVES_DROPPED, CURVES_FAILING, CURVES_WAITING, named
from agentrl.training.curve_sinks import Entry, Sink

log = logging.getLogger("curves")

MOST_WAITING = 1000
CLOSED_WITHIN_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LATE_S = 60.0
"""A sink that has held one point for so long counts as failing."""

Report = Callable[[dict[str, float]], None]


class SinkState(NamedTuple):
    waiting: int
    dropped: int
    failing: bool


class SinkQueue:
    """`make` connects to the sink; it may raise, and is called again after a failure. `abandon` is called at the end if
    the sink hangs: it ends what would keep this process alive."""

    def __init__(
        self, name: str, make: Callable[[], Sink], report: Report, abandon: Callable[[], None] = lambda: None
    ) -> None:
        self._abandon = abandon
        self.name = name
        self._make = make
        self._report = report
        self._entries: queue.Queue[Entry | None] = queue.Queue()
        self._closing = threading.Event()
        self._dropped = 0
        self._why = ""
        """Why the last try failed; empty if it did not."""
        self._began: float | None = None
        """When the sink got its present point."""
        self._sink: Sink | None = None
        self._thread = threading.Thread(target=self._work, name=f"curves to {name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        if self._entries.qsize() < MOST_WAITING:
            self._entries.put(entry)
        else:
            self._dropped += 1
            if self._dropped == 1:
                log.warning("Points of curves for %s are dropped: %d of them wait already.", self.name, MOST_WAITING)
        self._tell()

    @property
    def state(self) -> SinkState:
        late = self._began is not None and time.monotonic() - self._began > LATE_S
        end = int(self._closing.is_set())
        return SinkState(max(0, self._entries.qsize() - end), self._dropped, bool(self._why) or late)

    def close(self) -> None:
        """Returns when everything is written, or after a few seconds."""
        self._closing.set()
        self._entries.put(None)
        self._thread.join(CLOSED_WITHIN_S)
        if self._thread.is_alive():
            log.warning("%s did not take %d points of curves in time.", self.name, self.state.waiting)
        if self._thread.is_alive() or self._why:
            self._abandon()

    def _tell(self) -> None:
        now = self.state
        self._report(
            {
                named(CURVES_WAITING, self.name): now.waiting,
                named(CURVES_DROPPED, self.name): now.dropped,
                named(CURVES_FAILING, self.name): now.failing,
            }
        )

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            self._began = time.monotonic()
            if not self._deliver(entry):
                return
            self._began = None
            self._tell()
        if self._sink is not None:
            self._close(self._sink)

    def _deliver(self, entry: Entry) -> bool:
        """Whether the sink took it; False if it failed until the end."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if self._sink is None:
                    self._sink = self._make()
                self._sink.write(entry)
            except Exception as failed:  # noqa: BLE001 - the libraries raise anything, and no step depends on them
                self._failed(failed)
            else:
                self._why = ""
                return True
            if self._closing.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _failed(self, failed: Exception) -> None:
        why = f"{type(failed).__name__}: {' '.join(str(failed).split())[:300]}"
        if why != self._why:
            log.warning("No curves are written to %s now; it is tried again: %s", self.name, why)
        self._why = why
        self._tell()
        if self._sink is not None:
            self._close(self._sink)
            self._sink = None

    def _close(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as failed:  # noqa: BLE001 - as above
            log.warning("%s could not be closed: %s", self.name, failed)
