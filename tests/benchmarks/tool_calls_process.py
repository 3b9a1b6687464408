"""The processes of the benchmark of tool calls: an MCP server, a toolbox, and callers with and without a toolbox.

    python -m tests.benchmarks.tool_calls_process stdio-server
    python -m tests.benchmarks.tool_calls_process http-server
    python -m tests.benchmarks.tool_calls_process toolbox [SERVER]
    python -m tests.benchmarks.tool_calls_process whole-way ACT TOOLBOX
    python -m tests.benchmarks.tool_calls_process toolbox-alone ACT [SERVER]
    python -m tests.benchmarks.tool_calls_process sdk ACT [SERVER]

ACT is `calls`, the calls of 64 sessions for some seconds, or `sessions`, a thousand sessions with one call each that
are open at the same time. SERVER and TOOLBOX are URLs; without SERVER the server is a child over stdio. A serving
process prints its URL and ends when its stdin is closed; callers print their figures as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import uvloop
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.http.token_server import listening
from agentrl.toolbox.api import build_app
from agentrl.toolbox.api_messages import CallTool, OpenSession
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolbox.toolbox import Toolbox

CALLERS = 64
SESSIONS = int(os.environ.get("BENCH_SESSIONS", "1000"))
WARM_S, MEASURED_S = 1.0, float(os.environ.get("BENCH_CALLS_S", "4"))
OPEN_WITHIN_S = 60.0
TOKEN = "a-token-of-the-benchmark"
SERVER = (sys.executable, "-m", "tests.benchmarks.tool_calls_process", "stdio-server")
Act = Callable[[int], Awaitable[None]]
Figures = dict[str, float]


def echo_server() -> MCPServer:
    server = MCPServer("measured", log_level="ERROR")

    @server.tool()
    async def echo(text: str) -> str:
        return text

    return server


async def serve_http() -> None:
    server = echo_server()
    app = server.streamable_http_app(stateless_http=True)
    async with server.session_manager.run(), listening(app) as url:
        print(f"{url}/mcp", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def serve_toolbox(server: str) -> None:
    async with toolbox_of(server) as toolbox, listening(build_app(toolbox, TOKEN)) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextlib.asynccontextmanager
async def toolbox_of(server: str) -> AsyncIterator[Toolbox]:
    plain = ToolServer(command=SERVER, session="shared", sandbox=Sandbox(kind="none"))
    config = ToolServer(url=server, session="shared") if server else plain
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        toolbox = Toolbox({"measured": config}, run_dir=Path(folder), name="toolbox-0.1")
        async with toolbox.running():
            yield toolbox


async def whole_way(act: str, url: str) -> Figures:
    """Figures for the client of a sampler, a toolbox in another process, and the server."""
    async with ToolboxClient(url, TOKEN) as tools:
        ids = fresh_ids()
        mine = next(ids)

        async def opened(session: int) -> None:
            await tools.open(f"{mine}-{session}", ["measured"], wait_s=OPEN_WITHIN_S)

        async def call(session: int) -> None:
            answer = await tools.call(f"{mine}-{session}", next(ids), "measured", "echo", {"text": "hello"})
            assert answer.content == "hello", answer

        return await figures(act, opened, call)


async def toolbox_alone(act: str, server: str) -> Figures:
    """Figures for a toolbox in the process of its callers."""
    async with toolbox_of(server) as toolbox:
        ids = fresh_ids()

        async def opened(session: int) -> None:
            await toolbox.open(OpenSession(id=f"{session}", servers=("measured",), wait_s=OPEN_WITHIN_S))

        async def call(session: int) -> None:
            wanted = CallTool(session=f"{session}", call=next(ids), arguments={"text": "hello"})
            answer = await toolbox.call("measured.echo", wanted)
            assert answer.content == "hello", answer

        return await figures(act, opened, call)


async def sdk(act: str, server: str) -> Figures:
    """Figures for a client of the SDK. For `calls`, all callers share one client, like the sessions of a toolbox. For
    `sessions`, each session has a client of its own."""
    target = server or StdioServerParameters(command=SERVER[0], args=[*SERVER[1:]], env=dict(os.environ))
    clients: dict[int, Client] = {}
    leave = asyncio.Event()

    async def hold(session: int, ready: asyncio.Future[None]) -> None:
        """Hold a client open, because the same task must enter and leave it."""
        try:
            async with Client(target) as client:
                clients[session] = client
                ready.set_result(None)
                await leave.wait()
        except Exception as failed:  # noqa: BLE001 - the boundary: a session that failed is counted
            if not ready.done():
                ready.set_exception(failed)

    async def opened(session: int) -> None:
        if act == "calls" and session:
            return
        ready = asyncio.get_running_loop().create_future()
        holding.create_task(hold(session, ready))
        await ready

    async def call(session: int) -> None:
        answer = await clients[0 if act == "calls" else session].call_tool("echo", {"text": "hello"})
        assert not answer.is_error, answer

    async with asyncio.TaskGroup() as holding:
        try:
            return await figures(act, opened, call)
        finally:
            leave.set()


def fresh_ids() -> Iterator[str]:
    """Call ids that no caller has used before, because a toolbox never runs a call id twice."""
    prefix = uuid.uuid4().hex
    return (f"{prefix}-{number}" for number in itertools.count())


async def figures(act: str, opened: Act, call: Act) -> Figures:
    if act == "sessions":
        return await open_at_once(opened, call)
    for session in range(CALLERS):
        await opened(session)
    return await calls_per_s(call)


async def calls_per_s(call: Act) -> Figures:
    """Calls per second, and the processor time of this process per call in milliseconds."""
    count = 0

    async def caller(session: int) -> None:
        nonlocal count
        while True:
            await call(session)
            count += 1

    callers = [asyncio.create_task(caller(session)) for session in range(CALLERS)]
    await asyncio.sleep(WARM_S)
    before, spent, began = count, time.process_time(), time.perf_counter()
    await asyncio.wait(callers, timeout=MEASURED_S, return_when=asyncio.FIRST_EXCEPTION)
    done, took_s = count - before, time.perf_counter() - began
    spent = time.process_time() - spent
    for each in callers:
        if each.done():
            each.result()
        each.cancel()
    await asyncio.wait(callers)
    return {"calls_per_s": done / took_s, "cpu_ms": 1e3 * spent / done}


async def open_at_once(opened: Act, call: Act) -> Figures:
    """Seconds until all sessions are open and have made a call, the number that failed, and the memory of one."""
    before, began = rss(), time.perf_counter()

    async def session(number: int) -> None:
        await opened(number)
        await call(number)

    ended = await asyncio.gather(*map(session, range(SESSIONS)), return_exceptions=True)
    took_s = time.perf_counter() - began
    failed = [each for each in ended if each is not None]
    if failed:
        print(f"{len(failed)} sessions failed, the first with {failed[0]!r}", file=sys.stderr)
    return {"took_s": took_s, "failed": len(failed), "kib": (rss() - before) / 1024 / SESSIONS}


def rss(pid: int | None = None) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def main() -> None:
    logging.disable(logging.WARNING)
    what, *rest = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        match what:
            case "stdio-server":
                runner.run(echo_server().run_stdio_async())
            case "http-server":
                runner.run(serve_http())
            case "toolbox":
                runner.run(serve_toolbox("".join(rest)))
            case _:
                act, url = rest[0], "".join(rest[1:])
                measured = {"whole-way": whole_way, "toolbox-alone": toolbox_alone, "sdk": sdk}[what]
                print(json.dumps(runner.run(measured(act, url))))


if __name__ == "__main__":
    main()
