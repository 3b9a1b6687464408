"""Lines in the log about what others say wrongly: some of them, not a disk full.

Invariant: however much noise arrives, and under however many names, few lines a minute are written; what is left out is
counted, and one who is loud does not hide what another says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

EACH = 3
"""Lines about one speaker ..."""
SPEAKERS = 30
"""... and speakers of whom there are lines, in every window."""
WINDOW_S = 60.0


class LogLimiter:
    """Warnings in the name of a module's own logger."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._since = clock()
        self._lines: dict[Hashable, int] = {}
        self._left_out = 0

    def warning(self, speaker: Hashable, text: str, *args: object, exc_info: bool = False) -> None:
        if self._clock() - self._since >= WINDOW_S:
            self._begin_again()
        lines = self._lines.get(speaker, 0)
        if lines >= EACH or (not lines and len(self._lines) >= SPEAKERS):
            self._left_out += 1
            return
        self._lines[speaker] = lines + 1
        self._log.warning(text, *args, exc_info=exc_info)

    def _begin_again(self) -> None:
        if self._left_out:
            self._log.warning("%d more lines of this kind were left out", self._left_out)
        self._since, self._left_out = self._clock(), 0
        self._lines.clear()
