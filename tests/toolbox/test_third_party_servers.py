"""Third-party servers work: other languages, other versions of the SDK, over pipes and over HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.toolbox import mcp_connection
from tests.toolbox.conftest import MakeToolbox, http_server
from tests.toolbox.third_party_servers import Others
from tests.waiting import aeventually


async def test_a_server_of_the_first_sdk_version(make: MakeToolbox, others: Others) -> None:
    async with make({"time": ToolServer(command=others.time, session="shared", block="convert_time")}) as hands:
        await hands.open("s", "time")
        (tool,) = hands.toolbox.tools("time")
        assert (tool.name, list(tool.schema["properties"])) == ("get_current_time", ["timezone"])
        good = await hands.call("s", "a", "get_current_time", server="time", timezone="Asia/Tokyo")
        assert (good.status, json.loads(good.content)["timezone"]) == ("ok", "Asia/Tokyo")
        bad = await hands.call("s", "b", "get_current_time", server="time", timezone="Atlantis")
        assert (bad.status, bad.error_class) == ("tool_error", "policy")
        missing = await hands.call("s", "c", "get_current_time", server="time")
        assert (missing.status, missing.error_class) == ("tool_error", "policy")


async def test_a_git_server_with_a_process_for_each_session(make: MakeToolbox, others: Others, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    await asyncio.to_thread(subprocess.run, ["git", "init", "--quiet", str(repository)], check=True, timeout=60)
    (repository / "new file").write_text("x")
    servers = {"git": ToolServer(command=(*others.git, "--repository", "{run_dir}/repository"), pool=1)}
    async with make(servers) as hands:
        assert await hands.open("s", "git")
        answer = await hands.call("s", "a", "git_status", server="git", repo_path=str(repository))
        assert answer.status == "ok", answer
        assert "new file" in answer.content
        outside = await hands.call("s", "b", "git_status", server="git", repo_path=str(tmp_path / "nowhere"))
        assert (outside.status, outside.error_class) == ("tool_error", "policy")


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_in_another_language(make: MakeToolbox, others: Others, transport: str) -> None:
    """Numbers, images, resources, slow calls, and a call that does not end in time."""
    if transport == "stdio":
        await _use_everything(make, ToolServer(command=(*others.everything, "stdio"), session="shared", timeout_s=30.0))
        return
    with http_server("env", "PORT={port}", *others.everything, "streamableHttp") as (url, _):
        await _use_everything(make, ToolServer(url=url, session="shared", timeout_s=30.0))


async def _use_everything(make: MakeToolbox, server: ToolServer) -> None:
    async with make({"all": server}) as hands:
        await hands.open("s", "all")
        added = await hands.call("s", "a", "get-sum", server="all", a=2, b=40)
        assert added.status == "ok"
        assert "42" in added.content
        image = await hands.call("s", "b", "get-tiny-image", server="all")
        assert "[image, image/png]" in image.content
        wrong = await hands.call("s", "c", "get-sum", server="all", a="two")
        assert (wrong.status, wrong.error_class) == ("tool_error", "policy")
        slow = await hands.call(
            "s", "d", "trigger-long-running-operation", server="all", timeout_s=0.3, duration=30, steps=3
        )
        assert slow.status == "timeout"
        assert (await hands.call("s", "e", "echo", server="all", message="on")).content == "Echo: on"


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
