"""What operators see of tool servers, and do to them: real servers in real sandboxes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import UsageError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.tool_commands import (
    ListSandboxes,
    ListTools,
    ListToolServers,
    ListToolSessions,
    SandboxRow,
)
from agentrl.sandboxes import sandbox_cgroups
from agentrl.toolbox.served_tool_commands import ServedToolCommands
from agentrl.toolbox.tool_manager import ToolManager
from agentrl.toolbox.toolbox import Toolbox
from tests.toolbox.conftest import FAULTY, Hands
from tests.waiting import aeventually

RUN = "5a5a5a5a-0000-4000-8000-000000000000"
HOG = "import __main__; __main__.held = bytearray(b'x') * ({mib} << 20); found = 'held'"


class Managed:
    """A toolbox with a server of processes and one that all sessions share, each in its sandbox."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.toolbox = hands.toolbox
        self.manager = ToolManager(hands.toolbox)

    def sandboxes(self, **args: Any) -> list[SandboxRow]:
        return self.manager.sandboxes(ListSandboxes(**args))

    async def of_session(self, session: str, server: str = "own") -> SandboxRow:
        rows = self.sandboxes(server=server, filter=f"session={session}")
        assert len(rows) == 1
        return rows[0]


def server(work: Path, session: str, **settings: Any) -> ToolServer:
    sandbox = Sandbox.model_validate({"required": True, "memory": "256MiB", **settings.pop("sandbox", {})})
    command = (sys.executable, "server.py")
    defaults = {"command": command, "cwd": str(work), "session": session, "pool": 2, "timeout_s": 20}
    return ToolServer(**{**defaults, **settings}, sandbox=sandbox)


@pytest.fixture
async def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Managed]:
    monkeypatch.setenv("AGENTRL_RUN", RUN)
    monkeypatch.setenv("AGENTRL_INCARNATION", "toolbox-0.1")
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(FAULTY, work / "server.py")
    servers = {"own": server(work, "process"), "all": server(work, "keyed")}
    sandbox_cgroups.usable_places.cache_clear()
    toolbox = Toolbox(servers, run_dir=tmp_path, name="toolbox-0.1")
    async with toolbox.running():
        yield Managed(Hands(toolbox))
    assert not [place for place, _ in sandbox_cgroups.usable_places() if place.exists()]
    sandbox_cgroups.usable_places.cache_clear()


def test_toolbox_serves_exactly_the_commands_of_the_table(tmp_path: Path) -> None:
    served = {spec.name for spec in COMMANDS.values() if spec.served_by == "toolbox"}
    commands = ServedToolCommands(ToolManager(Toolbox({}, run_dir=tmp_path)))
    assert set(commands.queries) == served


async def test_lists_show_servers_tools_sandboxes_and_sessions(managed: Managed) -> None:
    await managed.hands.open("r1", "own", "all")
    await managed.hands.open("r2", "all")
    await managed.hands.call("r1", "r1/0", "echo", server="own", text="here")
    await aeventually(lambda: len(managed.sandboxes(server="own")) == 2, what="the pool is full")
    await aeventually(lambda: all(row.measured_at for row in managed.sandboxes()), what="all are measured")

    mine = await managed.of_session("r1")
    assert mine.id.startswith("toolbox-0.1/own-")
    assert (mine.kind, mine.state, mine.calls, mine.processes_limit) == ("process", "session", 1, 128)
    assert mine.memory_bytes > 1 << 20
    assert mine.memory_limit_bytes == 256 << 20
    assert 0.0 < mine.memory_share < 0.9
    assert mine.processes >= 1
    assert mine.open_files >= 3
    shared = managed.sandboxes(server="all")[0]
    assert (shared.state, shared.sessions, shared.session) == ("shared", 2, "")
    assert [row.state for row in managed.sandboxes(filter="state=idle")] == ["idle"]
    assert [row.server for row in managed.sandboxes(sort="server", limit=2)] == ["all", "own"]

    own = managed.manager.servers(ListToolServers(server="own"))[0]
    assert (own.sandboxes, own.sessions, own.calls, own.pool) == (2, 1, 1, 2)
    assert own.memory_bytes >= mine.memory_bytes
    echo = next(row for row in managed.manager.tools(ListTools(server="own")) if row.name == "echo")
    assert (echo.calls, echo.errors) == (1, 0)
    assert echo.effect == "session"
    first = managed.manager.sessions(ListToolSessions())[0]
    assert (first.id, first.servers, first.calls) == ("r1", ("all", "own"), 1)
    assert mine.id in first.sandboxes


async def test_unknown_server_and_wrong_filter_are_refused_with_what_exists(managed: Managed) -> None:
    with pytest.raises(Exception, match="known are: own, all"):
        managed.sandboxes(server="owm")
    with pytest.raises(UsageError, match="did you mean 'memory_share'"):
        managed.sandboxes(filter="memory_shar>0.5")
