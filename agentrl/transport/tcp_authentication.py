"""Admits connections to the coordinator's tcp sockets: a ZAP handler with the live keyring.

Invariants:
- A socket on tcp is guarded by CURVE and by one fixed domain, or it is not bound at all.
- Only the CURVE mechanism is admitted, and an admitted peer is known by the name of its key.
- A revoked key is refused at the next connection.
- A handler that fails refuses the connection, with another code than for an unknown key.

`zmq.auth.Authenticator` is not used: it admits the NULL mechanism, sends no reply if the credentials callback raises
(the client then hangs), and its asynchronous handler answers one request at a time on a REP socket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import zmq

from agentrl.errors import ConfigError
from agentrl.transport.curve_keys import ServerKeys, public_from_wire
from agentrl.transport.log_limiter import LogLimiter
from agentrl.transport.socket_reader import SocketReader
from agentrl.transport.zmq_contexts import new_context

DOMAIN = b"agentrl"
"""The domain of every guarded socket and of the handler. If they differ, every client hangs."""

USER_ID = "User-Id"
UNKNOWN_KEY = 400
"""The code for a key that is unknown or revoked."""
FAILED = b"500"

_HANDLER = "inproc://zeromq.zap.01"
_log_limiter = LogLimiter(logging.getLogger(__name__))

Keyring = Callable[[str], str | None]
"""Returns the name of the key with this public half; None if it is unknown or revoked."""


class Gate:
    """The context of a coordinator's sockets, and the ZAP handler that admits connections to those on tcp.

    Start it before the sockets and close it after them. Without server keys no socket can be bound to tcp.
    """

    def __init__(self, server_keys: ServerKeys | None = None, keyring: Keyring | None = None) -> None:
        self.context = new_context()
        self._server_keys = server_keys
        self._keyring = keyring
        self._socket: zmq.Socket[bytes] | None = None
        self._reader: SocketReader | None = None

    def start(self) -> None:
        """Call this in the running loop."""
        if self._server_keys is None or self._keyring is None:
            return
        self._socket = self.context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_HANDLER)
        self._reader = SocketReader(self._socket, self._take)

    def close(self) -> None:
        """Wait until the sockets of the context have sent their queues, at most their linger time."""
        if self._reader and not self._reader.stopped:
            self._reader.stop()
            assert self._socket
            self._socket.close()
        self.context.term()

    def guard(self, socket: zmq.Socket[Any]) -> None:
        """Call this before the socket is bound to a tcp address."""
        if self._socket is None or self._server_keys is None:
            raise ConfigError(
                "The coordinator does not listen on tcp without keys.",
                hint="agentrl keys new NAME makes the first one.",
            )
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._server_keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._server_keys.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def _take(self, budget: int) -> bool:
        assert self._socket
        for _ in range(budget):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._answer(parts)
        return True

    def _answer(self, parts: list[bytes]) -> None:
        assert self._socket
        sender, _, version, request, *rest = parts
        name: str | None = None
        code, text = FAILED, b"failed"
        try:
            name = self._admit(rest)
            code, text = (b"200", b"OK") if name else (str(UNKNOWN_KEY).encode(), b"unknown key")
        finally:
            # Even if the keyring raised: a connection without an answer would hang.
            user = (name or "").encode()
            self._socket.send_multipart([sender, b"", version, request, code, text, user, b""], zmq.NOBLOCK)

    def _admit(self, rest: list[bytes]) -> str | None:
        domain, address, _identity, mechanism, *credentials = rest
        if domain != DOMAIN or mechanism != b"CURVE" or len(credentials) != 1 or not self._keyring:
            return None
        name = self._keyring(public_from_wire(credentials[0]))
        if not name:
            source = address.decode(errors="replace")
            _log_limiter.warning(source, "refused a connection from %s: its key is unknown or revoked", source)
        return name
