"""The side of a unit, a host agent or a client that talks to the coordinator.

Invariants: nothing is queued for a coordinator that is not there, so it never finds stale messages when it returns;
the outbox is bounded and a full one is the caller's to know; `send` never blocks.
"""

from __future__ import annotations

import zmq

from agentrl.errors import ProtocolError
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.connecting_socket import ConnectingSocket

OUTBOX_MESSAGES = 1000


class Dealer(ConnectingSocket):
    """A DEALER with a fresh identity on every connection. `start()` it in the loop that owns it, `close()` it there."""

    _kind = zmq.DEALER

    def send(self, frame: bytes) -> bool:
        """False when not connected or the outbox is full; the frame is then gone, and the caller knows it."""
        check_size(frame)
        if not self.connected or self._socket is None or self._drain is None:
            return False
        sent = self._try(frame)
        if not sent:
            # A send looks for news of its connection only now and then; asking for events makes it look.
            self._socket.getsockopt(zmq.EVENTS)
            sent = self._try(frame)
        self._drain.kick()
        return sent

    def _try(self, frame: bytes) -> bool:
        assert self._socket
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _set_options(self, socket: zmq.Socket[bytes]) -> None:
        super()._set_options(socket)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, OUTBOX_MESSAGES)


def check_size(frame: bytes) -> None:
    """The other side would cut the connection, which helps nobody to find the reason."""
    if len(frame) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"A message of {len(frame)} bytes cannot be sent; the limit is {MAX_MESSAGE_BYTES >> 20} MiB."
        )
