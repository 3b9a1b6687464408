"""The deadline of an episode, which stands still while the episode is parked.

Invariant: time spent waiting for an open circuit breaker, a toolbox that is full or away, or an engine does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator


class EpisodeClock:
    """For one episode."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self._parked = 0
        self.expired = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises TimeoutError at the deadline. `expired` distinguishes it from a TimeoutError of the body."""
        self._timeout = asyncio.timeout(self._seconds)
        try:
            async with self._timeout:
                yield
        finally:
            self.expired = self._timeout.expired()
            self._timeout = None

    @contextlib.contextmanager
    def parked(self) -> Iterator[None]:
        """Several calls may park at the same time; the clock stands still until the last of them continues."""
        self._parked += 1
        if self._parked == 1:
            self._stop()
        try:
            yield
        finally:
            self._parked -= 1
            if self._parked == 0:
                self._go_on()

    def give_back(self, seconds: float) -> None:
        """Adds time that was lost to a failure that is not the policy's."""
        self._seconds += seconds
        if self._timeout is not None and (due := self._timeout.when()) is not None and not self._timeout.expired():
            self._timeout.reschedule(due + seconds)

    def _stop(self) -> None:
        if self._timeout is not None and (due := self._timeout.when()) is not None:
            self._seconds = due - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def _go_on(self) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
