"""`/mcpapi` for programs outside of a run answers as its OpenAPI document says."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from agentrl.mcp_endpoint.http_api import MOST_BODY_BYTES, document
from agentrl.protocol.tool_commands import ListToolSessions
from agentrl.toolbox.tool_manager import ToolManager
from tests.mcp_endpoint.test_mcp_listener import TOKENS, served
from tests.toolbox.conftest import MakeToolbox, faulty
from tests.waiting import PATIENCE_S


class Documented(httpx2.AsyncClient):
    """Checks each answer against the document of the server."""

    described: dict[str, Any]

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.request(method, path, **({"content": body} if isinstance(body, bytes) else {"json": body}))
        assert answer.status_code == status, (path, answer.text)
        fitting = [
            operations[method.lower()]
            for pattern, operations in self.described["paths"].items()
            if re.fullmatch(re.sub(r"\{\w+\}", ".+", pattern), path) and method.lower() in operations
        ]
        if fitting:
            schema = fitting[0]["responses"][str(status)]["content"]["application/json"]["schema"]
            Draft202012Validator({**schema, "components": self.described["components"]}).validate(answer.json())
        assert status == 200 or answer.json()["error"]["message"].strip()
        assert ("retry-after" in answer.headers) == (status in (429, 503))
        return answer.json()


def test_document_is_valid() -> None:
    described = document()
    assert described["openapi"] == "3.1.0"
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    text = str(described)
    named = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert named == set(described["components"]["schemas"])
    operations = [each for path in described["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)


async def test_a_program_lists_opens_calls_and_closes(make: MakeToolbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toolbox")
    async with make({"faulty": faulty(), "other": faulty()}) as hands, served(hands, sessions=1) as url:
        base = url.removesuffix("/mcp")
        await hands.open("episode", "faulty", "other")
        async with Documented(base_url=base, headers={"Authorization": f"Bearer {TOKENS['notebook']}"}) as http:
            http.described = (await http.get("/mcpapi/openapi.json")).json()
            assert http.described == document()
            session = {"id": "s/1", "servers": ["faulty"]}
            call = {"session": "s/1", "arguments": {"text": "x"}}
            opened = await http.ask("POST", "/mcpapi/session", session)
            assert opened == session
            servers = (await http.ask("GET", "/mcpapi/servers"))["servers"]
            assert [(each["id"], each["usable"]) for each in servers] == [("faulty", True), ("other", True)]
            tools = (await http.ask("GET", "/mcpapi/server/faulty/tools"))["tools"]
            assert {"faulty.echo", "faulty.die"} <= {each["id"] for each in tools}
            assert len((await http.ask("GET", "/mcpapi/tools"))["tools"]) == 2 * len(tools)
            echo, none = "/mcpapi/tool/faulty.echo", {"session": "s/1", "arguments": {}}
            answer = await http.ask("POST", echo, {**call, "call": "a"})
            assert (answer["status"], answer["content"]) == ("ok", "x")
            assert await http.ask("POST", echo, {**call, "call": "a"}) == answer
            refused = await http.ask("POST", "/mcpapi/tool/faulty.refuse", {**call, "call": "b"})
            assert (refused["status"], refused["content"]) == ("tool_error", "x")
            await http.ask("POST", "/mcpapi/tool/faulty.fail", {**none, "call": "c"}, 502)
            slow = {**none, "call": "d", "arguments": {"path": "/dev/null", "seconds": 60}, "timeout_s": 1.0}
            await http.ask("POST", "/mcpapi/tool/faulty.note", slow, 504)
            (row,) = [each for each in ToolManager(hands.toolbox).sessions(ListToolSessions()) if each.replays]
            assert (row.id, row.calls, row.failed) == ("outside/notebook/http/s/1", 4, 2)
            assert "did not answer" in row.last_failure
            lines = [each.getMessage() for each in caplog.records if " called " in each.getMessage()]
            assert all(line.startswith("notebook called faulty.") for line in lines)
            assert [line.rpartition(" in outside/notebook/http/s/1: ")[2].split(",")[0] for line in lines] == [
                "ok",
                "ok",
                "tool_error",
                "lost",
                "timeout",
            ]
            await http.ask("POST", echo, b"{", 400)
            await http.ask("POST", echo, {"session": 1}, 422)
            await http.ask("POST", echo, b" " * (MOST_BODY_BYTES + 1), 413)
            await http.ask("POST", "/mcpapi/tool/faulty.nothing", {**call, "call": "e"}, 404)
            await http.ask("GET", "/mcpapi/server/nothing/tools", None, 404)
            await http.ask("GET", "/mcpapi/nothing", None, 404)
            await http.ask("GET", "/mcpapi/session", None, 405)
            await http.ask("POST", echo, {**call, "session": "never", "call": "f"}, 409)
            await http.ask("POST", "/mcpapi/session", {"id": "two", "servers": ["other"]}, 429)
            robot = {"Authorization": f"Bearer {TOKENS['robot']}"}
            assert (await http.post(echo, json={**call, "call": "g"}, headers=robot)).status_code == 409
            http.headers["Authorization"] = "Bearer wrong"
            await http.ask("POST", echo, {**call, "call": "h"}, 401)
            http.headers["Authorization"] = f"Bearer {TOKENS['notebook']}"
            assert await http.ask("DELETE", "/mcpapi/session/s%2F1") == {}
            await http.ask("POST", echo, {**call, "call": "i"}, 409)
            hands.toolbox.draining = True
            await http.ask("POST", "/mcpapi/session", {"id": "late", "servers": ["other"]}, 503)
        assert hands.toolbox.statistics.calls == 0


async def test_a_body_that_does_not_come_is_408(make: MakeToolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.mcp_endpoint.http_api.BODY_WITHIN_S", 0.2)
    headers = {"Authorization": f"Bearer {TOKENS['notebook']}"}
    async with make({}) as hands, served(hands) as url:
        host, port = url.removeprefix("http://").removesuffix("/mcp").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /mcpapi/session HTTP/1.1\r\nHost: {host}\r\nAuthorization: {headers['Authorization']}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        async with asyncio.timeout(PATIENCE_S):
            assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_sessions_that_are_being_opened_count_in_the_quota(make: MakeToolbox) -> None:
    servers = {"pool": faulty(session="process", pool=2)}
    headers = {"Authorization": f"Bearer {TOKENS['notebook']}"}
    async with (
        make(servers) as hands,
        served(hands, sessions=2) as url,
        httpx2.AsyncClient(base_url=url.removesuffix("/mcp"), headers=headers, timeout=60) as http,
    ):
        wanted = [{"id": f"s{number}", "servers": ["pool"]} for number in range(6)]
        answers = await asyncio.gather(*(http.post("/mcpapi/session", json=each) for each in wanted))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429, 429]
