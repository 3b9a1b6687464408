"""The HTTP client against servers that send exactly the bytes of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from agentrl.errors import ConfigError
from agentrl.http import http_client
from agentrl.http.http_client import BodyTooLargeError, ConnectionBrokenError, HttpClient
from tests.waiting import aeventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Say = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each connection in its own way; the last way serves all further ones."""

    def __init__(self, says: Sequence[Say]) -> None:
        self._says = says
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        say = self._says[min(self.connections, len(self._says) - 1)]
        self.connections += 1
        # A client that needs a connection no more closes it without notice.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            await say(reader, writer)

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request with its body. Returns its bytes."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        return self.requests[-1]


Serving = Callable[..., Awaitable[tuple[HttpClient, Server]]]


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    closing: list[Callable[[], Awaitable[None]]] = []

    async def made(*says: Callable[[Server], Say]) -> tuple[HttpClient, Server]:
        ways: list[Say] = []
        server = Server(ways)
        ways += [say(server) for say in says]
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}", {"Authorization": "Bearer t"})

        async def close() -> None:
            await client.close()
            listener.close()
            await listener.wait_closed()

        closing.append(close)
        return client, server

    yield made
    for close in closing:
        await close()


def every_time(*pieces: bytes) -> Callable[[Server], Say]:
    """Answers each request on a connection with these pieces, one after the other."""

    def of(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await server.request(reader)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)

        return say

    return of


