"""A tool server behind a URL: streamable HTTP, or the older transport over server-sent events (SSE).

The SDK's client sends its requests over the connections of `agentrl.http`, which cost a fraction of its own.

Invariants:
- Memory for an answer is bounded: each long string in it keeps only both ends, and an endless answer is cut off.
- Headers, which have secrets, never follow a redirect to another host.
- An answer that breaks off fails its own call, not the connection.
- A message that the server refused because it has forgotten its MCP session did not run.
- A request is sent once, and again only if nothing of it was sent: it may be a tool call.
- If a response is not read to its end, its connection is closed.
- What a server sent cannot add a header to a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any
from urllib.request import getproxies

import anyio.lowlevel
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from agentrl.http.http_client import CannotConnectError, ConnectionBrokenError, HttpClient, Reply
from agentrl.toolbox.bounded_lines import KEPT_BYTES, MOST_BYTES, JsonShortener
from agentrl.toolbox.half_characters import WholeCharacters
from agentrl.toolbox.stdio_transport import Activity


def transport_for(url: str, *, connect_within_s: float) -> httpx2.AsyncBaseTransport | None:
    """None for connections that need the SDK's own transport: TLS, or a proxy that the environment names."""
    proxies = getproxies()
    if not url.lower().startswith("http://") or "http" in proxies or "all" in proxies:
        return None
    return _Transport(connect_within_s)


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, connect_within_s: float) -> None:
        self._connect_within_s = connect_within_s
        self._clients: dict[str, HttpClient] = {}
        """By address; a redirect may lead to another one."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.scheme != "http":
            raise httpx2.UnsupportedProtocol(f"{request.url} is not plain HTTP")
        client = self._client_of(request.url)
        head, body = _head_of(request), await request.aread()
        with _as_of_the_sdk():
            connection = await client.begin(head + body, once=True)
        reply = Reply(connection)
        return httpx2.Response(
            reply.status, headers=reply.headers, stream=_Body(reply, lambda: client.end(connection)), request=request
        )

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _client_of(self, url: httpx2.URL) -> HttpClient:
        address = url.netloc.decode("ascii")
        if address not in self._clients:
            self._clients[address] = HttpClient(f"http://{address}", {}, connect_within_s=self._connect_within_s)
        return self._clients[address]


class _Body(httpx2.AsyncByteStream):
    def __init__(self, reply: Reply, on_end: Callable[[], None]) -> None:
        self._reply = reply
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_of_the_sdk():
            async for piece in self._reply.pieces():
                yield piece

    async def aclose(self) -> None:
        self._on_end()


def _head_of(request: httpx2.Request) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise httpx2.LocalProtocolError(f"a header of the request to {request.url} has a line break in it")
    return b"\r\n".join([*lines, b"", b""])


@contextlib.contextmanager
def _as_of_the_sdk() -> Iterator[None]:
    try:
        yield
    except CannotConnectError as broken:
        raise httpx2.ConnectError(str(broken)) from broken
    except ConnectionBrokenError as broken:
        raise httpx2.ReadError(str(broken)) from broken


SSE_KEPT_BYTES = 200 << 10
"""Bytes kept of each end of a long string over SSE, because the SDK's client ends an SSE connection at an event of 1
MiB."""
MOST_READ_BYTES = 512 << 20
"""The most bytes of one answer before it is shortened."""
CONNECT_WITHIN_S = 30.0
EVENTS, JSON = "text/event-stream", "application/json"


class Sent:
    """How the server answered the HTTP requests of one call."""

    __slots__ = ("forgotten", "status")

    def __init__(self) -> None:
        self.status = 0
        """The status by which the server refused the message; 0 if it took it."""
        self.forgotten = False
        """The server does not know the MCP session of the message."""


SENT: ContextVar[Sent | None] = ContextVar("SENT", default=None)
"""The SDK sends a message in the context of its call."""


class HttpPeer:
    """A server behind a URL. Over streamable HTTP only a request shows that it is gone."""

    advice = ""

    def __init__(self, url: str, headers: Mapping[str, str], *, sse: bool = False) -> None:
        self._url = url
        self._headers = dict(headers)
        self._sse = sse
        self._why = ""
        self.ended = asyncio.Event()

    @property
    def story(self) -> str:
        return f"{self._why} at {self._url}" if self._why else f"at {self._url}"

    @property
    def activity(self) -> Activity:
        return Activity()

    def connected(self) -> AbstractAsyncContextManager[Any]:
        if self._sse:
            return sse_client(self._url, httpx_client_factory=self.http_client)
        return self._streamable()

    @asynccontextmanager
    async def _streamable(self) -> AsyncIterator[Any]:
        async with (
            self.http_client() as http,
            streamable_http_client(self._url, http_client=http, max_sse_event_size=MOST_BYTES) as streams,
        ):
            yield streams

    def http_client(self, *ignored: object, **also_ignored: object) -> httpx2.AsyncClient:
        # A finite pool of connections deadlocks: every session holds one open for events.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx2.Timeout(CONNECT_WITHIN_S, read=None)
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._leave], "response": [self._look]}
        transport = transport_for(self._url, connect_within_s=CONNECT_WITHIN_S)
        return httpx2.AsyncClient(
            headers=self._headers, limits=limits, timeout=timeout, event_hooks=hooks, transport=transport
        )

    async def _leave(self, request: httpx2.Request) -> None:
        """A hook for every request: a session whose server is gone is not closed there."""
        if request.method == "DELETE":
            # Stops here if the connection broke, so that nothing connects again.
            await anyio.lowlevel.checkpoint()
            if self.ended.is_set():
                raise httpx2.ConnectError(self._why)

    async def _look(self, response: httpx2.Response) -> None:
        """A hook for every response: note refusals, and bound the body."""
        request = response.request
        if response.status_code >= HTTPStatus.BAD_REQUEST and request.method != "DELETE":
            self._refused(request, response.status_code)
        kind = response.headers.get("content-type", "").lower()
        if not kind.startswith((EVENTS, JSON)):
            return
        listens = self._sse and request.method == "GET"
        encoded = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
        response.stream = _BoundedBody(
            encoded,
            kept=SSE_KEPT_BYTES if self._sse else KEPT_BYTES,
            is_json=kind.startswith(JSON),
            on_end=(lambda: self._end("its events have ended")) if listens else None,
        )
        response.headers.pop("content-encoding", None)

    def _refused(self, request: httpx2.Request, status: int) -> None:
        sent = SENT.get() or Sent()
        sent.status = status
        if self._sse:
            # The client of the SDK sends nothing more after a refused message.
            sent.forgotten = status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            self._end(f"it answered a message with {status}")
        elif status == HTTPStatus.NOT_FOUND and MCP_SESSION_ID in request.headers:
            sent.forgotten = True
            self._end("it has forgotten the MCP session")

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self.ended.set()


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of a response: decompressed, in whole characters, without the middle of long strings."""

    def __init__(
        self, encoded: httpx2.Response, *, kept: int, is_json: bool, on_end: Callable[[], None] | None
    ) -> None:
        self._encoded = encoded
        self._kept = kept
        self._is_json = is_json
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        whole, shorter = WholeCharacters(), JsonShortener(self._kept)
        read = passed = 0
        try:
            async for piece in self._encoded.aiter_bytes():
                shorter.feed(whole.feed(piece))
                passed += len(shorter.copied)
                # An event ends with a line break; the client of the SDK bounds what has passed of it.
                read = len(piece) if not self._is_json and b"\n" in piece else read + len(piece)
                if read > MOST_READ_BYTES or (self._is_json and passed > MOST_BYTES):
                    raise httpx2.StreamError("the answer is too long")
                yield bytes(shorter.copied)
                shorter.copied.clear()
            shorter.feed(whole.end())
            yield bytes(shorter.copied)
        except httpx2.TransportError as broken:
            raise httpx2.StreamError(f"the answer broke off ({broken})") from broken
        finally:
            if self._on_end is not None:
                self._on_end()

    async def aclose(self) -> None:
        await self._encoded.aclose()
