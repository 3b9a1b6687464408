"""The HTTP API and its client transmit sessions, calls and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from agentrl.errors import ConfigError
from agentrl.http.token_server import MOST_BODY_BYTES, listening
from agentrl.toolbox.api import build_app
from agentrl.toolbox.api_messages import (
    SessionError,
    ToolboxGoneError,
    UnavailableError,
    WrongTokenError,
)
from agentrl.toolbox.circuit_breaker import BreakerRule
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolbox.toolbox import Quotas
from tests.toolbox.conftest import TOKEN, MakeToolbox, faulty, over_http
from tests.waiting import aeventually

SESSION = "shop/train/0/000001#r0.s1.a1"


async def test_an_episode_over_http(make: MakeToolbox) -> None:
    """Ids of sessions and calls have slashes and hashes."""
    async with make() as hands, over_http(hands) as tools:
        opened = await tools.open(SESSION, ["faulty"])
        assert (opened.created, opened.servers, opened.toolbox) == (True, ("faulty",), "toolbox-0.1")
        assert not (await tools.open(SESSION, ["faulty"])).created
        offered = {tool.id: tool for tool in await tools.tools()}
        assert offered["faulty.echo"].schema["properties"] == {"text": {}}
        assert await tools.tools("faulty") == tuple(offered.values())
        answer = await tools.call(SESSION, f"{SESSION}/t0.0", "faulty", "echo", {"text": "ä\n\u2028"}, timeout_s=60)
        assert (answer.status, answer.content) == ("ok", "ä\n\u2028")
        assert 0 < answer.latency_s < 60
        assert (await tools.open(SESSION, ["faulty"])).calls == (f"{SESSION}/t0.0",)
        assert await tools.call(SESSION, f"{SESSION}/t0.0", "faulty", "echo", {"text": "ä\n\u2028"}) == answer
        (server,) = await tools.servers()
        assert (server.id, server.state, server.sessions, server.breaker) == ("faulty", "serving", 1, "closed")
        (counted,) = await tools.statistics()
        assert (counted.id, counted.calls) == ("faulty.echo", 1)
        await tools.close(SESSION)
        await tools.close(SESSION)
        with pytest.raises(SessionError, match="was closed"):
            await tools.call(SESSION, "late", "faulty", "echo", {"text": "x"})


async def test_refusals_have_their_http_status_and_nothing_ran(make: MakeToolbox) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    call = {"session": "s", "call": "c", "arguments": {}}
    cases = (
        (404, "/mcpapi/tool/faulty.nothing", call),
        (404, "/mcpapi/tool/echo", call),
        (404, "/mcpapi/session", {"id": "new", "servers": ["other"]}),
        (409, "/mcpapi/tool/faulty.echo", {**call, "session": "never opened"}),
        (409, "/mcpapi/session", {"id": "s", "servers": []}),
        (429, "/mcpapi/session", {"id": "one too many", "servers": []}),
        (422, "/mcpapi/tool/faulty.echo", {"session": "s"}),
        (422, "/mcpapi/tool/faulty.echo", {**call, "argument": {}}),
        (400, "/mcpapi/tool/faulty.echo", {**call, "call": "c" * 1000}),
    )
    async with (
        make(quotas=Quotas(sessions=1)) as hands,
        listening(build_app(hands.toolbox, TOKEN)) as url,
        httpx2.AsyncClient(base_url=url, headers=headers) as http,
    ):
        await hands.open("s")
        for status, path, body in cases:
            answer = await http.post(path, json=body)
            assert (answer.status_code, path) == (status, path), answer.text
            assert answer.json()["error"]["message"].endswith((".", "characters."))
        too_long = await http.post("/mcpapi/tool/faulty.echo", content=b" " * (MOST_BODY_BYTES + 1))
        assert too_long.status_code == 413
        assert (await http.get("/mcpapi/nothing")).status_code == 404
        assert (await http.get("/mcpapi/session")).status_code == 405
        assert hands.toolbox.statistics.calls == 0


async def test_an_open_breaker_is_503_with_retry_after(make: MakeToolbox) -> None:
    async with make(breaker=BreakerRule(least=2, open_s=60)) as hands, over_http(hands) as tools:
        await tools.open("s", ["faulty"])
        for number in range(2):
            await tools.call("s", f"c{number}", "faulty", "fail", {})
        with pytest.raises(UnavailableError) as parked:
            await tools.call("s", "c", "faulty", "echo", {"text": "x"})
        assert 50 < parked.value.retry_after_s <= 60


@pytest.mark.parametrize("header", ["", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"])
async def test_requests_without_the_token_are_refused(make: MakeToolbox, header: str) -> None:
    async with make({}) as hands, listening(build_app(hands.toolbox, TOKEN)) as url:
        async with httpx2.AsyncClient(base_url=url) as http:
            headers = {"Authorization": header.encode()} if header else {}
            for method, path in (
                ("GET", "servers"),
                ("POST", "session"),
                ("DELETE", "session/s"),
                ("POST", "tool/a.b"),
            ):
                answer = await http.request(method, f"/mcpapi/{path}", headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        async with ToolboxClient(url, "another-token") as tools:
            with pytest.raises(WrongTokenError):
                await tools.open("s", [])


async def test_a_caller_that_reconnects_gets_its_answer(make: MakeToolbox, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    arguments = {"path": str(notes), "seconds": 1.0}
    async with make() as hands, over_http(hands) as tools:
        await tools.open("s", ["faulty"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await tools.call("s", "c", "faulty", "note", arguments)
        await aeventually(lambda: notes.exists() or hands.toolbox.running_calls == 0)
        answer = await tools.call("s", "c", "faulty", "note", arguments)
        assert answer.status == "ok"
        assert notes.read_text().splitlines() == ["begun", "ended"]


async def test_a_missing_toolbox_raises_an_error(make: MakeToolbox) -> None:
    async with make({}) as hands, over_http(hands) as tools:
        await tools.open("s", [])
        url = tools.url
    async with ToolboxClient(url, TOKEN) as tools:
        with pytest.raises(ToolboxGoneError, match="cannot be reached"):
            await tools.open("s", [])
    with pytest.raises(ConfigError):
        ToolboxClient("nonsense", TOKEN)


async def test_sixty_four_episodes_at_once(make: MakeToolbox) -> None:
    async with (
        make({"faulty": faulty(), "pool": faulty(session="process", pool=2)}) as hands,
        over_http(hands) as tools,
    ):

        async def episode(number: int) -> None:
            session = f"e{number}"
            servers = ["faulty", "pool"] if number % 16 == 0 else ["faulty"]
            await tools.open(session, servers, wait_s=60)
            for turn in range(4):
                wanted = [(f"{session}/t{turn}.{call}", f"{number} {turn} {call}") for call in range(2)]
                answers = await asyncio.gather(
                    *(tools.call(session, call, "faulty", "echo", {"text": text}) for call, text in wanted)
                )
                assert [answer.content for answer in answers] == [text for _, text in wanted]
            if "pool" in servers:
                answer = await tools.call(session, f"{session}/p", "pool", "count", {})
                assert answer.content.split()[-1] == "1"
            await tools.close(session)

        await asyncio.gather(*(episode(number) for number in range(64)))
        assert hands.toolbox.open_sessions == 0
        assert sum(tool.calls for tool in await tools.statistics()) == 64 * 8 + 4
