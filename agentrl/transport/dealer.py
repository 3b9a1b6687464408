"""Implements the socket by which a unit, a host agent or a client reaches the coordinator.

Invariants:
- No message is queued for a coordinator that is away, so that it never receives stale messages when it returns.
- The outbox is bounded, and `send` never blocks: it returns whether the frame was sent.
"""

from __future__ import annotations

import zmq

from agentrl.errors import ProtocolError
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.connecting_socket import ConnectingSocket

OUTBOX_MESSAGES = 1000


class Dealer(ConnectingSocket):
    """A DEALER with a new identity for every connection. Start and close it in the loop that owns it."""

    _kind = zmq.DEALER

    def send(self, frame: bytes) -> bool:
        """Send a frame; returns False if it was not sent, because there is no connection or the outbox is full."""
        check_size(frame)
        if not self.connected or self._socket is None or self._reader is None:
            return False
        sent = self._try(frame)
        if not sent:
            # A send checks its connection only now and then; reading the events makes it check.
            self._socket.getsockopt(zmq.EVENTS)
            sent = self._try(frame)
        self._reader.kick()
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
    """Raises ProtocolError for a frame that is too large: the other side would close the connection without a
    reason.
    """
    if len(frame) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"A message of {len(frame)} bytes cannot be sent; the limit is {MAX_MESSAGE_BYTES >> 20} MiB."
        )
