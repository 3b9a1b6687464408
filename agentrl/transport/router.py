"""Implements one ROUTER socket of the coordinator, and tracks its peers.

Invariants:
- A peer is one connection. It is never confused with another, even if both use the same identity: guarded sockets
  compare the key of every message.
- A peer that left is reported once, after its last message.
- A peer that does not read fills its own outbox and no other.
- A malformed message is dropped and affects no other peer.

Messages that are sent during a read leave together at its end, in order: each single send would wake the library's
thread, which costs more than the message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import zmq

from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.connected_process import process_at
from agentrl.transport.connecting_socket import bind, keep_alive
from agentrl.transport.dealer import check_size
from agentrl.transport.monitor import Monitor
from agentrl.transport.socket_files import SocketFile
from agentrl.transport.socket_reader import SocketReader
from agentrl.transport.tcp_authentication import USER_ID, Gate

PIPE_MESSAGES = 500
"""Messages that the library queues per peer; more wait in the peer's own outbox."""
OUTBOX_BYTES = 16 << 20
"""A peer with this much in its outbox gets no more messages until it reads."""
FLUSH_S = 0.02
LINGER_MS = 500
BACKLOG = 4096
# Plain numbers: combining the flags of an enumeration costs a microsecond per message.
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_NOBLOCK = int(zmq.SNDMORE | zmq.NOBLOCK)


class Peer:
    """One connection to the hub; usable as a key of dictionaries."""

    __slots__ = ("gone", "identity", "key_name", "local", "outbox", "outbox_bytes", "pid", "router", "uid")

    def __init__(self, router: Router, identity: bytes, key_name: str | None, pid: int = 0, uid: int = -1) -> None:
        self.router = router
        self.identity = identity
        self.key_name = key_name
        """Name of its key; None for a local peer."""
        self.local = not router.guarded
        self.pid = pid
        """The process that connected, as the kernel knows it; 0 for a peer on tcp."""
        self.uid = uid
        """The user of that process."""
        self.gone = False
        self.outbox: deque[bytes] = deque()
        self.outbox_bytes = 0

    def __repr__(self) -> str:
        return f"Peer({self.identity.hex()}, {self.key_name or 'local'})"


