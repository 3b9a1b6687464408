"""Implements a client of HTTP/1.1 for many short calls to one server.

Invariants:
- A connection carries one call at a time. It is closed if its call was abandoned, or if data follows the answer.
- A call is repeated only if the server closed the connection before the first byte of the answer. A call that must not
  run twice is repeated only if nothing of it was sent.
- Memory for a slow reader is bounded.

It exists because general clients check every open connection at each call: with hundreds open, the check costs more
than the call. An answer that arrives in one piece also wakes its caller only once here.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import cast
from urllib.parse import urlsplit

import httptools

from agentrl.config.http_token import RunToken, current
from agentrl.errors import ConfigError
from agentrl.http.run_hosts import LOOPBACK, Way
from agentrl.tracing import spans, trace_context
from agentrl.tracing.trace_context import HEADER

CONNECT_WITHIN_S = 5.0
MOST_BODY_BYTES = 64 << 20
"""More than a million tokens with their log-probs."""
_MOST_AHEAD_BYTES = 1 << 20
_MOST_HEAD_BYTES = 1 << 16
_FINAL = 200
"""The first final status; lower ones announce it."""


class ConnectionBrokenError(Exception):
    """No server answers at the address, or the answer broke off."""


class CannotConnectError(ConnectionBrokenError):
    """No server answers at the address; nothing was sent."""


class BodyTooLargeError(Exception):
    """The answer is larger than the caller's limit."""


class _StaleError(Exception):
    """The server had closed this connection before the call."""


class Reply:
    """The status, the headers, and the body in pieces."""

    def __init__(self, connection: _Connection) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._connection = connection

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._connection.piece()) is not None:
            yield piece

    async def read(self) -> bytes:
        """The whole body. Raises BodyTooLargeError at the limit, because a body may be endless."""
        pieces: list[bytes] = []
        size = 0
        while (piece := await self._connection.piece()) is not None:
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BODY_BYTES:
                raise BodyTooLargeError(f"its answer has more than {MOST_BODY_BYTES >> 20} MiB")
        return b"".join(pieces)


