"""Programs outside of a run use its tools with the client of the official SDK, within their quotas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from agentrl.config.data_plane import ToolServer
from agentrl.config.outside_access import OutsideAccess
from agentrl.errors import ConfigError
from agentrl.http.free_ports import free_port
from agentrl.mcp_endpoint.mcp_listener import MOST_BODY_BYTES, mcp_listening, tokens_of
from tests.toolbox.conftest import Hands, MakeToolbox, faulty
from tests.waiting import aeventually

TOKENS = {"notebook": "token-of-the-notebook", "robot": "token-of-the-robot"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
CART = '''
from agentrl.toolservers import Session

class Cart(Session):
    def __init__(self):
        self.items = []

def put(item: str, cart: Cart) -> int:
    """Put it in."""
    cart.items.append(item)
    return len(cart.items)
'''
ACCEPT = {"Accept": "application/json, text/event-stream"}


@contextlib.asynccontextmanager
async def served(hands: Hands, **quotas: Any) -> AsyncIterator[str]:
    access = OutsideAccess(port=free_port(), tokens={name: "env:UNUSED" for name in TOKENS}, **quotas)
    async with mcp_listening(hands.toolbox, access, TOKENS) as url:
        yield url


@contextlib.asynccontextmanager
async def connected(url: str, name: str = "notebook") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKENS[name]}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def text(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    return f"error: {block.text}" if result.is_error else block.text


async def test_client_of_the_sdk_lists_and_calls_the_tools_of_all_servers_and_of_one(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(block=("die",)), "pool": faulty(session="process", pool=1)}) as hands:
        await hands.open("episode", "pool")
        async with served(hands) as url:
            async with connected(url) as client:

                async def listed() -> dict[str, Any] | None:
                    """The tools once both servers have started, because only then are they listed."""
                    found = {tool.name: tool for tool in (await client.list_tools()).tools}
                    return found if {"faulty.echo", "pool.echo", "pool.die"} <= found.keys() else None

                names = await aeventually(listed, what="tools of both servers")
                assert "faulty.die" not in names
                assert names["faulty.echo"].input_schema["properties"] == {"text": {}}
                assert await text(client, "faulty.echo", text="ä\n") == "ä\n"
                # A session keeps its state, and takes no process of an episode.
                counts = [(await text(client, "pool.count")).split()[-1] for _ in range(2)]
                assert counts == ["1", "2"]
                assert (await hands.call("episode", "c", "count", server="pool")).content.split()[-1] == "1"
                assert "no words" in await text(client, "faulty.refuse", text="no words")
                assert "no tool 'die'" in await text(client, "faulty.die")
                others = [id for id in hands.toolbox.sessions if id != "episode"]
                assert len(others) == 2
                assert all(id.startswith("outside/notebook/") for id in others)
                assert [tool.id for tool in hands.toolbox.statistics.all()] == ["pool.count"]
            await aeventually(lambda: list(hands.toolbox.sessions) == ["episode"], what="its sessions are closed")
            async with connected(f"{url}/pool") as client:
                assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
                assert (await text(client, "count")).split()[-1] == "1"


async def test_quotas_of_a_program_hold_and_leave_the_others_alone(make: MakeToolbox, tmp_path: Path) -> None:
    async with (
        make({"one": faulty(), "two": faulty()}) as hands,
        served(hands, sessions=1, calls=1) as url,
        connected(url) as notebook,
        connected(url, "robot") as robot,
    ):
        await hands.open("episode", "one", "two")
        arguments = {"path": "/dev/null", "until": str(tmp_path / "end")}
        slow = asyncio.create_task(text(notebook, "one.note", **arguments))
        await aeventually(lambda: hands.toolbox.running_calls == 1)
        assert "outside.calls" in await text(notebook, "one.echo", text="x")
        assert await text(robot, "one.echo", text="x") == "x"
        (tmp_path / "end").touch()
        assert await slow == "noted"
        assert "outside.sessions" in await text(notebook, "two.echo", text="x")
        async with httpx2.AsyncClient(headers=ACCEPT) as http:
            bearer = {"Authorization": f"Bearer {TOKENS['notebook']}"}
            assert (await http.post(url, json=INITIALIZE, headers=bearer)).status_code == 503


def let_idle_sessions_end(hands: Hands) -> None:
    """Shorten the idle time of open sessions. If it were short from the start, a session could end on a busy machine
    while the test still opens others."""
    outside = [each for id, each in hands.toolbox.sessions.items() if id.startswith("outside/")]
    assert {each.most_idle_s for each in outside} == {300.0}
    for each in outside:
        each.most_idle_s = 0.1


async def test_sessions_of_a_program_that_vanished_end(make: MakeToolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.toolbox.toolbox.TIDY_EVERY_S", 0.1)
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    async with (
        make({"pool": faulty(session="process", pool=2)}) as hands,
        served(hands, sessions=2, idle_s=300.0) as url,
    ):
        await hands.open("episode", "pool")
        base = url.removesuffix("/mcp")
        bearer = {"Authorization": f"Bearer {TOKENS['notebook']}"}
        async with httpx2.AsyncClient(headers=ACCEPT | bearer, timeout=60) as http:
            opened = await http.post(url, json=INITIALIZE)
            connection = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=connection)
            called = {**call, "params": {"name": "pool.count", "arguments": {}}}
            assert (await http.post(url, json=called, headers=connection)).status_code == 200
            named = {"id": "named", "servers": ["pool"]}
            assert (await http.post(f"{base}/mcpapi/session", json=named)).status_code == 200
            assert (await http.post(f"{base}/mcpapi/session", json={**named, "id": "third"})).status_code == 429
        # The program vanished without a DELETE. Sessions of episodes have a longer idle time.
        assert len(hands.toolbox.sessions) == 3
        let_idle_sessions_end(hands)
        await aeventually(lambda: list(hands.toolbox.sessions) == ["episode"])
        async with httpx2.AsyncClient(headers=ACCEPT | bearer, timeout=60) as http:
            late = {"session": "named", "call": "late", "arguments": {}}
            answer = await http.post(f"{base}/mcpapi/tool/pool.count", json=late)
            assert (answer.status_code, "idle for 0.1 s" in answer.text) == (409, True)
            for id in ("one", "two"):
                assert (await http.post(f"{base}/mcpapi/session", json={**named, "id": id})).status_code == 200


async def test_connection_learns_that_its_idle_session_lost_its_state(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.toolbox.toolbox.TIDY_EVERY_S", 0.1)
    servers = {"pool": faulty(session="process", pool=1)}
    async with make(servers) as hands, served(hands, idle_s=300.0) as url, connected(url) as client:
        await hands.open("episode", "pool")
        for end in ("idle", "released"):
            first = await text(client, "pool.count")
            assert first.split()[-1] == "1", first
            (id,) = set(hands.toolbox.sessions) - {"episode"}
            if end == "released":
                await hands.toolbox.close(id, "released by an operator", by_operator=True)
            else:
                let_idle_sessions_end(hands)
            # The connection outlives its session, because it has an open stream.
            await aeventually(lambda: list(hands.toolbox.sessions) == ["episode"])
            refused = await text(client, "pool.count")
            assert (end in refused, "the next call opens another session" in refused) == (True, True)


async def test_all_programs_together_have_a_quota(make: MakeToolbox) -> None:
    async with (
        make({"one": faulty(), "two": faulty()}) as hands,
        served(hands, all_sessions=2) as url,
        connected(url) as notebook,
        connected(url, "robot") as robot,
    ):
        await hands.open("episode", "one", "two")
        assert await text(notebook, "one.echo", text="x") == "x"
        assert await text(robot, "one.echo", text="x") == "x"
        assert "outside.all_sessions" in await text(robot, "two.echo", text="x")


async def test_refused_requests_get_the_right_status(make: MakeToolbox) -> None:
    async with make() as hands, served(hands) as url, httpx2.AsyncClient(headers=ACCEPT) as http:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ü".encode()}):
            for path in ("", "/faulty", "/nothing"):
                answer = await http.post(f"{url}{path}", json=INITIALIZE, headers=header)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        http.headers["Authorization"] = f"Bearer {TOKENS['notebook']}"
        assert (await http.post(f"{url}/nothing", json=INITIALIZE)).status_code == 404
        assert (await http.post(url, content=b" " * (MOST_BODY_BYTES + 1))).status_code == 413
        assert (await http.post(url, content=b"{", headers={"Content-Type": "application/json"})).status_code == 400
        assert (await http.post(url, json=INITIALIZE, headers={"Host": "evil.example.org"})).status_code == 421
        opened = await http.post(url, json=INITIALIZE)
        assert opened.status_code == 200
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await http.post(url, json=ping, headers=session)).status_code == 200
        foreign = {**session, "Authorization": f"Bearer {TOKENS['robot']}"}
        assert (await http.post(url, json=ping, headers=foreign)).status_code == 404
        assert (await http.delete(url, headers=session)).status_code == 200
        assert (await http.post(url, json=ping, headers=session)).status_code == 404


async def test_errors_of_the_toolbox_pass_the_listener_unchanged(make: MakeToolbox) -> None:
    with pytest.raises(ConfigError, match="of the toolbox"):
        async with make({}) as hands, served(hands):
            raise ConfigError("An error of the toolbox.")


def test_access_is_off_or_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OutsideAccess().port == 0
    for wrong in ({"port": 8100}, {"tokens": {"a": "env:A"}}, {"port": 1, "tokens": {"A b": "env:A"}}):
        with pytest.raises(ValidationError):
            OutsideAccess.model_validate(wrong)
    with pytest.raises(ValidationError) as refused:
        OutsideAccess.model_validate({"port": 1, "tokens": {"a": "open-sesame"}})
    assert "must be a reference" in str(refused.value)
    both = OutsideAccess.model_validate({"port": 1, "tokens": {"a": "env:A", "b": "env:B"}})
    for value, other, sentence in (("short", "x" * 16, "at least 16"), ("x" * 16, "x" * 16, "twice")):
        monkeypatch.setenv("A", value)
        monkeypatch.setenv("B", other)
        with pytest.raises(ConfigError, match=sentence):
            tokens_of(both)


async def test_tools_that_are_hidden_from_models_are_hidden_from_programs(make: MakeToolbox, tmp_path: Path) -> None:
    file = tmp_path / "cart.py"
    file.write_text(CART)
    async with make({"cart": ToolServer(functions=str(file), pool=2)}) as hands:
        await hands.open("episode", "cart")
        assert "agentrl_state" in {tool.name for tool in hands.toolbox.tools("cart")}
        async with served(hands) as url, connected(url) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"cart.put"}
            assert await text(client, "cart.put", item="tea") == "1"
            assert "no tool 'agentrl_state'" in await text(client, "cart.agentrl_state")
        async with (
            served(hands) as url,
            httpx2.AsyncClient(
                base_url=url.removesuffix("/mcp"), headers={"Authorization": f"Bearer {TOKENS['notebook']}"}
            ) as http,
        ):
            listed = (await http.get("/mcpapi/tools")).json()["tools"]
            assert [tool["name"] for tool in listed] == ["put"]
            await http.post("/mcpapi/session", json={"id": "mine", "servers": ["cart"]})
            body = {"session": "mine", "call": "1", "arguments": {}}
            refused = await http.post("/mcpapi/tool/cart.agentrl_state", json=body)
            assert refused.status_code == 404, refused.text
