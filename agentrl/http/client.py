"""A client of HTTP/1.1 for very many short calls to one server.

Invariants: one connection carries one call at a time, and one that was left in the middle of a call is closed; a call
is repeated only if it went out on a connection that the server had closed meanwhile, before a byte of an answer.
General clients look at every open connection for every call, which costs more than the call once hundreds are open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import h11

from agentrl.errors import ConfigError

CONNECT_WITHIN_S = 5.0
MOST_BODY_BYTES = 64 << 20
"""A million tokens with their log-probs are less."""
_PIECE_BYTES = 1 << 16


class ConnectionBrokenError(Exception):
    """Nobody answers at the address, or the answer broke off."""


class BodyTooLargeError(Exception):
    """There is more to an answer than anybody wants to read."""


class _StaleError(Exception):
    """The server had closed this connection before the call."""


class Reply:
    """Status, and the body piece by piece."""

    def __init__(self, status: int, connection: _Connection) -> None:
        self.status = status
        self._connection = connection

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            event = await self._connection.next_event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            else:
                return

    async def read(self) -> bytes:
        """All of it. BodyTooLargeError at the limit, for the other side may never end."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BODY_BYTES:
                raise BodyTooLargeError(f"its answer has more than {MOST_BODY_BYTES >> 20} MiB")
        return b"".join(pieces)


class _Connection:
    """One TCP connection and the state of HTTP on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT)
        self._heard = False

    async def ask(self, request: h11.Request, body: bytes, *, reused: bool) -> int:
        """Send, and read up to the headers of the answer; its status."""
        self._heard = False
        events = (request, h11.Data(body), h11.EndOfMessage()) if body else (request, h11.EndOfMessage())
        try:
            self._writer.write(b"".join(self._state.send(event) or b"" for event in events))
            await self._writer.drain()
            while not isinstance(event := await self.next_event(), h11.Response):
                pass
        except (OSError, ConnectionBrokenError) as broken:
            if reused and not self._heard:
                raise _StaleError from broken
            raise
        return int(event.status_code)

    async def next_event(self) -> h11.Event:
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(_PIECE_BYTES)
                self._heard = self._heard or bool(data)
                self._state.receive_data(data)
        except h11.RemoteProtocolError as broken:
            raise ConnectionBrokenError(f"the answer broke off ({broken})") from broken
        if isinstance(event, h11.ConnectionClosed):
            raise ConnectionBrokenError("the connection was closed")
        assert isinstance(event, h11.Event)
        return event

    def renew(self) -> bool:
        """Make it fit for the next call; False if it is not."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE or self._reader.at_eof():
            return False
        self._state.start_next_cycle()
        return True

    def close(self) -> None:
        # An abort does not wait for what the other side may still want to hear.
        self._writer.transport.abort()


class HttpClient:
    """All calls to one server, with one set of headers."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of an engine; it must be such as http://127.0.0.1:30000.")
        self._host, self._port = parts.hostname, parts.port or 80
        self._headers = [("Host", parts.netloc), ("Content-Type", "application/json"), *headers.items()]
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    @contextlib.asynccontextmanager
    async def ask(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[Reply]:
        """One call. Raises ConnectionBrokenError; deadlines are the caller's."""
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=path, headers=headers)
        try:
            connection, status = await self._begin(request, body)
        except OSError as broken:
            raise ConnectionBrokenError(str(broken) or type(broken).__name__) from broken
        try:
            yield Reply(status, connection)
        except OSError as broken:
            raise ConnectionBrokenError(str(broken) or type(broken).__name__) from broken
        finally:
            if connection.renew():
                self._idle.append(connection)
            else:
                self._drop(connection)

    async def close(self) -> None:
        for connection in list(self._open):
            self._drop(connection)
        # Aborted transports close with the next turn of the loop.
        await asyncio.sleep(0)

    async def _begin(self, request: h11.Request, body: bytes) -> tuple[_Connection, int]:
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await self._connect()
            try:
                return connection, await connection.ask(request, body, reused=reused)
            except _StaleError:
                self._drop(connection)
            except BaseException:
                self._drop(connection)
                raise

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
        except TimeoutError:
            raise ConnectionBrokenError(f"no connection within {CONNECT_WITHIN_S:g} s") from None
        connection = _Connection(reader, writer)
        self._open.add(connection)
        return connection

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()
