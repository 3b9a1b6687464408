"""Who may come in to a console that is shown to browsers, and what its messages can do."""

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
from tui.serving.web_server import WIDTHS, hear, within

GATE = AccessPolicy(8766)
HOST = "127.0.0.1:8766"
COOKIE = {GATE.cookie_name: GATE.cookie}


async def test_a_taken_address_is_told_in_one_document() -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with taken:
        listen = f"127.0.0.1:{taken.sockets[0].getsockname()[1]}"
        asked = ("--replay", "@demo", f"--serve={listen}", "--json")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tui", *asked, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        shown, beside = await process.communicate()
    error = json.loads(shown)["error"]
    assert (process.returncode, error["name"], beside) == (2, "usage", b"")
    assert error["message"] == f"Nobody can listen on {listen}: address already in use."
    assert "--listen 127.0.0.1:0" in error["hint"]


def judged(**given: Any) -> access.Verdict:
    asked: dict[str, Any] = {"host": HOST, "origin": None, "token": None, "cookies": {}, "is_socket": False}
    return GATE.judge(**(asked | given))


def test_the_token_is_changed_for_a_cookie_and_the_cookie_lets_in() -> None:
    assert judged(token=GATE.token).way is Decision.CHANGED
    assert judged(cookies=COOKIE).way is Decision.IN
    assert judged(cookies=COOKIE, is_socket=True, origin=f"http://{HOST}").way is Decision.IN
    assert GATE.cookie != GATE.token
    assert AccessPolicy(8766).token != GATE.token


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, access.NEEDS_ADDRESS),
        ({"token": ""}, access.WRONG_TOKEN),
        ({"token": "x" * 32, "cookies": COOKIE}, access.WRONG_TOKEN),
        ({"token": GATE.cookie}, access.WRONG_TOKEN),
        ({"cookies": {GATE.cookie_name: GATE.token}}, access.NEEDS_ADDRESS),
        ({"cookies": {"agentrl-console-1": GATE.cookie}}, access.NEEDS_ADDRESS),
        ({"host": "evil.example:8766", "cookies": COOKIE}, access.WRONG_NAME),
        ({"host": "127.0.0.1:1", "token": GATE.token}, access.WRONG_NAME),
        ({"host": "", "token": GATE.token}, access.WRONG_NAME),
        ({"origin": "http://evil.example", "cookies": COOKIE}, access.WRONG_ORIGIN),
        ({"origin": "null", "cookies": COOKIE}, access.WRONG_ORIGIN),
        ({"origin": f"https://{HOST}", "cookies": COOKIE}, access.WRONG_ORIGIN),
        ({"cookies": COOKIE, "is_socket": True}, access.WRONG_ORIGIN),
        ({"token": GATE.token, "is_socket": True, "origin": f"http://{HOST}"}, access.NEEDS_ADDRESS),
    ],
)
def test_everybody_else_is_refused_in_a_sentence(asked: dict[str, Any], why: str) -> None:
    assert judged(**asked) == access.Verdict(Decision.REFUSED, why)
    assert why.endswith(".")


@given(shown=st.text())
def test_no_other_text_is_the_token_or_the_cookie(shown: str) -> None:
    assert judged(token=shown).way is Decision.REFUSED
    assert judged(cookies={GATE.cookie_name: shown}).way is Decision.REFUSED


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:8766", "[::1]:9"])
def test_this_host_may_be_listened_on(listen: str) -> None:
    host, port = address(listen)
    assert host in ("127.0.0.1", "::1")
    assert port == int(listen.rpartition(":")[2])


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("0.0.0.0:8766", "on this host only, and 0.0.0.0 is beyond it"),
        ("[::]:8766", "beyond it"),
        ("example.org:80", "beyond it"),
        ("192.168.1.7:80", "beyond it"),
        ("127.0.0.2:80", "not an address that browsers know"),
        ("8766", "is no address"),
        ("127.0.0.1:", "is no address"),
        ("127.0.0.1:70000", "is no address"),
    ],
)
def test_beyond_this_host_nobody_listens(listen: str, why: str) -> None:
    with pytest.raises(UsageError, match=why.replace(".", r"\.")):
        address(listen)


