"""Limits the log lines about faulty messages, so that they cannot fill a disk.

Invariants:
- The number of lines a minute is bounded, for any number of messages and names; the rest is counted.
- One noisy source does not hide another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

EACH = 3
"""Lines about one source in every window."""
SOURCES = 30
"""Sources with lines in every window."""
WINDOW_S = 60.0


class LogLimiter:
    """Writes warnings to the logger of a module, a limited number per source."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._since = clock()
        self._lines: dict[Hashable, int] = {}
        self._left_out = 0

    def warning(self, source: Hashable, text: str, *args: object, exc_info: bool = False) -> None:
        if self._clock() - self._since >= WINDOW_S:
            self._start_window()
        lines = self._lines.get(source, 0)
        if lines >= EACH or (not lines and len(self._lines) >= SOURCES):
            self._left_out += 1
            return
        self._lines[source] = lines + 1
        self._log.warning(text, *args, exc_info=exc_info)

    def _start_window(self) -> None:
        if self._left_out:
            self._log.warning("%d more lines of this kind were left out", self._left_out)
        self._since, self._left_out = self._clock(), 0
        self._lines.clear()