class Router:
    """Binds one address. The hub has one router for this host, and one on tcp if it listens there."""

    def __init__(
        self,
        address: str,
        gate: Gate,
        on_message: Callable[[Peer, bytes], None],
        on_gone: Callable[[Peer], None],
    ) -> None:
        self.guarded = not address.startswith("ipc://")
        self._on_message = on_message
        self._on_gone = on_gone
        self._peers: dict[bytes, Peer] = {}
        self._by_fd: dict[int, Peer] = {}
        self._ended: set[int] = set()
        """Descriptors of connections that ended before their first message was read."""
        self._leaving: deque[Peer] = deque()
        self._backlogged: dict[Peer, None] = {}
        self._answered: dict[Peer, None] = {}
        """Peers to which something was sent while messages were read."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._socket = gate.context.socket(zmq.ROUTER)
        try:
            self._set_options(gate)
            bind(self._socket, address)
            self._file = SocketFile(self._socket, address)
        except BaseException:
            self._socket.close(linger=0)
            raise
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._monitor = Monitor(gate.context, self._socket, events, self._on_event)
        self._reader = SocketReader(self._socket, self._take)

    @property
    def peers(self) -> int:
        return len(self._peers)

    def restore_file(self) -> bool:
        """Restore the file of a local socket if it was removed; returns whether it was."""
        return self._file.restore()

    def send(self, peer: Peer, frame: bytes) -> bool:
        """Send a frame; returns False if the peer is gone or its outbox is full."""
        check_size(frame)
        if peer.gone:
            return False
        if self._reader.running:
            self._answered[peer] = None
            return self._keep(peer, frame)
        if peer.outbox:
            return self._keep(peer, frame)
        if not self._try(peer, frame):
            self._flush_later(peer)
            return self._keep(peer, frame)
        self._reader.kick()
        return not peer.gone

    def close(self) -> None:
        """Close. The library sends its queues for half a second more; outboxes are lost, and all peers are gone."""
        if self._reader.stopped:
            return
        if self._flush_timer:
            self._flush_timer.cancel()
        self._monitor.close()
        self._send_answers()
        self._reader.stop()
        self._socket.close(linger=LINGER_MS)
        for peer in tuple(self._peers.values()):
            self._leave(peer)

    def _set_options(self, gate: Gate) -> None:
        socket = self._socket
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, PIPE_MESSAGES)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self.guarded:
            keep_alive(socket)
            gate.guard(socket)

    # ---- reading ----

    def _take(self, budget: int) -> bool:
        peers, guarded, reader = self._peers, self.guarded, self._reader
        receive, deliver = self._socket.recv, self._on_message
        for _ in range(budget):
            try:
                identity = receive(_NOBLOCK)
            except zmq.Again:
                if self._answered:
                    # A send may consume the edge of the descriptor: read once more afterwards.
                    self._send_answers()
                    continue
                self._report_leaving()
                return False
            peer = peers.get(identity)
            part = receive(_NOBLOCK, copy=False)
            if peer is None or guarded:
                peer = self._recognise(peer, identity, part)
            # The part knows whether more follow. An option of the socket costs a heartbeat as much as its two parts.
            if peer is None or part.more:
                self._discard_the_rest()
                continue
            deliver(peer, part.bytes)
            if reader.stopped:
                return False
        self._send_answers()
        return True

    def _discard_the_rest(self) -> None:
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv(zmq.NOBLOCK)

    def _recognise(self, known: Peer | None, identity: bytes, part: zmq.Frame) -> Peer | None:
        """Return the peer; None if it cannot be identified, because it uses an old protocol without a handshake or
        sends garbage.
        """
        try:
            descriptor = int(part.get(zmq.SRCFD))
            key_name = str(part.get(USER_ID)) if self.guarded else None
        except zmq.ZMQError:
            return None
        if known and known.key_name == key_name:
            return known
        # The monitor's queue contains the ends of all earlier connections. They are read first, so that a reused
        # descriptor is not confused with an earlier connection.
        self._monitor.run()
        if known:
            self._leave(known)
        pid, uid = (0, -1) if self.guarded else process_at(descriptor)
        peer = self._peers[identity] = Peer(self, identity, key_name, pid, uid)
        former = self._by_fd.pop(descriptor, None)
        if former:
            # Two connections never share a descriptor: the earlier one had ended when its first message was read.
            self._leave(former)
        if descriptor in self._ended:
            self._leaving.append(peer)
        else:
            self._by_fd[descriptor] = peer
        return peer

    def _on_event(self, event: int, fd: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._ended.discard(fd)
            return
        peer = self._by_fd.pop(fd, None)
        if peer is None:
            self._ended.add(fd)
        else:
            # Its last messages may be unread. It stays known until the socket has been empty once.
            self._leaving.append(peer)
            self._reader.kick()

    def _report_leaving(self) -> None:
        while self._leaving:
            self._leave(self._leaving.popleft())

    def _leave(self, peer: Peer) -> None:
        if peer.gone:
            return
        peer.gone = True
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]
        peer.outbox.clear()
        self._backlogged.pop(peer, None)
        self._loop.call_soon(self._on_gone, peer)

    # ---- writing ----

    def _try(self, peer: Peer, frame: bytes) -> bool:
        """Try to send; returns False if the library's queue for this peer is full."""
        send = self._socket.send
        try:
            send(peer.identity, _MORE_NOBLOCK)
            send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as refused:
            if refused.errno != zmq.EHOSTUNREACH:
                raise
            self._leave(peer)
        return True

    def _keep(self, peer: Peer, frame: bytes) -> bool:
        if peer.outbox_bytes + len(frame) > OUTBOX_BYTES:
            return False
        peer.outbox.append(frame)
        peer.outbox_bytes += len(frame)
        return True

    def _empty(self, peer: Peer) -> bool:
        """Send the outbox of a peer; returns False if its queue is full."""
        while peer.outbox and not peer.gone:
            if not self._try(peer, peer.outbox[0]):
                return False
            if peer.outbox:
                peer.outbox_bytes -= len(peer.outbox.popleft())
        return True

    def _send_answers(self) -> None:
        answered, self._answered = self._answered, {}
        for peer in answered:
            if not self._empty(peer):
                self._flush_later(peer)

    def _flush_later(self, peer: Peer) -> None:
        self._backlogged[peer] = None
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        self._socket.getsockopt(zmq.EVENTS)
        backlogged, self._backlogged = self._backlogged, {}
        for peer in backlogged:
            if not self._empty(peer):
                self._flush_later(peer)
        self._reader.kick()
