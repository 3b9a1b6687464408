"""Third-party servers work: other languages, other versions of the SDK, over pipes and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.tokens.image_marks import mark
from agentrl.tool_environments.environments import environment_of
from agentrl.toolbox import mcp_connection
from agentrl.toolbox.api_messages import OpenSession
from tests.toolbox.conftest import Hands, MakeToolbox, http_server
from tests.waiting import aeventually

ThirdParty = Callable[..., dict[str, ToolServer]]
_ENTITY = {"name": "apple", "entityType": "fruit", "observations": ["costs 3"]}
_NOON = {"source_timezone": "Asia/Kolkata", "time": "12:00", "target_timezone": "Asia/Tokyo"}


@contextlib.contextmanager
def web_page(text: str) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/page"
            self.send_response(200 if found else 404)  # 404: no robots.txt forbids anything
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode() if found else b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page"
        server.shutdown()


async def test_seven_third_party_servers_work_as_their_run_file_describes(
    make: MakeToolbox, third_party: ThirdParty
) -> None:
    """Each in its sandbox, with a process of its own where it keeps a state."""
    servers = third_party()
    # The web page is on this host, so the server needs access to private addresses.
    servers |= third_party("fetch", command=(*servers["fetch"].command, "--allow-private-ips"))
    with web_page("<title>Prices</title><p>An apple is 3.</p>") as url:
        async with make(servers) as hands:
            assert await hands.open("s", *servers, wait_s=250.0)
            sandboxes = {server.sandbox.partition(":")[0] for server in hands.toolbox.servers()}
            assert sandboxes == {"in a process sandbox"}
            for number, (server, tool, arguments, answer) in enumerate(
                (
                    ("everything", "get-sum", {"a": 2, "b": 40}, "42"),
                    ("filesystem", "write_file", {"path": "/tmp/note", "content": "apple 3"}, "Successfully"),
                    ("filesystem", "read_text_file", {"path": "/tmp/note"}, "apple 3"),
                    ("memory", "create_entities", {"entities": [_ENTITY]}, "apple"),
                    ("memory", "read_graph", {}, "costs 3"),
                    ("git", "git_status", {"repo_path": "/tmp/repository"}, "No commits yet"),
                    ("time", "convert_time", _NOON, "15:30"),
                    ("fetch", "fetch", {"url": url}, "An apple is 3."),
                    ("sqlite", "create_table", {"query": "CREATE TABLE prices (item TEXT, price INT)"}, "created"),
                    ("sqlite", "list_tables", {}, "prices"),
                )
            ):
                found = await hands.call("s", f"c{number}", tool, server=server, **arguments)
                assert (found.status, answer in found.content) == ("ok", True), (server, tool, found)
            failed = await hands.call("s", "f", "read_query", server="sqlite", query="SELECT cost FROM prices")
            assert "no such column: cost" in failed.content
            await hands.toolbox.close("s")
            await _replayed(hands, "SELECT cost FROM prices", failed.content)


async def _replayed(hands: Hands, query: str, expected: str) -> None:
    """A new session has nothing of the last one, fails alike when it is rebuilt, and works with the edited call."""
    wanted = OpenSession(id="r", servers=("sqlite",), wait_s=60.0, replays=True)
    assert (await hands.toolbox.open(wanted)).created
    table = "CREATE TABLE prices (item TEXT, price INT)"
    empty = await hands.call("r", "r0", "read_query", server="sqlite", query=query)
    assert "no such table" in empty.content
    await hands.call("r", "r1", "create_table", server="sqlite", query=table)
    again = await hands.call("r", "r2", "read_query", server="sqlite", query=query)
    assert again.content == expected
    edited = await hands.call("r", "r3", "read_query", server="sqlite", query=query.replace("cost", "price"))
    assert (edited.status, edited.content) == ("ok", "[]")


async def test_a_server_of_the_first_sdk_version(make: MakeToolbox, third_party: ThirdParty) -> None:
    async with make(third_party("time", block=("convert_time",))) as hands:
        await hands.open("s", "time", wait_s=250.0)
        (tool,) = hands.toolbox.tools("time")
        assert (tool.name, list(tool.schema["properties"])) == ("get_current_time", ["timezone"])
        good = await hands.call("s", "a", "get_current_time", server="time", timezone="Asia/Tokyo")
        assert (good.status, json.loads(good.content)["timezone"]) == ("ok", "Asia/Tokyo")
        bad = await hands.call("s", "b", "get_current_time", server="time", timezone="Atlantis")
        assert (bad.status, bad.error_class) == ("tool_error", "policy")
        missing = await hands.call("s", "c", "get_current_time", server="time")
        assert (missing.status, missing.error_class) == ("tool_error", "policy")


async def test_a_git_server_with_a_repository_of_the_operator(
    make: MakeToolbox, third_party: ThirdParty, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    await asyncio.to_thread(subprocess.run, ["git", "init", "--quiet", str(repository)], check=True, timeout=60)
    (repository / "new file").write_text("x")
    command = ("mcp-server-git", "--repository", "{run_dir}/repository")
    async with make(third_party("git", command=command)) as hands:
        assert await hands.open("s", "git", wait_s=250.0)
        answer = await hands.call("s", "a", "git_status", server="git", repo_path=str(repository))
        assert answer.status == "ok", answer
        assert "new file" in answer.content
        outside = await hands.call("s", "b", "git_status", server="git", repo_path=str(tmp_path / "nowhere"))
        assert (outside.status, outside.error_class) == ("tool_error", "policy")


@pytest.mark.parametrize("transport", ["stdio", "streamableHttp", "sse"])
async def test_a_server_in_another_language(
    make: MakeToolbox, third_party: ThirdParty, tmp_path: Path, transport: str
) -> None:
    """Numbers, images, resources, slow calls, and a call that does not end in time."""
    servers = third_party("everything")
    async with make(servers) as hands:
        if transport == "stdio":
            await _use_everything(hands)
            return
        assert await hands.open("s", "everything", wait_s=250.0)  # now it is installed
    environment = environment_of("everything", servers["everything"], tmp_path)
    program = f"{environment}/bin/mcp-server-everything"
    with http_server("env", "PORT={port}", program, transport) as (url, _):
        address = {"sse": url.replace("/mcp", "/sse")} if transport == "sse" else {"url": url}
        async with make({"everything": ToolServer(**address, session="shared", timeout_s=30.0)}) as hands:
            await _use_everything(hands)


async def _use_everything(hands: Hands) -> None:
    await hands.open("s", "everything", wait_s=250.0)
    added = await hands.call("s", "a", "get-sum", server="everything", a=2, b=40)
    assert added.status == "ok"
    assert "42" in added.content
    image = await hands.call("s", "b", "get-tiny-image", server="everything")
    [(name, data)] = image.images.items()
    assert data.startswith(b"\x89PNG")
    assert mark(name) in image.content
    wrong = await hands.call("s", "c", "get-sum", server="everything", a="two")
    assert (wrong.status, wrong.error_class) == ("tool_error", "policy")
    slow = await hands.call(
        "s", "d", "trigger-long-running-operation", server="everything", timeout_s=0.3, duration=30, steps=3
    )
    assert slow.status == "timeout"
    assert (await hands.call("s", "e", "echo", server="everything", message="on")).content == "Echo: on"


async def test_a_killed_server_behind_a_url_reconnects(make: MakeToolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "ANSWER_WITHIN_S", 1.0)
    command = (sys.executable, "-m", "assets.shop_server", "--no-faults", "--http", "{port}")
    with http_server(*command) as (url, process):
        port = int(url.removesuffix("/mcp").rpartition(":")[2])
        async with make({"shop": ToolServer(url=url, session="shared", timeout_s=30.0)}) as hands:
            await hands.open("s", "shop")
            assert (await hands.call("s", "a", "calculator", server="shop", expr="1+1")).content == "2"
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            lost = await hands.call("s", "b", "calculator", server="shop", expr="1+1")
            assert (lost.status, lost.reason, lost.error_class) == ("lost", "server", "infrastructure")
            await aeventually(lambda: hands.server("shop").state == "down")
            with http_server(*command, port=port):
                await aeventually(lambda: hands.server("shop").state == "serving")
                assert (await hands.call("s", "c", "calculator", server="shop", expr="1+2")).content == "3"
