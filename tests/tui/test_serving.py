"""Serving the console to browsers: access, and the effects of messages from a page."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import UsageError
from tests.cli.scripted import Scripted
from tui import __main__ as program
from tui.serving import access, console_process, web_server
from tui.serving.access import AccessPolicy, Decision, address
from tui.serving.console_process import ConsoleProcess
from tui.serving.web_server import WIDTHS, handle_message, within

ACCESS = AccessPolicy(8766)
HOST = "127.0.0.1:8766"
COOKIE = {ACCESS.cookie_name: ACCESS.cookie}


async def test_taken_address_is_reported_as_one_json_document() -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with taken:
        listen = f"127.0.0.1:{taken.sockets[0].getsockname()[1]}"
        sent = ("--playback", "@demo", f"--serve={listen}", "--json")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tui", *sent, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        shown, beside = await process.communicate()
    error = json.loads(shown)["error"]
    assert (process.returncode, error["name"], beside) == (2, "usage", b"")
    assert error["message"] == f"Cannot listen on {listen}: address already in use."
    assert "--listen 127.0.0.1:0" in error["hint"]


def judged(**given: Any) -> access.Verdict:
    sent: dict[str, Any] = {"host": HOST, "origin": None, "token": None, "cookies": {}, "is_socket": False}
    return ACCESS.judge(**(sent | given))


def test_cookie_replaces_the_token_and_allows_requests() -> None:
    assert judged(token=ACCESS.token).decision is Decision.REDIRECTED
    assert judged(cookies=COOKIE).decision is Decision.ALLOWED
    assert judged(cookies=COOKIE, is_socket=True, origin=f"http://{HOST}").decision is Decision.ALLOWED
    assert ACCESS.cookie != ACCESS.token
    assert AccessPolicy(8766).token != ACCESS.token


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({}, access.NEEDS_ADDRESS),
        ({"token": ""}, access.WRONG_TOKEN),
        ({"token": "x" * 32, "cookies": COOKIE}, access.WRONG_TOKEN),
        ({"token": ACCESS.cookie}, access.WRONG_TOKEN),
        ({"cookies": {ACCESS.cookie_name: ACCESS.token}}, access.NEEDS_ADDRESS),
        ({"cookies": {"agentrl-console-1": ACCESS.cookie}}, access.NEEDS_ADDRESS),
        ({"host": "evil.example:8766", "cookies": COOKIE}, access.WRONG_NAME),
        ({"host": "127.0.0.1:1", "token": ACCESS.token}, access.WRONG_NAME),
        ({"host": "", "token": ACCESS.token}, access.WRONG_NAME),
        ({"origin": "http://evil.example", "cookies": COOKIE}, access.WRONG_ORIGIN),
        ({"origin": "null", "cookies": COOKIE}, access.WRONG_ORIGIN),
        ({"origin": f"https://{HOST}", "cookies": COOKIE}, access.WRONG_ORIGIN),
        ({"cookies": COOKIE, "is_socket": True}, access.WRONG_ORIGIN),
        ({"token": ACCESS.token, "is_socket": True, "origin": f"http://{HOST}"}, access.NEEDS_ADDRESS),
    ],
)
def test_other_requests_are_refused_with_a_sentence(sent: dict[str, Any], why: str) -> None:
    assert judged(**sent) == access.Verdict(Decision.REFUSED, why)
    assert why.endswith(".")


@given(shown=st.text())
def test_other_texts_are_rejected_as_token_or_cookie(shown: str) -> None:
    assert judged(token=shown).decision is Decision.REFUSED
    assert judged(cookies={ACCESS.cookie_name: shown}).decision is Decision.REFUSED


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:8766", "[::1]:9"])
def test_addresses_of_this_host_are_accepted(listen: str) -> None:
    host, port = address(listen)
    assert host in ("127.0.0.1", "::1")
    assert port == int(listen.rpartition(":")[2])


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("0.0.0.0:8766", "on this host only, and 0.0.0.0 is not on it"),
        ("[::]:8766", "is not on it"),
        ("example.org:80", "is not on it"),
        ("192.168.1.7:80", "is not on it"),
        ("127.0.0.2:80", "Browsers do not treat 127.0.0.2 as this host"),
        ("8766", "is not an address"),
        ("127.0.0.1:", "is not an address"),
        ("127.0.0.1:70000", "is not an address"),
    ],
)
def test_addresses_of_other_hosts_are_refused(listen: str, why: str) -> None:
    with pytest.raises(UsageError, match=why.replace(".", r"\.")):
        address(listen)


@given(st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
def test_size_of_a_page_is_limited(sent: Any) -> None:
    assert WIDTHS[0] <= within(sent, WIDTHS, 80) <= WIDTHS[1]


class Ends:
    """Both ends of the server: records what reaches the console and the page."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    async def send_keys(self, text: str) -> None:
        self.received.append(text)

    async def send_event(self, **event: Any) -> None:
        self.received.append(event)

    async def send_json(self, what: Any) -> None:
        self.received.append(what)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
