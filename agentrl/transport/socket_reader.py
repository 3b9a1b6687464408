"""Reads a ZeroMQ socket from an asyncio loop.

Invariants:
- The descriptor of a ZeroMQ socket is edge-triggered. So a read ends only when the socket is empty, and every send
  outside of a read is followed by another read, because the send may have consumed the edge.
- A read takes at most BUDGET messages before timers and other sockets get their turn.
- A handler that raises does not stall its socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

BUDGET = 256


class SocketReader:
    """Calls `take(BUDGET)` when the socket may have messages. `take` returns whether more may be waiting."""

    def __init__(self, socket: zmq.Socket[Any], take: Callable[[int], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._take = take
        self._running = False
        self._scheduled = False
        self._stopped = False
        self._loop.add_reader(self._fd, self.run)
        self.kick()

    def kick(self) -> None:
        """Call this after every send: read once more, soon."""
        if not (self._scheduled or self._running or self._stopped):
            self._scheduled = True
            self._loop.call_soon(self._run_scheduled)

    def run(self) -> None:
        """Read now."""
        if self._stopped or self._running:
            return
        more = True
        self._running = True
        try:
            more = self._take(BUDGET)
        finally:
            self._running = False
            if more:
                self.kick()

    def stop(self) -> None:
        """Call this before the socket is closed."""
        if not self._stopped:
            self._stopped = True
            self._loop.remove_reader(self._fd)

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def running(self) -> bool:
        return self._running

    def _run_scheduled(self) -> None:
        self._scheduled = False
        self.run()
