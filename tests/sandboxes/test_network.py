"""The network of a sandbox with a list of hosts: real servers and clients, and what clients try against the list."""

from __future__ import annotations

import asyncio
import http.server
import logging
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.config.network_rules import NetworkRules
from agentrl.sandboxes import network_proxy
from agentrl.sandboxes.network_access import NetworkAccess
from agentrl.toolbox.api_messages import OpenSession
from agentrl.toolbox.service_report import parts_of
from tests.sandboxes.attacked_run import Run, attacked
from tests.waiting import aeventually

PROXY = "http://127.0.0.1:3128"
FETCH = """
import ssl, urllib.error, urllib.request
try:
    found = urllib.request.urlopen({url!r}, timeout=20, context=ssl._create_unverified_context()).read().decode()
except urllib.error.HTTPError as refused:
    found = f'{{refused.code}} {{refused.read().decode()}}'
except urllib.error.URLError as refused:
    found = str(refused)
"""


class _Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(f"page {self.path} of {self.headers['Host']}")

    def do_POST(self) -> None:
        self._answer(f"got {len(self.rfile.read(int(self.headers['Content-Length'])))}")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


def _serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as web:
        if tls is not None:
            web.socket = tls.wrap_socket(web.socket, server_side=True)
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        yield web.server_address[1]
        web.shutdown()
        thread.join(10)


@pytest.fixture
def web() -> Iterator[int]:
    yield from _serving()


@pytest.fixture
def other_web() -> Iterator[int]:
    yield from _serving()


@pytest.fixture
def secure_web(tmp_path: Path) -> Iterator[int]:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    yield from _serving(context)


@pytest.fixture
async def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web: int, secure_web: int) -> AsyncIterator[Run]:
    hosts = [f"localhost:{web}", f"localhost:{secure_web}", "*.example.org", "metadata.example.net"]
    async with attacked(Run(tmp_path, monkeypatch), network=hosts) as run:
        yield run


async def fetched(run: Run, url: str, *, session: str = "attack") -> str:
    return await run.attack(FETCH.format(url=url), session=session)


async def ran(run: Run, *command: str) -> str:
    code = f"import subprocess; done = subprocess.run({command!r}, capture_output=True, text=True, timeout=20)"
    return await run.attack(f"{code}; found = done.stdout + done.stderr")


async def test_listed_hosts_are_reached_by_python_curl_and_node(listed: Run, web: int, secure_web: int) -> None:
    page = f"page /a?b=c of localhost:{web}"
    assert await fetched(listed, f"http://localhost:{web}/a?b=c") == page
    assert await fetched(listed, f"https://localhost:{secure_web}/a") == f"page /a of localhost:{secure_web}"
    assert await ran(listed, "curl", "-s", f"http://localhost:{web}/a?b=c") == page
    assert await ran(listed, "curl", "-sk", "--data", "x" * 100_000, f"https://localhost:{secure_web}/") == "got 100000"
    if shutil.which("node"):
        script = (
            "require('http').get({host: '127.0.0.1', port: 3128, path: 'http://localhost:%d/a?b=c'}, "
            "answer => answer.on('data', piece => process.stdout.write(piece)))"
        )
        assert await ran(listed, "node", "-e", script % web) == page


async def test_refused_hosts_are_named_to_the_caller_in_the_row_and_in_the_log(
    listed: Run, other_web: int, secure_web: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    where = "(tools.attacked.sandbox.network)."
    assert (await fetched(listed, "http://evil.test/")).strip() == f"403 evil.test:80 is not listed {where}"
    tunnel = await fetched(listed, "https://evil.test/")
    assert f"Tunnel connection failed: 403 evil.test:443 is not listed {where}" in tunnel
    only = f"localhost:{other_web} is allowed at"
    assert only in await ran(listed, "curl", "-s", f"http://localhost:{other_web}/")
    assert "403" in await ran(listed, "curl", "-sv", "-k", "https://example.org/")
    await aeventually(lambda: listed.hands.server("attacked").refused == 4)
    (part,) = [part for part in parts_of(listed.hands.toolbox.servers()) if part.name == "attacked"]
    assert part.status.endswith("; the network refused 4 connections, last: example.org:443 is not listed")
    assert "The sandbox of attacked was refused its network: evil.test:80 is not listed" in caplog.text
    assert listed.hands.server("other").refused == 0


async def test_without_the_proxy_there_is_no_way_out(listed: Run, web: int) -> None:
    for address in (("127.0.0.1", web), ("192.0.2.1", 80)):
        answer = await listed.attack(f"import socket; socket.create_connection({address!r}, 5)")
        assert answer.startswith(("ConnectionRefusedError", "OSError: [Errno 101]")), answer
    assert (await listed.attack("import socket; socket.getaddrinfo('example.org', 80)")).startswith("gaierror")
    for url in (
        f"http://127.0.0.1:{web}/",
        f"http://[::1]:{web}/",
        f"http://0x7f.1:{web}/",
        f"http://2130706433:{web}/",
    ):
        assert "403" in await ran(
            listed, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--proxy", PROXY, "--noproxy", "", url
        )


async def test_malformed_requests_are_refused_and_harm_no_one(listed: Run, web: int) -> None:
    for request in (
        "NONSENSE", "GET /path HTTP/1.1", "GET https://localhost/ HTTP/1.1", "CONNECT localhost HTTP/1.1",
        "GET http://local\x1bhost/ HTTP/1.1", "CONNECT [::1 HTTP/1.1", "GET http://localhost:99999/ HTTP/1.1",
        "GET ftp://localhost/ HTTP/1.1", "GET http:// HTTP/1.1",
    ):  # fmt: skip
        assert (await sent(listed, request.encode() + b"\r\n\r\n")).startswith("b'HTTP/1.1 400 "), request
    assert (await sent(listed, b"GET http://localhost/ HTTP/1.1\r\nX: " + b"x" * 80_000)).startswith("b'HTTP/1.1 431 ")
    # The second request of a connection is for another host, and is not passed on.
    host = f"localhost:{web}"
    both = f"GET http://{host}/1 HTTP/1.1\r\nHost: evil.test\r\n\r\nGET http://evil.test/2 HTTP/1.1\r\n\r\n"
    answer = await sent(listed, both.encode())
    assert f"page /1 of {host}" in answer
    assert "evil" not in answer


async def sent(run: Run, data: bytes) -> str:
    code = f"""
import socket
with socket.create_connection(('127.0.0.1', 3128), 20) as connection:
    connection.sendall({data!r})
    found = b''
    while piece := connection.recv(65536):
        found += piece
"""
    return await run.attack(code)


async def test_one_sandbox_that_holds_all_its_connections_leaves_others_theirs(listed: Run, web: int) -> None:
    code = "import socket; found = held = [socket.create_connection(('127.0.0.1', 3128), 5) for _ in range(100)]"
    assert "socket" in await listed.attack(f"{code}; import builtins; builtins.held = held")
    replay = await listed.hands.toolbox.open(_replay("second"))
    assert replay.created
    assert await fetched(listed, f"http://localhost:{web}/a", session="second") == f"page /a of localhost:{web}"


def _replay(session: str) -> OpenSession:
    return OpenSession(id=session, servers=("attacked",), wait_s=20.0, replays=True)


async def test_proxy_that_dies_is_started_again_for_the_same_sandbox(listed: Run, web: int) -> None:
    page = f"page /a of localhost:{web}"
    assert await fetched(listed, f"http://localhost:{web}/a") == page
    (proxy,) = _proxies()
    proxy.kill()
    assert await fetched(listed, f"http://localhost:{web}/b") == f"page /b of localhost:{web}"
    (second,) = _proxies()
    assert second.pid != proxy.pid
    await listed.hands.toolbox.close("attack")
    await aeventually(lambda: len([each for each in second.net_connections() if each.status == "LISTEN"]) <= 1)


def _proxies() -> list[psutil.Process]:
    running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in running if "agentrl.sandboxes.network_proxy" in each.cmdline()]


