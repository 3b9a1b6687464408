"""Tools from the `/mcpapi` of a second toolbox, and of a server that answers wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.config.outside_access import OutsideAccess
from agentrl.http.free_ports import free_port
from agentrl.http.token_server import listening
from agentrl.mcp_endpoint.mcp_listener import mcp_listening
from agentrl.toolbox.api_messages import SessionLostError
from tests.toolbox.conftest import Hands, MakeToolbox, faulty
from tests.waiting import aeventually

TOKEN = "token-of-the-other-run"


@contextlib.asynccontextmanager
async def offered(hands: Hands, **quotas: int) -> AsyncIterator[str]:
    access = OutsideAccess(port=free_port(), tokens={"run": "env:UNUSED"}, **quotas)
    async with mcp_listening(hands.toolbox, access, {"run": TOKEN}) as url:
        yield f"{url}api"


def behind(address: str, **settings: Any) -> ToolServer:
    return ToolServer.model_validate({"mcpapi": address, "token": "env:OTHER_RUN", "timeout_s": 10.0, **settings})


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_RUN", TOKEN)


def sessions_of(hands: Hands) -> list[str]:
    return [id for id in hands.toolbox.sessions if id.startswith("outside/")]


async def test_tools_of_another_run_keep_their_state_for_each_session(make: MakeToolbox) -> None:
    theirs = {"one": faulty(session="process", pool=2), "two": faulty()}
    async with make(theirs) as other, offered(other) as address:
        await other.open("episode", "one", "two")
        ours = {"far": behind(address, pool=2), "near": behind(f"{address}/server/one", session="shared")}
        async with make(ours) as hands:
            for session in ("a", "b"):
                await hands.open(session, "far", "near")
            ids = {tool.id: tool.schema for tool in hands.toolbox.tools()}
            assert {"far.one.echo", "far.two.echo", "near.echo"} <= set(ids)
            assert ids["near.echo"]["properties"] == {"text": {}}
            assert sessions_of(other) == [], "a pool takes nothing of the other run before its first call"
            for expected in ("1", "2"):
                for session in ("a", "b"):
                    counted = await hands.call(session, f"{session}{expected}", "one.count", server="far")
                    assert counted.content.split()[-1] == expected
            assert (await hands.call("a", "two", "two.echo", server="far", text="ä")).content == "ä"
            refused = await hands.call("a", "refuse", "two.refuse", server="far", text="no words")
            assert (refused.status, refused.content, refused.error_class) == ("tool_error", "no words", "policy")
            failed = await hands.call("a", "fail", "two.fail", server="far")
            assert (failed.status, failed.reason, failed.error_class) == ("lost", "server", "infrastructure")
            slow = {"path": "/dev/null", "seconds": 30}
            late = await hands.call("a", "late", "two.note", server="far", timeout_s=0.5, **slow)
            assert late.status == "timeout"
            assert len(sessions_of(other)) == 3
            # A session that ends during a call ends the call there too.
            call = asyncio.create_task(hands.call("b", "hang", "one.hang", server="far"))
            await aeventually(lambda: other.toolbox.all_servers["one"].running == 1)
            await hands.toolbox.close("b")
            assert (await call).status == "cancelled"
            await aeventually(lambda: other.toolbox.all_servers["one"].running == 0 and len(sessions_of(other)) == 2)
        await aeventually(lambda: sessions_of(other) == [], what="its sessions are closed")


async def test_effects_of_another_run_pass_over_both_of_its_doors(make: MakeToolbox) -> None:
    theirs = {"one": faulty(effects={"echo": "pure", "note": "outside", "count": "session"}), "two": faulty()}
    async with make(theirs) as other, offered(other) as address:
        await other.open("episode", "one", "two")
        mcp = ToolServer.model_validate({"url": address.removesuffix("api"), "token": "env:OTHER_RUN"})
        ours = {"api": behind(address, session="shared"), "mcp": mcp, "own": behind(address, effects={"*": "outside"})}
        async with make(ours) as hands:
            await hands.open("s", *ours)
            for server in ("api", "mcp"):
                found = {tool.name: hands.toolbox.effect(tool) for tool in hands.toolbox.tools(server)}
                assert [found[f"one.{name}"] for name in ("echo", "note", "count", "hang")] == [
                    "pure",
                    "outside",
                    "session",
                    "",
                ]
                assert {found[name] for name in found if name.startswith("two.")} == {""}
            # The run file of this run takes precedence.
            assert {hands.toolbox.effect(tool) for tool in hands.toolbox.tools("own")} == {"outside"}


@pytest.mark.parametrize("mode", ["process", "shared"])
async def test_a_closed_session_is_lost_or_opened_again(make: MakeToolbox, mode: str) -> None:
    async with make() as other, offered(other) as address:
        await other.open("episode")
        async with make({"far": behind(f"{address}/server/faulty", session=mode, pool=1)}) as hands:
            await hands.open("s", "far")
            assert (await hands.call("s", "a", "echo", server="far", text="before")).content == "before"
            (theirs,) = sessions_of(other)
            await other.toolbox.close(theirs)
            if mode == "process":
                with pytest.raises(SessionLostError):
                    await hands.call("s", "b", "echo", server="far", text="after")
            else:
                assert (await hands.call("s", "b", "echo", server="far", text="after")).content == "after"


async def test_a_call_beyond_a_quota_waits_for_its_turn(make: MakeToolbox, tmp_path: Path) -> None:
    async with make() as other, offered(other, calls=1) as address:
        await other.open("episode")
        async with make({"far": behind(f"{address}/server/faulty", session="shared")}) as hands:
            await hands.open("s", "far")
            end = tmp_path / "end"
            arguments = {"path": "/dev/null", "until": str(end)}
            first = asyncio.create_task(hands.call("s", "first", "note", server="far", **arguments))
            await aeventually(lambda: other.toolbox.running_calls == 1)
            refused = await hands.call("s", "hurried", "echo", server="far", timeout_s=0.5, text="x")
            assert (refused.status, refused.error_class) == ("lost", "infrastructure")
            assert "outside.calls" in refused.content
            second = asyncio.create_task(hands.call("s", "second", "echo", server="far", text="x"))
            await aeventually(lambda: hands.toolbox.running_calls == 2)
            end.touch()
            assert [answer.status for answer in await asyncio.gather(first, second)] == ["ok", "ok"]


async def test_a_wrong_token_is_named_in_the_row(make: MakeToolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_RUN", "another-token-of-16")
    async with make() as other, offered(other) as address, make({"far": behind(address)}) as hands:
        await aeventually(lambda: hands.server("far").problem)
        assert "check tools.far.token" in hands.server("far").problem
        assert "another-token-of-16" not in hands.server("far").problem


TOOLS = {"tools": [{"id": "x.t", "server": "x", "name": "t", "description": "", "schema": {}}]}
GOOD = {"status": "ok", "content": "good", "left_out": 0, "latency_s": 0.0}


class Hostile:
    """A `/mcpapi` whose answers to calls are given; each is a status, a body and perhaps headers."""

    def __init__(self) -> None:
        self.answers: list[tuple[Any, ...]] = []
        self.calls: list[dict[str, Any]] = []
        self.never = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (part := await receive()).get("more_body"):
            body += part["body"]
        body += part.get("body", b"")
        status, answer, *headers = 200, json.dumps(TOOLS).encode()
        if "/tool/" in scope["path"]:
            self.calls.append(json.loads(body))
            status, answer, *headers = self.answers.pop(0)
        head = {"content-type": "application/json", **(headers[0] if headers else {})}
        encoded = [(name.encode(), value.encode()) for name, value in head.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        if answer is None:
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
            await self.never.wait()
        for piece in [answer] if isinstance(answer, bytes) else answer or ():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def good(content: str = "good") -> bytes:
    return json.dumps({**GOOD, "content": content}).encode()


def refusal(kind: str) -> bytes:
    return json.dumps({"error": {"kind": kind, "message": f"Refused as {kind}.", "retry_after_s": 0.0}}).encode()


@pytest.fixture
async def hostile(make: MakeToolbox) -> AsyncIterator[tuple[Hostile, Hands]]:
    server = Hostile()
    async with (
        listening(server) as url,
        make({"far": behind(f"{url}/mcpapi", session="shared", timeout_s=60.0)}) as hands,
    ):
        await hands.open("s", "far")
        yield server, hands
        server.never.set()


@pytest.mark.parametrize(
    ("answer", "status", "error_class", "named"),
    [
        ((200, b"[1, 2"), "lost", "infrastructure", "another form"),
        ((200, b'{"status": "perfect", "content": ""}'), "lost", "infrastructure", "another form"),
        ((200, b"[" * 100_000), "lost", "infrastructure", "another form"),
        ((200, b"<html>", {"content-type": "text/html"}), "lost", "infrastructure", "without JSON"),
        ((200, b"no gzip", {"content-encoding": "gzip"}), "lost", "infrastructure", "invalid answer"),
        ((200, [b"1" * 1_000_000] * 40), "lost", "infrastructure", "too long"),
        ((200, None), "timeout", "infrastructure", "did not answer"),
        ((307, b"", {"location": "http://127.0.0.1:1/"}), "lost", "infrastructure", "307"),
        ((500, b"<html>"), "lost", "infrastructure", "500"),
        ((502, refusal("lost")), "lost", "infrastructure", "Refused as lost"),
        ((504, refusal("timeout")), "lost", "infrastructure", "Refused as timeout"),
        ((403, b""), "lost", "infrastructure", "check tools.far.token"),
        ((409, refusal("cancelled")), "lost", "infrastructure", "during a call"),
        ((404, refusal("unknown_tool")), "tool_error", "policy", "Refused as unknown_tool"),
        ((413, b""), "tool_error", "policy", "413"),
        ((422, refusal("bad_request")), "tool_error", "policy", "bad_request"),
        ((503, b"", {"retry-after": "9" * 400}), "lost", "infrastructure", "503"),
        ((200, good("x" * 5_000_000)), "ok", "", "xxx"),
    ],
)
async def test_each_answer_has_its_outcome(
    hostile: tuple[Hostile, Hands], answer: tuple[Any, ...], status: str, error_class: str, named: str
) -> None:
    server, hands = hostile
    server.answers = [answer, (200, good())]
    within_s = 1.0 if status == "timeout" else 60.0
    ended = await hands.call("s", "a", "x.t", server="far", timeout_s=within_s)
    assert (ended.status, ended.error_class) == (status, error_class), ended.content
    assert named in ended.content
    assert len(ended.content) <= 16_384
    server.never.set()
    server.answers = [(200, good())]
    assert (await hands.call("s", "b", "x.t", server="far")).content == "good"


async def test_repeated_requests_of_a_call_have_one_id(hostile: tuple[Hostile, Hands]) -> None:
    server, hands = hostile
    cut = {"content-length": "1000"}
    server.answers = [(429, b"", {"retry-after": "0"}), (503, refusal("unavailable")), (200, b"{", cut), (200, good())]
    assert (await hands.call("s", "a", "x.t", server="far")).content == "good"
    assert len(server.calls) == 4
    assert len({each["call"] for each in server.calls}) == 1
    # After a broken answer it is unknown whether the call ran, so it is not made in a new session.
    server.answers = [(200, b"{", cut), (404, b"")]
    lost = await hands.call("s", "b", "x.t", server="far")
    assert (lost.status, lost.error_class) == ("lost", "infrastructure")
    assert "broke off" in lost.content
    server.answers = [(404, b""), (200, good())]
    assert (await hands.call("s", "c", "x.t", server="far")).content == "good"


def test_an_address_names_the_api_and_a_session_mode_that_it_has() -> None:
    for address in ("http://h/mcpapi", "https://h/x/mcpapi/", "http://h/mcpapi/server/a%20b"):
        assert ToolServer(mcpapi=address).address == address
    for wrong in ("http://h/mcp", "http://h/mcpapi/tools", "ftp://h/mcpapi", "http://h/mcpapi?x"):
        with pytest.raises(ValueError, match=r"must end with|is no address"):
            ToolServer(mcpapi=wrong)
    with pytest.raises(ValueError, match="session: keyed"):
        ToolServer(mcpapi="http://h/mcpapi", session="keyed")
