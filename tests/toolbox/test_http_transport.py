"""Requests of the SDK's client over the connections of a run: each is sent once, and the server cannot add to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx2
import pytest

from agentrl.toolbox.http_peer import transport_for

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Who: me\r\n\r\nok"


class Server:
    """A server in a thread, so that it acts while the event loop of the client is blocked."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self.requests: list[bytes] = []
        self.may_close = threading.Event()
        self.closed = threading.Event()
        self._answers = answers
        """The answers on each connection, which is closed after its last answer."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for answers in self._answers:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            with connection:
                for answer in answers:
                    self.requests.append(connection.recv(1 << 16))
                    connection.sendall(answer)
                self.may_close.wait(30)
            self.closed.set()

    def end(self) -> None:
        self.may_close.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for server in made:
        server.end()


def client_of(url: str) -> httpx2.AsyncClient:
    transport = transport_for(url, connect_within_s=5)
    assert transport is not None
    return httpx2.AsyncClient(transport=transport, timeout=httpx2.Timeout(5, read=None))


async def test_answer_with_its_headers_over_one_connection(servers: list[Server]) -> None:
    server = Server([[OK, OK]])
    servers.append(server)
    async with client_of(server.url) as client:
        for body in ({"id": 1}, {"id": 2}):
            answer = await client.post(server.url, json=body, headers={"X-Run": "r"})
            assert (answer.status_code, answer.text, answer.headers["x-who"]) == (200, "ok", "me")
    first, second = server.requests
    assert first.startswith(b"POST /mcp HTTP/1.1\r\n")
    assert b"\r\nX-Run: r\r\n" in first
    assert first.endswith(b'{"id":1}')
    assert second.endswith(b'{"id":2}')


async def test_request_that_may_have_run_is_not_sent_again(servers: list[Server]) -> None:
    """The server reads it on a connection that was used before, and closes without a word."""
    server = Server([[OK, b""], [OK]])
    servers.append(server)
    server.may_close.set()
    async with client_of(server.url) as client:
        assert (await client.post(server.url, content=b"1")).text == "ok"
        with pytest.raises(httpx2.ReadError):
            await client.post(server.url, content=b"2")
        assert [each[-1:] for each in server.requests] == [b"1", b"2"]
        assert (await client.post(server.url, content=b"3")).text == "ok"


async def test_connection_that_ended_while_the_loop_stood_still_is_not_used(servers: list[Server]) -> None:
    server = Server([[OK], [OK]])
    servers.append(server)
    async with client_of(server.url) as client:
        assert (await client.post(server.url, content=b"1")).text == "ok"
        server.may_close.set()
        assert server.closed.wait(30)
        assert (await client.post(server.url, content=b"2")).text == "ok"
    assert len(server.requests) == 2


async def test_server_that_is_not_there_is_named(servers: list[Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    async with client_of(url) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(url)


async def test_line_break_in_a_header_is_refused() -> None:
    """A server names the MCP session, which goes into a header of later requests."""
    url = "http://127.0.0.1:1/"
    async with client_of(url) as client:
        with pytest.raises(httpx2.LocalProtocolError, match="line break"):
            await client.get(url, headers={"mcp-session-id": "a\r\nX-Admin: yes"})


def test_tls_and_proxies_are_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transport_for("https://example.org/mcp", connect_within_s=5) is None
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:3128")
    assert transport_for("http://example.org/mcp", connect_within_s=5) is None
