"""Implements a connecting socket: the common part of dealers and subscribers.

Invariants:
- Callbacks run in the loop in which `start` was called.
- `on_connected` follows every usable (re)connection, `on_disconnected` once the end of each.
- Messages that arrived before a disconnection are delivered before it is reported.
- The socket reconnects after any end of its connection.
- A refused key is reported as a sentence, and `key_refused` says whether the coordinator itself refused it.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import zmq

from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.addresses import cannot_listen
from agentrl.transport.curve_keys import ClientKey
from agentrl.transport.monitor import Monitor
from agentrl.transport.socket_reader import SocketReader
from agentrl.transport.tcp_authentication import UNKNOWN_KEY
from agentrl.transport.zmq_contexts import connecting_context

RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
REDIAL_S = 1.0
"""The library stops reconnecting after a protocol error, such as a refused key; this class reconnects."""
UNANSWERED_S = 30
"""A tcp connection counts as broken after this long without an answer from the network."""
VAGUE_FAILURES = 3
"""A handshake that fails without a reason may be a coordinator that dies; this many at the start are a wrong key."""

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CONNECTED
)


def nothing() -> None:
    """The default for a callback."""


def no_refusal(sentence: str) -> None:
    """The default for `on_refused`."""


class ConnectingSocket:
    """One socket that connects to one address and reconnects until it is closed."""

    _kind: int

    def __init__(
        self,
        address: str,
        *,
        on_message: Callable[[bytes], None],
        key: ClientKey | None = None,
        on_connected: Callable[[], None] = nothing,
        on_disconnected: Callable[[], None] = nothing,
        on_refused: Callable[[str], None] = no_refusal,
    ) -> None:
        self.address = address
        self.connected = False
        self.key_refused = False
        """The coordinator of this key does not know it, or it was revoked: no later try can succeed."""
        self._key = key
        self._on_message = on_message
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._on_refused = on_refused
        self._vague_failures = 0
        self._was_connected = False
        self._redial_timer: asyncio.TimerHandle | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._reader: SocketReader | None = None
        self._monitor: Monitor | None = None

    def start(self) -> None:
        """Connect. Call this in the running loop of the thread that owns the socket."""
        assert self._socket is None, "a connection is started once"
        context = connecting_context()
        socket = self._socket = context.socket(self._kind)
        self._set_options(socket)
        self._monitor = Monitor(context, socket, _EVENTS, self._on_event)
        self._reader = SocketReader(socket, self._take)
        socket.connect(self.address)

    def close(self) -> None:
        """Stop; no callback follows. May be called from a callback, and twice."""
        self.connected = False
        self._expect_no_redial()
        if self._monitor:
            self._monitor.close()
        if self._reader and not self._reader.stopped:
            self._reader.stop()
            assert self._socket
            self._socket.close(linger=0)

    def _set_options(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        if self.address.startswith("tcp://"):
            keep_alive(socket)
        if self._key:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._key.server_public.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._key.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.secret.encode())

    def _take(self, budget: int) -> bool:
        assert self._socket
        assert self._reader
        receive, reader, deliver = self._socket.recv_multipart, self._reader, self._on_message
        for _ in range(budget):
            if reader.stopped:
                return False
            try:
                parts = receive(zmq.NOBLOCK)
            except zmq.Again:
                return False
            if len(parts) == 1:
                deliver(parts[0])
        return True

    def _on_event(self, event: int, value: int) -> None:
        if event in (zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_CONNECTED):
            self._expect_no_redial()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._was_connected = self.connected = True
            self.key_refused = False
            self._on_connected()
        elif event == zmq.EVENT_DISCONNECTED:
            self._expect_redial()
            if self.connected:
                self._read_the_rest()
                self.connected = False
                self._on_disconnected()
        else:
            self._expect_redial()
            self._on_failed_handshake(event, value)

    # If the library reconnects by itself, it reports that at once. If it does not, this class does.

    def _expect_redial(self) -> None:
        if self._redial_timer is None:
            self._redial_timer = asyncio.get_running_loop().call_later(REDIAL_S, self._redial)

    def _expect_no_redial(self) -> None:
        if self._redial_timer:
            self._redial_timer.cancel()
            self._redial_timer = None

    def _redial(self) -> None:
        self._redial_timer = None
        assert self._socket
        try:
            self._socket.disconnect(self.address)
        except zmq.ZMQError as unknown:
            if unknown.errno != errno.ENOENT:
                raise
        self._socket.connect(self.address)

    def _read_the_rest(self) -> None:
        while self.connected and self._take(256):
            pass

    def _on_failed_handshake(self, event: int, code: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.key_refused = code == UNKNOWN_KEY
            self._on_refused(f"The coordinator at {self.address} does not know this key, or it was revoked.")
            return
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._vague_failures += 1
            if self._was_connected or self._vague_failures != VAGUE_FAILURES:
                return
        if self._key:
            reason = "another coordinator than the one of this key answers there, or another program"
        else:
            reason = "a coordinator that requires a key answers there, or another program"
        self._on_refused(f"No handshake with {self.address}: {reason}.")


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Let the kernel detect a peer that vanished; heartbeats of the library would cost the hub too much."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 4)
    socket.setsockopt(zmq.TCP_MAXRT, UNANSWERED_S * 1000)


def bind(socket: zmq.Socket[bytes], address: str) -> None:
    """Raises ConfigError if the address is taken or does not belong to this host."""
    try:
        socket.bind(address)
    except zmq.ZMQError as refused:
        raise cannot_listen(address, zmq.strerror(refused.errno or 0)) from refused