async def test_meaningless_messages_are_ignored(message: Any) -> None:
    ends: Any = Ends()
    for text in (json.dumps(message), "no json", "[", '["stdin", 7]', '["resize", null]', '["type"]', "{}", "[]"):
        await handle_message(text, ends, ends)
    assert ends.received == []


async def test_deeply_nested_message_is_ignored() -> None:
    ends: Any = Ends()
    await handle_message("[" * 200_000, ends, ends)
    assert ends.received == []


async def test_messages_of_a_page_reach_its_console() -> None:
    ends: Any = Ends()
    for message in (["stdin", "2é"], ["resize", {"width": 1e9, "height": "x"}], ["focus"], ["ping", 7]):
        await handle_message(json.dumps(message), ends, ends)
    resized = {"type": "resize", "width": WIDTHS[1], "height": 24}
    assert ends.received == ["2é", resized, {"type": "focus"}, ["pong", 7]]


class Pipe:
    """The process of a console and its pipe, which keeps all written bytes."""

    def __init__(self) -> None:
        self.stdin = self
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        pass


async def test_half_of_a_surrogate_pair_is_replaced() -> None:
    process: Any = Pipe()
    page: Any = Ends()
    await handle_message('["stdin", "a\\ud800"]', ConsoleProcess(process), page)
    assert process.written == b"D\x00\x00\x00\x02a?"


async def test_console_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_process, "GRACE_S", 0.05)
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    process.send_signal(signal.SIGSTOP)
    page: Any = Ends()
    stopped = ConsoleProcess(process)
    with pytest.raises(TimeoutError):
        # More than the pipe and its buffer can hold.
        await handle_message(json.dumps(["stdin", "a" * (1 << 20)]), stopped, page)
    await stopped.end()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("host", "line"), [(HOST, f"ws://{HOST}"), ("evil.example:8766", "")])
async def test_foreign_host_name_does_not_appear_in_headers(host: str, line: str) -> None:
    application = web_server.Server(ACCESS, ()).application()
    async with TestClient(TestServer(application)) as browser:
        answer = await browser.get("/", headers={"Host": host})
        assert answer.status == 403
        allowed = answer.headers["Content-Security-Policy"].rpartition("connect-src ")[2]
        assert allowed == f"'self' {line}".strip()
        assert "evil" not in f"{answer.headers}{await answer.text()}"


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        ((), ["--run=demo", "--read-only"]),
        (("--writable", "--no-mouse"), ["--run=demo", "--no-mouse"]),
        (("--writable", "--read-only"), ["--run=demo", "--read-only"]),
    ],
)
def test_every_page_shows_the_run_found_at_start_and_is_read_only_by_default(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...], passed: list[str]
) -> None:
    for name in ("AGENTRL_KEY", "AGENTRL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENTRL_HOME", str(coordinator.state_dir.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tui", "--serve=127.0.0.1:0", *line])
    found: list[str] = []

    async def serve(listen: str, options: Sequence[str], *, as_json: bool) -> None:
        found.extend(options)

    monkeypatch.setattr(web_server, "serve", serve)
    assert program.main() == 0
    assert found == passed
