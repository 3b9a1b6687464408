"""Toolboxes with real servers: our own, and third-party servers in environments of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.http.free_ports import free_port
from agentrl.http.token_server import listening
from agentrl.toolbox.api import build_app
from agentrl.toolbox.api_messages import CallAnswer, CallTool, OpenSession
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolbox.toolbox import Toolbox
from tests.toolbox.third_party_servers import CACHE, third_party_servers
from tests.waiting import eventually

TOKEN = "a-token-of-this-test"
FAULTY = Path(__file__).with_name("faulty_servers.py")
MakeToolbox = Callable[..., AbstractAsyncContextManager["Hands"]]


class Hands:
    """A toolbox with short helper methods."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox

    async def open(self, id: str, *servers: str, wait_s: float = 30.0) -> bool:
        opened = await self.toolbox.open(OpenSession(id=id, servers=servers or ("faulty",), wait_s=wait_s))
        return opened.created

    async def call(
        self, session: str, call: str, tool: str, *, timeout_s: float = 0.0, server: str = "faulty", **arguments: Any
    ) -> CallAnswer:
        wanted = CallTool(session=session, call=call, arguments=arguments, timeout_s=timeout_s)
        return await self.toolbox.call(f"{server}.{tool}", wanted)

    def server(self, name: str = "faulty") -> Any:
        return next(server for server in self.toolbox.servers() if server.id == name)


def faulty(**settings: Any) -> ToolServer:
    """The faulty server. It has no sandbox, because tests look at its pid and at files that it writes."""
    defaults = {"session": "keyed", "timeout_s": 20.0, "sandbox": Sandbox(kind="none")}
    return ToolServer(command=(sys.executable, str(FAULTY)), **{**defaults, **settings})


@pytest.fixture
def make(tmp_path: Path) -> MakeToolbox:
    """A toolbox that runs during the body; by default with one faulty server."""

    @contextlib.asynccontextmanager
    async def making(servers: dict[str, ToolServer] | None = None, **options: Any) -> AsyncIterator[Hands]:
        chosen = {"faulty": faulty()} if servers is None else servers
        toolbox = Toolbox(chosen, run_dir=tmp_path, name="toolbox-0.1", **options)
        async with toolbox.running():
            yield Hands(toolbox)

    return making


@contextlib.asynccontextmanager
async def over_http(hands: Hands) -> AsyncIterator[ToolboxClient]:
    async with listening(build_app(hands.toolbox, TOKEN)) as url, ToolboxClient(url, TOKEN) as tools:
        yield tools


@contextlib.contextmanager
def http_server(*command: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An MCP server behind a URL; `{port}` in the command is replaced."""
    port = port or free_port()
    with subprocess.Popen([part.replace("{port}", str(port)) for part in command], stdin=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _listens(port, process), what="the server listens")
            yield f"http://127.0.0.1:{port}/mcp", process
        finally:
            process.kill()


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the server ended with {process.returncode}")
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, ToolServer]]:
    """Servers of assets/third-party-tools.yaml by name, with changed settings."""
    monkeypatch.setenv("AGENTRL_CACHE", str(CACHE))

    def chosen(*names: str, **settings: Any) -> dict[str, ToolServer]:
        found = third_party_servers(tmp_path, *names)
        return {name: server.model_copy(update=settings) for name, server in found.items()}

    return chosen
