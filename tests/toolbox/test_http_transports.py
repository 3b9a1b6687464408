"""Servers of the official SDK over streamable HTTP and SSE: sessions, lost sessions, resumption, redirects, sizes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.errors import AgentrlError
from agentrl.tool_environments.environments import environment_of
from agentrl.toolbox.api_messages import SessionLostError
from tests.toolbox.conftest import MakeToolbox, http_server
from tests.waiting import aeventually

SCRIPT = str(Path(__file__).with_name("http_transports_server.py"))
ThirdParty = Callable[..., dict[str, ToolServer]]
TRANSPORTS = [("url", "1"), ("url", "2"), ("sse", "1"), ("sse", "2")]


@pytest.fixture
async def pythons(make: MakeToolbox, third_party: ThirdParty, tmp_path: Path) -> dict[str, str]:
    """An interpreter for each version of the SDK."""
    servers = third_party("sqlite")
    first = Path(f"{environment_of('sqlite', servers['sqlite'], tmp_path)}/bin/python")
    if not first.exists():  # noqa: ASYNC240 - one look
        async with make(servers) as hands:
            await hands.open("s", "sqlite", wait_s=250.0)
    return {"1": str(first), "2": sys.executable}


@pytest.fixture
def server(pythons: dict[str, str], request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    transport, version = request.param
    with http_server(pythons[version], SCRIPT, "{port}") as (url, _):
        yield transport, url.replace("/mcp", "/sse") if transport == "sse" else url


def behind(transport: str, url: str, **settings: Any) -> ToolServer:
    return ToolServer.model_validate({transport: url, "session": "shared", "timeout_s": 20.0, **settings})


@pytest.mark.parametrize("server", TRANSPORTS, indirect=True, ids="-".join)
async def test_tools_of_the_official_sdk_are_listed_and_called(make: MakeToolbox, server: tuple[str, str]) -> None:
    async with make({"both": behind(*server, result_max_chars=1000)}) as hands:
        await hands.open("s", "both")
        assert [tool.name for tool in hands.toolbox.tools()] == ["echo", "big", "resumed"]
        texts = [f"{number} ä\n" for number in range(20)]
        answers = await asyncio.gather(*(hands.call("s", text, "echo", server="both", text=text) for text in texts))
        assert [answer.content for answer in answers] == texts
        wrong = await hands.call("s", "wrong", "echo", server="both")
        assert (wrong.status, wrong.error_class) == ("tool_error", "policy")
        # An event of several MiB, with the text in it twice, costs neither the call nor the connection.
        long = await hands.call("s", "long", "big", server="both", size=5_000_000)
        assert (long.status, long.content[0], long.content[-1], len(long.content)) == ("ok", "<", ">", 1000)
        assert abs(long.left_out + 1000 - 5_000_000) < 100
        assert hands.server("both").starts == 1


@pytest.mark.parametrize("server", [("url", "1")], indirect=True, ids="-".join)
async def test_an_answer_whose_stream_was_closed_is_resumed(make: MakeToolbox, server: tuple[str, str]) -> None:
    async with make({"both": behind(*server)}) as hands:
        await hands.open("s", "both")
        answer = await hands.call("s", "a", "resumed", server="both")
        assert (answer.status, answer.content) == ("ok", "after the break")


@pytest.mark.parametrize("transport", ["url", "sse"])
@pytest.mark.parametrize("session", ["shared", "keyed"])
async def test_a_restarted_server_gets_a_new_connection_or_its_session_is_lost(
    make: MakeToolbox, pythons: dict[str, str], transport: str, session: str
) -> None:
    command = (pythons["1"], SCRIPT, "{port}")
    with contextlib.ExitStack() as processes:
        url, process = processes.enter_context(http_server(*command))
        port = int(url.removesuffix("/mcp").rpartition(":")[2])
        config = behind(transport, url.replace("/mcp", "/sse") if transport == "sse" else url, session=session)
        async with make({"both": config}) as hands:
            await hands.open("s", "both")
            assert (await hands.call("s", "a", "echo", server="both", text="before")).content == "before"
            process.kill()
            process.wait(60)
            processes.enter_context(http_server(*command, port=port))
            if transport == "sse":
                await aeventually(lambda: hands.server("both").starts == 2, what="the end of events is seen")
            if session == "keyed":
                with pytest.raises(SessionLostError):
                    await hands.call("s", "b", "echo", server="both", text="after")
            else:
                # Over streamable HTTP the call is refused in the old connection and made in a new one.
                answer = await hands.call("s", "b", "echo", server="both", text="after")
                assert (answer.status, answer.content) == ("ok", "after")
            assert hands.server("both").last_failure == ""


async def test_redirects_stay_on_the_host_that_gets_the_token(
    make: MakeToolbox, pythons: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_HERE", "open-sesame")
    with (
        http_server(pythons["2"], SCRIPT, "{port}") as (here, _),
        http_server(pythons["2"], SCRIPT, "{port}") as (elsewhere, _),
    ):
        redirect, note = here.replace("/mcp", "/redirect?to="), elsewhere.replace("/mcp", "/note")
        secret = {"token": "env:OF_HERE"}
        servers = {
            "same": behind("url", f"{redirect}{here}", **secret),
            "old": behind("sse", f"{redirect}{here.replace('/mcp', '/sse')}", **secret),
            "other": behind("url", f"{redirect}{note}", **secret),
            "old-other": behind("sse", f"{redirect}{note}", **secret),
        }
        async with make(servers) as hands:
            for name in ("same", "old"):
                await hands.open(name, name)
                assert (await hands.call(name, name, "echo", server=name, text="x")).content == "x"
            for name in ("other", "old-other"):
                await aeventually(lambda name=name: hands.server(name).state == "down")
                assert "open-sesame" not in hands.server(name).why
        async with httpx2.AsyncClient() as http:
            assert (await http.get(note)).text == ""


def test_an_address_is_one_of_http() -> None:
    for address in ("tools.example.org/sse", "ftp://tools.example.org", "https:///sse"):
        with pytest.raises((ValueError, AgentrlError), match="is no address"):
            ToolServer(sse=address)
