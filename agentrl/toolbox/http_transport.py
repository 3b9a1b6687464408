"""The requests of the SDK's client over the connections of `agentrl.http`, which cost a fraction of its own.

Invariants:
- A request is sent once, and again only if nothing of it was sent: it may be a tool call.
- If a response is not read to its end, its connection is closed.
- What a server sent cannot add a header to a request.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from urllib.request import getproxies

import httpx2

from agentrl.http.http_client import CannotConnectError, ConnectionBrokenError, HttpClient, Reply


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