def once(*pieces: bytes) -> Callable[[Server], Say]:
    """Answers one request, then closes the connection."""

    def of(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

        return say

    return of


def at_once(server: Server) -> Say:
    """Closes the connection before it reads anything."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    return say


async def read(client: HttpClient, path: str = "/x", body: bytes = b"") -> tuple[int, bytes]:
    async with client.ask("POST", path, body) as reply:
        return reply.status, await reply.read()


async def test_consecutive_calls_share_a_connection(serving: Serving) -> None:
    client, server = await serving(every_time(OK))
    assert await read(client, "/a", b"{}") == (200, b"ok")
    assert await read(client, "/b") == (200, b"ok")
    assert server.connections == 1
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"POST /a HTTP/1.1", b"{}")
    assert b"Authorization: Bearer t" in head


async def test_concurrent_calls_have_their_own_connections(serving: Serving) -> None:
    client, server = await serving(every_time(OK))
    answers = await asyncio.gather(*(read(client, f"/{number}") for number in range(8)))
    assert answers == [(200, b"ok")] * 8
    assert server.connections == 8


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"],
        [bytes([one]) for one in b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde"],
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"],
    ],
    ids=["in chunks", "byte by byte", "announced"],
)
async def test_answer_is_complete_in_any_pieces(serving: Serving, pieces: list[bytes]) -> None:
    client, server = await serving(every_time(*pieces))
    for _ in range(2):
        assert await read(client) == (200, b"abcde")
    assert server.connections == 1


async def test_answer_without_a_length_ends_with_its_connection(serving: Serving) -> None:
    client, server = await serving(once(b"HTTP/1.1 200 OK\r\n\r\nabc", b"de"))
    assert await read(client) == (200, b"abcde")
    assert await read(client) == (200, b"abcde")
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200",
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    ],
)
async def test_broken_or_invalid_answer_is_an_error_without_a_retry(serving: Serving, answer: bytes) -> None:
    client, server = await serving(once(answer))
    with pytest.raises(ConnectionBrokenError):
        await read(client)
    assert server.connections == 1


async def test_connection_that_the_server_had_closed_meanwhile_is_replaced(serving: Serving) -> None:
    """The client may have noticed the end already, or not yet."""
    closing = asyncio.Event()

    def then_closes(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK)
            await closing.wait()

        return say

    client, server = await serving(then_closes, then_closes, every_time(OK))
    assert await asyncio.gather(read(client, "/a"), read(client, "/b")) == [(200, b"ok")] * 2
    closing.set()
    await aeventually(lambda: is_broken(client))
    assert await read(client, "/c") == (200, b"ok")
    assert sorted(request.split(b" ")[1] for request in server.requests) == [b"/a", b"/b", b"/c"]


async def is_broken(client: HttpClient) -> bool:
    return any(connection._broken for connection in client._idle)


async def test_unexpected_data_is_not_the_next_answer(serving: Serving) -> None:
    """Some servers send a response before they close an idle connection."""
    saying = asyncio.Event()

    def says_goodbye(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK)
            await saying.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 3\r\n\r\nbye")
            await reader.read()

        return say

    async def has_received() -> bool:
        return client._idle[0]._received

    client, _ = await serving(says_goodbye, every_time(OK))
    assert await read(client) == (200, b"ok")
    saying.set()
    await aeventually(has_received)
    assert await read(client) == (200, b"ok")


async def test_unread_answer_blocks_no_other_call(serving: Serving) -> None:
    """All data has arrived, and the client has paused reading because the caller reads nothing."""
    size = http_client._MOST_AHEAD_BYTES + 1
    client, _ = await serving(every_time(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, bytes(size)))

    async def has_come() -> bool:
        return reply._connection._complete

    async with client.ask("GET", "/x") as reply:
        await aeventually(has_come)
    async with asyncio.timeout(30):
        _, body = await read(client)
    assert len(body) == size


async def test_answer_cut_by_a_closed_client_is_an_error(serving: Serving) -> None:
    def without_length(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
            await reader.read()

        return say

    client, _ = await serving(without_length)
    async with client.ask("GET", "/x") as reply:
        assert await anext(reply.pieces()) == b"abc"
        await client.close()
        with pytest.raises(ConnectionBrokenError):
            await reply.read()


async def test_call_that_may_have_arrived_is_not_repeated(serving: Serving) -> None:
    """The connection was used before, and the server closes it after it has begun to answer."""

    def begins(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK)
            await server.request(reader)
            writer.write(b"HTTP/1.1 2")
            await writer.drain()

        return say

    client, server = await serving(begins, every_time(OK))
    assert await read(client) == (200, b"ok")
    with pytest.raises(ConnectionBrokenError):
        await read(client)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer", [OK + OK, OK + b"rubbish", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"]
)
async def test_connection_with_extra_data_or_close_is_not_reused(serving: Serving, answer: bytes) -> None:
    client, server = await serving(every_time(answer))

    async def replaced() -> bool:
        status, body = await read(client)
        assert (status, body) == (200, b"ok")
        return server.connections > 1

    await aeventually(replaced)


async def test_abandoned_answer_closes_the_connection(serving: Serving) -> None:
    heard_the_end = asyncio.Event()

    def endless(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab")
            assert await reader.read() == b""
            heard_the_end.set()

        return say

    client, _ = await serving(endless, every_time(OK))
    async with client.ask("GET", "/x") as reply:
        async for piece in reply.pieces():
            assert piece == b"ab"
            break
    await heard_the_end.wait()
    assert await read(client) == (200, b"ok")


async def test_call_that_is_cancelled_closes_the_connection(serving: Serving) -> None:
    wanted, heard_the_end = asyncio.Event(), asyncio.Event()

    def silent(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            wanted.set()
            assert await reader.read() == b""
            heard_the_end.set()

        return say

    client, _ = await serving(silent)
    call = asyncio.create_task(read(client))
    await wanted.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await heard_the_end.wait()


async def test_slow_reader_gets_little_in_advance(serving: Serving) -> None:
    """The server can send only a part while the caller reads nothing, and the rest afterwards."""
    size, sent = 64 << 20, 0

    def much(server: Server) -> Say:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            while sent < size:
                writer.write(bytes(1 << 20))
                sent += 1 << 20
                await writer.drain()

        return say

    client, _ = await serving(much)
    async with client.ask("GET", "/x") as reply:
        before = -1
        while before != sent:
            before = sent
            for _ in range(100):
                await asyncio.sleep(0.001)
        assert 0 < sent < size
        assert len(await reply.read()) == size


async def test_endless_answer_is_abandoned(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(start: bytes, piece: bytes) -> Callable[[Server], Say]:
        def of(server: Server) -> Say:
            async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await server.request(reader)
                writer.write(start)
                while not writer.is_closing():
                    writer.write(piece)
                    await writer.drain()

            return say

        return of

    monkeypatch.setattr(http_client, "MOST_BODY_BYTES", 1 << 20)
    client, _ = await serving(endless(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 16)))
    with pytest.raises(BodyTooLargeError):
        await read(client)
    client, _ = await serving(endless(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 1000))
    with pytest.raises(ConnectionBrokenError, match="headers"):
        await read(client)
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    client, _ = await serving(endless(start, b"X-More: and more\r\n" * 1000))
    with pytest.raises(ConnectionBrokenError, match="headers"):
        await read(client)


async def test_closed_port_is_a_broken_connection_and_a_wrong_address_a_sentence(serving: Serving) -> None:
    client, _ = await serving(at_once)
    with pytest.raises(ConnectionBrokenError):
        await read(client)
    with pytest.raises(ConnectionBrokenError):
        await read(HttpClient("http://127.0.0.1:1", {}))
    with pytest.raises(ConfigError, match="no address"):
        HttpClient("ftp://127.0.0.1", {})
    with pytest.raises(ConfigError, match="line break"):
        HttpClient("http://127.0.0.1:1", {"Authorization": "Bearer t\r\nX: y"})