class _Connection(asyncio.Protocol):
    """One TCP connection and its present answer. The parser calls the methods `on_…`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._broken = ""
        """The reason why the connection has ended."""
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._pieces: deque[bytes] = deque()
        self._ahead = 0
        self._without_body = 0
        self._received = False
        self._ends_with_connection = True
        self._complete = False
        self._may_go_on = False

    async def ask(self, request: bytes, *, reused: bool, once: bool) -> None:
        """Send, and read up to the headers of the answer."""
        assert self._transport is not None
        # Data before the request belongs to no answer, and uvloop's transports raise on a write after the end.
        if self._broken or self._received or (reused and once and self._has_news()):
            raise _StaleError if reused else ConnectionBrokenError(self._broken or "it answers before it is asked")
        self._transport.write(request)
        while not self.status:
            if self._broken:
                raise _StaleError if reused and not once and not self._received else ConnectionBrokenError(self._broken)
            await self._news()

    def _has_news(self) -> bool:
        """Whether the socket has data, or was closed, and the event loop has not noticed yet."""
        assert self._transport is not None
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def piece(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._pieces:
            if self._complete:
                return None
            if self._broken:
                raise ConnectionBrokenError(self._broken)
            await self._news()
        piece = self._pieces.popleft()
        self._ahead -= len(piece)
        if self._paused and not self._pieces and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def renew(self) -> bool:
        """Prepare the connection for the next call; returns False if that is not possible."""
        if not self._complete or not self._may_go_on or self._broken or self._paused:
            return False
        self._reset()
        return True

    def close(self) -> None:
        self._break("the connection was closed")
        # An abort does not wait until the other side has read the data.
        if self._transport is not None:
            self._transport.abort()

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._wake()

    # ---- events of the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance check: uvloop's transports are not subclasses of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received = True
        self._without_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as wrong:
            self._break(f"the answer broke off ({wrong})")
            self.close()
            return
        if not self._complete and self._without_body > _MOST_HEAD_BYTES:
            self._break("its answer does not come to an end with headers")
            self.close()
        if self._ahead > _MOST_AHEAD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and self._ends_with_connection and error is None and not self._broken:
            self._complete = True
        self._break("the connection was closed" if error is None else str(error) or type(error).__name__)

    # ---- events of the parser ----

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("more came than was asked for")  # ends the parsing, and the connection with it

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= _FINAL:
            self.status = status
        else:
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        self._pieces.append(body)
        self._ahead += len(body)

    def on_message_complete(self) -> None:
        if not self.status:
            self._ends_with_connection = True
            return
        self._complete = True
        self._may_go_on = self._parser.should_keep_alive()


class _Call:
    """Represents one call; `async with` gives its answer."""

    def __init__(self, client: HttpClient, request: bytes) -> None:
        self._client = client
        self._request = request
        self._connection: _Connection | None = None

    async def __aenter__(self) -> Reply:
        self._connection = await self._client.begin(self._request)
        return Reply(self._connection)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._connection is not None
        self._client.end(self._connection)


class HttpClient:
    """All calls to one server, with one set of headers."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        *,
        connect_within_s: float = CONNECT_WITHIN_S,
        way: Way | None = None,
        token: str | RunToken | None = None,
    ) -> None:
        """With a `way` the URL may name a host of the run. Each call sends the `token` that is current when it is
        made."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of an engine; it must be such as http://127.0.0.1:30000.")
        # Host names of a run are case-sensitive, but `hostname` is always lower case.
        named_host = parts.netloc.rpartition(":")[0]
        is_here = way is not None and named_host == way.here
        self._host, self._port = LOOPBACK if is_here else parts.hostname, parts.port or 80
        self._way = (way, named_host) if way is not None and way.leads_to(named_host) else None
        named = {"Host": parts.netloc, "Content-Type": "application/json", **headers}
        if any(sign in f"{name}{value}" for name, value in named.items() for sign in "\r\n"):
            raise ConfigError(f"The headers of calls to {url} have a line break in them.")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._token = token
        self._connect_within_s = connect_within_s
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    def ask(self, method: str, path: str, body: bytes = b"") -> _Call:
        """One call. Raises ConnectionBrokenError; the caller sets the deadline."""
        shown = "" if self._token is None else f"Authorization: Bearer {current(self._token)}\r\n"
        trace = f"{HEADER}: {context.header()}\r\n" if (context := trace_context.current()) is not None else ""
        spans.sent_to(self)
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}{shown}{trace}Content-Length: {len(body)}\r\n\r\n"
        return _Call(self, head.encode("latin-1") + body)

    async def close(self) -> None:
        for connection in list(self._open):
            self._drop(connection)
        # Aborted transports close in the next turn of the loop.
        await asyncio.sleep(0)

    # ---- for a call ----

    async def begin(self, request: bytes, *, once: bool = False) -> _Connection:
        """`once`: the call must not run twice."""
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await self._connect()
            try:
                await connection.ask(request, reused=reused, once=once)
            except _StaleError:
                self._drop(connection)
            except BaseException:
                self._drop(connection)
                raise
            else:
                return connection

    def end(self, connection: _Connection) -> None:
        if connection in self._open and connection.renew():
            self._idle.append(connection)
        else:
            self._drop(connection)

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_within_s):
                connection = await self._opened(asyncio.get_running_loop())
        except TimeoutError:
            raise CannotConnectError(f"no connection within {self._connect_within_s:g} s") from None
        except OSError as broken:
            raise CannotConnectError(str(broken) or type(broken).__name__) from broken
        self._open.add(connection)
        return connection

    async def _opened(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        if self._way is None:
            return (await loop.create_connection(_Connection, self._host, self._port))[1]
        way, host = self._way
        end = await way.open(host, self._port)
        return (await loop.create_unix_connection(_Connection, sock=end))[1]

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()