async def test_name_that_leads_to_another_address_later_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["203.0.113.1", "127.0.0.1"], ["169.254.169.254"], ["198.51.100.7", "10.0.0.1"], ["127.0.0.1"]]
    asked: list[str] = []

    async def resolve(_loop: Any, host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers.pop(0)]

    connected: list[Any] = []

    async def connect(host: Any = None, port: Any = None, **options: Any) -> Any:
        if "sock" in options:
            return await opened(**options)
        connected.append(host)
        raise OSError("no way")

    opened = asyncio.open_connection
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    monkeypatch.setattr("agentrl.config.network_rules.is_public", lambda address: str(address).startswith("203."))
    refused: list[str] = []

    class Report(network_proxy.RefusalReport):
        def refused(self, sandbox: int, what: str) -> None:
            refused.append(what)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = listener.getsockname()
        sandbox = network_proxy.SandboxListener(
            1, "environments.web", NetworkRules(["rebinds.test"]), listener, Report()
        )
        for _ in range(len(answers)):
            reader, writer = await opened(*address)
            writer.write(b"CONNECT rebinds.test:443 HTTP/1.1\r\n\r\n")
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 403 ")
            assert b"(environments.web.sandbox.network)" in said
            writer.close()
        answers.append(["203.0.113.1"])
        reader, writer = await opened(*address)
        writer.write(b"CONNECT rebinds.test:443 HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        writer.close()
        await sandbox.close()
    assert connected == ["203.0.113.1"], "the address that was checked"
    assert len(asked) == 5
    assert len(refused) == 4


async def test_sandbox_that_sends_a_file_loses_its_network_and_leaves_nothing_open(tmp_path: Path) -> None:
    access = NetworkAccess()
    (tmp_path / "sent").touch()
    with (
        access.admit("web", ["example.org"], section="environments") as theirs,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        socket.send_fds(theirs, [b"listening"], [listener.fileno()])
        with (tmp_path / "sent").open() as file:
            assert [each.place for each in access._admitted.values()] == ["environments.web"]
            for _ in range(20):
                socket.send_fds(theirs, [b"more"], [file.fileno()])
        await aeventually(lambda: not access._admitted, what="the sandbox is forgotten")
    opened = [each.path for each in psutil.Process().open_files()]
    assert str(tmp_path / "sent") not in opened


def test_proxy_ends_with_its_toolbox() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen([sys.executable, "-m", "agentrl.sandboxes.network_proxy"], stdin=theirs)
    ours.close()
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    "address",
    [
        *("0.1.2.3", "10.1.2.3", "100.64.0.1", "127.0.0.2", "169.254.169.254", "172.31.0.1", "192.0.0.1", "192.0.2.1"),
        *("192.88.99.1", "192.168.0.1", "198.19.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
        *("::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::808:808", "100::1"),
        *("100:0:0:1::1", "2001::1", "2001:2::1", "2001:10::1", "2001:db8::1", "2002:a00:1::1", "3fff::1", "5f00::1"),
        *("fc00::1", "fe80::1", "fec0::1", "ff02::1", "2002:c058:6301::1", "64:ff9b::192.88.99.1"),
    ],
)
def test_special_address_is_refused_for_a_listed_name(address: str) -> None:
    assert NetworkRules(["example.org"]).refused_address("example.org", address, 443, of_this_host=False)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_public_address_is_allowed_for_a_listed_name(address: str) -> None:
    assert not NetworkRules(["example.org"]).refused_address("example.org", address, 443, of_this_host=False)
