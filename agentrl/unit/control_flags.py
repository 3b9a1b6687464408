"""Holds the coordinator's orders for a unit (pause, drain, stop), and reports the ends of other incarnations to it.

Invariants:
- Threads and asyncio tasks wait for a change in the same way, and a change wakes all of them.
- A stop includes a drain and cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

Listener = Callable[[], None]


class ControlFlags:
    """The thread of the socket writes them, the main loop reads them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listeners: set[Listener] = set()
        self._on_drain: list[Listener] = []
        self._on_death: list[Callable[[str], None]] = []
        self.paused = False
        self.draining = False
        self.stopping = False

    def on_drain(self, callback: Listener) -> None:
        """Register a callback for the start of a drain; it runs at once if the drain has already begun."""
        with self._changed:
            self._on_drain.append(callback)
            late = self.draining
        if late:
            callback()

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback that gets the name of every incarnation that ends from now on (`web-0.7`)."""
        self._on_death.append(callback)

    @property
    def hears_deaths(self) -> bool:
        return bool(self._on_death)

    def died(self, incarnation: str) -> None:
        for callback in self._on_death:
            callback(incarnation)

    def pause(self, paused: bool) -> None:
        with self._changed:
            self.paused = paused
            self._wake()

    def drain(self) -> None:
        """Order the main loop to finish its work and to take nothing new."""
        with self._changed:
            begins, self.draining = not self.draining, True
            callbacks = list(self._on_drain)
            self._wake()
        if begins:
            for callback in callbacks:
                callback()

    def cancel_drain(self) -> None:
        with self._changed:
            self.draining = self.stopping
            self._wake()

    def stop(self) -> None:
        """Order a quick drain, because the process will be killed soon."""
        with self._changed:
            self.stopping = True
        self.drain()

    def wait(self, until: Callable[[ControlFlags], bool], timeout_s: float | None) -> bool:
        """Block this thread until `until` returns true; returns False if the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: until(self), timeout_s)

    async def wait_async(self, until: Callable[[ControlFlags], bool], timeout_s: float | None) -> bool:
        """As `wait`, for a task; the event loop is not blocked."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # The loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._listeners.add(wake)
        try:
            async with asyncio.timeout(timeout_s):
                while not until(self):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return False
        finally:
            with self._changed:
                self._listeners.discard(wake)
        return True

    def _wake(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            listener()
