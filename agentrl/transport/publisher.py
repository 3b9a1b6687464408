"""Implements publishing and subscribing.

Invariants:
- A slow subscriber loses messages and never slows the publisher.
- Topics are not used: a subscriber receives everything, so a gap in the sequence numbers always means a loss.
- The memory of foreign topics is returned to the system after they are gone.
- A local process that may not read is disconnected before the next message is sent.
- After `rebind`, only subscribers on tcp that were admitted again are subscribed.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable

import zmq

from agentrl.errors import ConfigError
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.connected_process import end_connection, process_at
from agentrl.transport.connecting_socket import ConnectingSocket, bind, keep_alive, nothing
from agentrl.transport.dealer import check_size
from agentrl.transport.monitor import Monitor
from agentrl.transport.router import BACKLOG
from agentrl.transport.socket_files import SocketFile
from agentrl.transport.socket_reader import SocketReader
from agentrl.transport.tcp_authentication import Gate

QUEUE_MESSAGES = 5000
MUCH_TOPIC_BYTES = 100_000
"""The library keeps about 40 bytes for each byte of a topic until its connection ends."""
TRIM_EVERY_S = 2.0
TRIMS = 5
"""The library frees the topics of a closed socket in the background, within some seconds."""
REBIND_RETRY_S = 0.02
REBIND_WITHIN_S = 10.0

MayRead = Callable[[int, int], bool]
"""Whether a local process, by its pid and user, may read what is published."""

_log = logging.getLogger(__name__)


def _everyone(pid: int, uid: int) -> bool:
    return True


class Publisher:
    """An XPUB on `address` (ipc) and, with `listen` (tcp), a second one that requires keys."""

    def __init__(
        self,
        address: str,
        *,
        gate: Gate,
        listen: str = "",
        on_subscribed: Callable[[], None] = nothing,
        may_read: MayRead = _everyone,
    ) -> None:
        self._addresses = [each for each in (address, listen) if each]
        self._gate = gate
        self._on_subscribed = on_subscribed
        self._may_read = may_read
        self._outlets: list[_Outlet] = []

    def start(self) -> None:
        """Bind. Call this in the running loop, after the gate was started."""
        for address in self._addresses:
            self.listen(address)

    def listen(self, address: str) -> None:
        """Bind one more tcp address while the publisher is open. Raises ConfigError if that is not possible."""
        self._outlets.append(_Outlet(address, self._gate, self._on_subscribed, self._may_read))

    def unlisten(self) -> None:
        """Close the sockets on tcp, and with them all subscriptions there."""
        for outlet in [outlet for outlet in self._outlets if outlet.guarded]:
            self._outlets.remove(outlet)
            outlet.close()

    def publish(self, frame: bytes) -> None:
        """Send to every subscriber that keeps up."""
        check_size(frame)
        for outlet in self._outlets:
            outlet.publish(frame)

    def rebind(self) -> None:
        """End every subscription on tcp; subscribers with a valid key reconnect by themselves."""
        for outlet in self._outlets:
            if outlet.guarded:
                outlet.rebind()

    def restore_file(self) -> bool:
        """Restore the file of the first address if it was removed; returns whether it was."""
        return self._outlets[0].restore_file()

    def close(self) -> None:
        for outlet in self._outlets:
            outlet.close()


class _Outlet:
    """Wraps one XPUB socket, which another socket on the same address may replace."""

    def __init__(self, address: str, gate: Gate, on_subscribed: Callable[[], None], may_read: MayRead) -> None:
        self.guarded = not address.startswith("ipc://")
        self._address = address
        self._gate = gate
        self._on_subscribed = on_subscribed
        self._may_read = may_read
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._reader: SocketReader | None = None
        self._file: SocketFile | None = None
        self._monitor: Monitor | None = None
        self._topic_bytes = 0
        """Bytes of foreign topics that were added or removed since memory was last returned."""
        self._trims_left = 0
        self._trim: asyncio.TimerHandle | None = None
        self._bind()

    def publish(self, frame: bytes) -> None:
        if self._socket and self._reader:
            if self._monitor:
                self._monitor.run()
            self._socket.send(frame, zmq.NOBLOCK)
            self._reader.kick()

    def restore_file(self) -> bool:
        return self._file is not None and self._file.restore()

    def rebind(self) -> None:
        # Unbinding alone would keep the present connections.
        self._close_socket()
        self._return_memory_soon()
        self._bind_again(self._loop.time() + REBIND_WITHIN_S)

    def close(self) -> None:
        for timer in (self._retry, self._trim):
            if timer:
                timer.cancel()
        self._close_socket()

    def _bind_again(self, deadline: float) -> None:
        """The old socket releases its port in the background, so the first attempts may fail."""
        self._retry = None
        try:
            self._bind()
        except ConfigError as refused:
            if self._loop.time() >= deadline:
                _log.error("%s Nothing is published there.", refused.message)
                deadline += REBIND_WITHIN_S
            self._retry = self._loop.call_later(REBIND_RETRY_S, self._bind_again, deadline)

    def _bind(self) -> None:
        socket = self._gate.context.socket(zmq.XPUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
            socket.setsockopt(zmq.BACKLOG, BACKLOG)
            if self.guarded:
                keep_alive(socket)
                self._gate.guard(socket)
            else:
                self._monitor = Monitor(self._gate.context, socket, zmq.EVENT_ACCEPTED, self._accepted)
            bind(socket, self._address)
        except BaseException:
            if self._monitor:
                self._monitor.close()
            socket.close()
            raise
        self._socket = socket
        self._file = SocketFile(socket, self._address)
        self._reader = SocketReader(socket, self._take)

    def _accepted(self, event: int, descriptor: int) -> None:
        if not self._may_read(*process_at(descriptor)):
            end_connection(descriptor, self._address.removeprefix("ipc://"))

    def _close_socket(self) -> None:
        if self._monitor:
            self._monitor.close()
            self._monitor = None
        if self._reader and self._socket:
            self._reader.stop()
            self._socket.close(linger=0)
        self._reader = self._socket = self._file = None

    def _take(self, budget: int) -> bool:
        for _ in range(budget):
            if self._socket is None:
                return False
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            # Our subscribers subscribe to everything, with an empty topic. Other topics are faulty.
            if parts == [b"\x01"]:
                self._on_subscribed()
            else:
                self._topic_bytes += len(parts[0])
                if self._topic_bytes >= MUCH_TOPIC_BYTES:
                    self._return_memory_soon()
        return True

    def _return_memory_soon(self) -> None:
        self._topic_bytes, self._trims_left = 0, TRIMS
        self._trim = self._trim or self._loop.call_later(TRIM_EVERY_S, self._return_memory)

    def _return_memory(self) -> None:
        return_free_memory()
        self._trims_left -= 1
        self._trim = self._loop.call_later(TRIM_EVERY_S, self._return_memory) if self._trims_left else None


def return_free_memory() -> None:
    """Return freed memory to the system; otherwise the allocator keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only in the GNU C library.
    if trim is not None:
        trim(0)


class Subscriber(ConnectingSocket):
    """A SUB that receives everything that is published at an address."""

    _kind = zmq.SUB

    def _set_options(self, socket: zmq.Socket[bytes]) -> None:
        super()._set_options(socket)
        socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