@given(st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
def test_a_page_is_never_larger_or_smaller_than_any_screen(asked: Any) -> None:
    assert WIDTHS[0] <= within(asked, WIDTHS, 80) <= WIDTHS[1]


class Told:
    """A console and a page, as far as messages reach them."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def typed(self, text: str) -> None:
        self.heard.append(text)

    async def told(self, **what: Any) -> None:
        self.heard.append(what)

    async def send_json(self, what: Any) -> None:
        self.heard.append(what)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
async def test_messages_that_mean_nothing_do_nothing(message: Any) -> None:
    told: Any = Told()
    for text in (json.dumps(message), "no json", "[", '["stdin", 7]', '["resize", null]', '["type"]', "{}", "[]"):
        await hear(text, told, told)
    assert told.heard == []


async def test_a_message_that_is_nested_too_deeply_does_nothing() -> None:
    told: Any = Told()
    await hear("[" * 200_000, told, told)
    assert told.heard == []


async def test_messages_of_a_page_reach_its_console() -> None:
    told: Any = Told()
    for message in (["stdin", "2é"], ["resize", {"width": 1e9, "height": "x"}], ["focus"], ["ping", 7]):
        await hear(json.dumps(message), told, told)
    resized = {"type": "resize", "width": WIDTHS[1], "height": 24}
    assert told.heard == ["2é", resized, {"type": "focus"}, ["pong", 7]]


class Deaf:
    """The pipe and the process of a console that takes whatever is written."""

    def __init__(self) -> None:
        self.stdin = self
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        pass


async def test_half_a_pair_of_signs_is_typed_as_another_sign() -> None:
    process: Any = Deaf()
    page: Any = Told()
    await hear('["stdin", "a\\ud800"]', ConsoleProcess(process), page)
    assert process.written == b"D\x00\x00\x00\x02a?"


async def test_a_console_that_is_stopped_is_not_waited_for_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_process, "GRACE_S", 0.05)
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    process.send_signal(signal.SIGSTOP)
    page: Any = Told()
    stopped = ConsoleProcess(process)
    with pytest.raises(TimeoutError):
        # More than a pipe and the buffer before it hold.
        await hear(json.dumps(["stdin", "a" * (1 << 20)]), stopped, page)
    await stopped.end()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("host", "said"), [(HOST, f"ws://{HOST}"), ("evil.example:8766", "")])
async def test_a_wrong_name_is_not_said_again_in_any_header(host: str, said: str) -> None:
    application = web_server.Server(GATE, ()).application()
    async with TestClient(TestServer(application)) as browser:
        answer = await browser.get("/", headers={"Host": host})
        assert answer.status == 403
        allowed = answer.headers["Content-Security-Policy"].rpartition("connect-src ")[2]
        assert allowed == f"'self' {said}".strip()
        assert "evil" not in f"{answer.headers}{await answer.text()}"


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        ((), ["--run=demo", "--read-only"]),
        (("--writable", "--no-mouse"), ["--run=demo", "--no-mouse"]),
        (("--writable", "--read-only"), ["--run=demo", "--read-only"]),
    ],
)
def test_every_page_shows_the_run_that_was_found_first_and_changes_nothing_unless_it_is_said(
    coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...], passed: list[str]
) -> None:
    for name in ("AGENTRL_KEY", "AGENTRL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENTRL_HOME", str(coordinator.state_dir.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tui", "--serve=127.0.0.1:0", *said])
    found: list[str] = []

    async def serve(listen: str, options: Sequence[str], *, as_json: bool) -> None:
        found.extend(options)

    monkeypatch.setattr(web_server, "serve", serve)
    assert program.main() == 0
    assert found == passed
