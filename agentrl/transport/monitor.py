"""Reports connections and disconnections of a socket as events in the loop.

The queue of events is unbounded on the receiving side: the library's I/O thread would block on a full one, and with it
the watched socket.
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
    """Calls `on_event(event, value)` for the selected events, in their order."""

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
        self._reader = SocketReader(self._socket, self._take)

    def run(self) -> None:
        """Handle the events until now."""
        self._reader.run()

    def close(self) -> None:
        """Call this before the watched socket is closed."""
        if not self._reader.stopped:
            self._reader.stop()
            self._watched.disable_monitor()
            self._socket.close()

    def _take(self, budget: int) -> bool:
        for _ in range(budget):
            if self._reader.stopped:
                return False
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            event, value = struct.unpack("=HI", parts[0])
            self._on_event(event, value)
        return True
