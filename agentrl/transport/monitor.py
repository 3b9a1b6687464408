"""What happens to the connections of a socket, as events in the loop.

Invariant: the monitor never holds up the socket that it watches: its own queue is unbounded on the receiving side,
because the library's I/O thread would block on a full one.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import zmq

from agentrl.transport.socket_reader import SocketReader

_numbers = itertools.count()


class Monitor:
    """Calls `on_event(event, value)` for the events asked for, in the order in which they happened."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        watched: zmq.Socket[Any],
        events: int,
        on_event: Callable[[int, int], None],
    ) -> None:
        address = f"inproc://agentrl-monitor-{next(_numbers)}"
        self._watched = watched
        self._on_event = on_event
        watched.monitor(address, events)
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._drain = SocketReader(self._socket, self._take)

    def run(self) -> None:
        """Handle what has happened up to now."""
        self._drain.run()

    def close(self) -> None:
        """To be called before the watched socket is closed."""
        if not self._drain.stopped:
            self._drain.stop()
            self._watched.disable_monitor()
            self._socket.close()

    def _take(self, budget: int) -> bool:
        for _ in range(budget):
            if self._drain.stopped:
                return False
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            event, value = struct.unpack("=HI", parts[0])
            self._on_event(event, value)
        return True
