"""The servers that come along, as real processes: through a toolbox in their sandbox, and by the client of the SDK."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from agentrl.config.data_plane import ToolServer
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.sandboxes import sandbox_cgroups
from agentrl.toolbox.api_messages import CallAnswer, CallTool, OpenSession
from agentrl.toolbox.toolbox import Toolbox
from tests.waiting import aeventually

PROGRAM = Path(__file__).parents[2] / "agentrl" / "toolservers" / "__main__.py"
FUNCTIONS = '''\
import os, time
from agentrl.toolservers import Session, effect

class Notes(Session):
    def __init__(self):
        self.lines = []

def note(line: str, notes: Notes) -> list:
    """Remember a line."""
    notes.lines.append(line)
    return notes.lines

@effect("pure")
def double(number: int) -> int:
    """Twice the number.

    Args:
        number: any
    """
    print("a line on stdout", flush=True)
    os.write(1, b"another one\\n")
    return 2 * number

async def wait(seconds: float) -> str:
    """Wait."""
    import asyncio
    await asyncio.sleep(seconds)
    return "waited"

def look(path: str) -> str:
    """Read a file."""
    return open(path).read()
'''
FORKS = """
import os, time
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
except OSError as refused:
    print(refused.strerror)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(FUNCTIONS)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.md").write_text("# Apples\nApples are red.")
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "task.txt").write_text("find the answer")
    return tmp_path


@asynccontextmanager
async def by_sdk(*arguments: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=sys.executable, args=[str(PROGRAM), *arguments])
    async with Client(parameters) as client:
        yield client


async def text_of(client: Client, tool: str, **arguments: Any) -> tuple[str, bool]:
    result = await client.call_tool(tool, arguments)
    return result.content[0].text, bool(result.is_error)  # type: ignore[union-attr]


# ---- through a toolbox, in the sandbox ----


Tools = Callable[[str], AbstractAsyncContextManager[Toolbox]]


@pytest.fixture
def started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """A toolbox with the servers of a run file. Only processes of a run get cgroups for their sandboxes."""
    monkeypatch.setenv("AGENTRL_RUN", str(uuid.uuid4()))
    monkeypatch.setenv("AGENTRL_INCARNATION", "toolbox-0.1")
    (folder / "runs" / "demo").mkdir(parents=True)
    (folder / "runs" / "demo" / "config.json").write_text("the secret")

    @asynccontextmanager
    async def starting(tools: str) -> AsyncIterator[Toolbox]:
        file = folder / "run.yaml"
        file.write_text(f"name: demo\nmodel: {{build: tiny}}\nenvironments: {{e: {{dataset: d}}}}\ntools:\n{tools}")
        config = load_config(file, environ={}).config
        # A toolbox removes its cgroups at its end, so forget the cached ones.
        sandbox_cgroups.usable_places.cache_clear()
        toolbox = Toolbox(config.tools, run_dir=Path(config.dir), name="toolbox-0.1")
        async with toolbox.running():
            await aeventually(lambda: all(one.state == "serving" for one in toolbox.servers()), what="servers to serve")
            yield toolbox
        sandbox_cgroups.usable_places.cache_clear()

    return starting


async def opened(toolbox: Toolbox, session: str = "s", **servers: None) -> Callable[..., Any]:
    names = tuple(one.id for one in toolbox.servers())
    await toolbox.open(OpenSession(id=session, servers=names, wait_s=30.0))
    calls = iter(range(1_000))

    async def call(tool: str, **arguments: Any) -> CallAnswer:
        return await toolbox.call(tool, CallTool(session=session, call=f"{session}.{next(calls)}", arguments=arguments))

    return call


async def test_all_servers_work_in_their_sandboxes(started: Tools, folder: Path) -> None:
    servers = """\
  own: {functions: tools.py, pool: 2}
  sum: {shipped: calculator}
  notes: {shipped: search, corpus: corpus/}
  files: {shipped: files, workspace: start, pool: 2}
  python: {shipped: python, pool: 2, timeout_s: 10, sandbox: {memory: 512MiB, processes: 32}}
"""
    async with started(servers) as toolbox:
        call = await opened(toolbox)
        other = await opened(toolbox, "other")
        assert {one.id: one.sandbox for one in toolbox.servers()} == dict.fromkeys(
            ("own", "sum", "notes", "files", "python"), "in a process sandbox"
        )
        effects = {tool.id: tool.effect for tool in toolbox.tools()}
        assert effects["own.double"] == effects["sum.calculate"] == effects["notes.search"] == "pure"
        assert effects["own.note"] == effects["files.read_file"] == effects["python.run_python"] == "session"
        assert (await call("own.double", number=4)).content == "8"
        assert (await call("own.note", line="a")).content == '["a"]'
        assert (await other("own.note", line="b")).content == '["b"]'
        assert (await call("sum.calculate", expression="1/8")).content == "0.125"
        assert json.loads((await call("notes.search", query="apples")).content)[0]["id"] == "a.md"
        assert (await call("files.write_file", path="x/y.txt", text="z")).status == "ok"
        assert (await call("files.list_files")).content == "task.txt (15 bytes)\nx/\nx/y.txt (1 bytes)"
        assert (await other("files.list_files")).content == "task.txt (15 bytes)"
        assert not (folder / "start" / "x").exists()
        assert (await call("python.run_python", code="x = 20\nx + 1")).content == "21\n"
        assert (await call("python.run_python", code="x")).content == "20\n"
        assert "NameError" in (await other("python.run_python", code="x")).content
        for path in ("/root/.bashrc", str(Path.home() / ".bashrc"), str(folder / "runs/demo/config.json")):
            assert (await call("own.look", path=path)).error_class == "policy"


async def test_attacks_from_python_cells_reach_nothing_and_end(started: Tools, folder: Path) -> None:
    async with started(
        "  python: {shipped: python, pool: 2, timeout_s: 6, sandbox: {memory: 256MiB, processes: 24}}\n"
    ) as box:
        call = await opened(box)

        async def run(code: str) -> CallAnswer:
            answer: CallAnswer = await call("python.run_python", code=code)
            return answer

        loop = await run("kept = 7\nwhile True: pass")
        assert (loop.status, loop.error_class) == ("tool_error", "policy")
        assert "[interrupted after 4.8 s]" in loop.content
        assert (await run("kept")).content == "7\n", "an interrupted cell keeps the variables"
        endless = await run("while True: print('x' * 1000)")
        assert endless.status == "tool_error"
        assert len(endless.content) < 17_000
        assert "characters left out" in endless.content
        assert "MemoryError" in (await run("a = bytearray(10 ** 10)")).content
        assert (await run("kept")).content == "7\n"
        state = await run(f"open('{folder / 'runs' / 'demo' / 'config.json'}').read()")
        assert "No such file" in state.content
        network = await run("import socket; socket.create_connection(('127.0.0.1', 22), 2)")
        assert "Error" in network.content
        lost = await run("import os; os.kill(os.getpid(), 9)")
        assert "killed by SIGKILL; its variables are lost" in lost.content
        stubborn = await run("import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass")
        assert (stubborn.status, stubborn.error_class) == ("tool_error", "policy")
        assert "it could not be interrupted; its variables are lost" in stubborn.content
        assert (await run(FORKS)).content.split()[-1] == "unavailable"
        full = await run("1")
        assert (full.status, full.error_class) == ("tool_error", "policy"), (
            "remaining processes of the session use up its limit"
        )
        other = await opened(box, "other")
        assert (await other("python.run_python", code="1")).content == "1\n"


def test_code_of_a_model_needs_its_sandbox(folder: Path) -> None:
    assert ToolServer.model_validate({"shipped": "python"}).sandbox.required
    assert ToolServer.model_validate({"shipped": "python", "sandbox": {"network": True}}).sandbox.required
    assert ToolServer.model_validate({"shipped": "python", "sandbox": "none"}).sandbox.kind == "none"
    assert ToolServer.model_validate({"shipped": "python"}).crash_means == "policy"
    assert ToolServer.model_validate({"shipped": "calculator"}).session == "shared"
    packages = ToolServer.model_validate({"functions": "x.py", "python": "numpy==2.0.0"})
    assert packages.start_command == ("python", str(PROGRAM), "functions", "x.py"), "of its virtual environment"


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("{shipped: python, command: x}", "exactly one of command, functions, shipped, url"),
        ("{shipped: search}", "corpus is needed by shipped: search"),
        ("{shipped: files, session: shared}", "session must be process"),
        ("{shipped: calculator, workspace: x}", "workspace is for shipped: files"),
        ("{shipped: shell}", "shipped"),
        ("{functions: x.py, npm: left-pad@1.0.0}", "functions and shipped servers are Python"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(folder: Path, section: str, why: str) -> None:
    file = folder / "run.yaml"
    file.write_text(
        f"name: demo\nmodel: {{build: tiny}}\nenvironments: {{e: {{dataset: d}}}}\ntools: {{t: {section}}}\n"
    )
    with pytest.raises(ConfigError, match=why):
        load_config(file, environ={})


# ---- by the client of the SDK ----


async def test_the_client_of_the_sdk_lists_and_calls_tools(folder: Path) -> None:
    async with by_sdk("functions", str(folder / "tools.py")) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        hints = tools["double"].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.idempotent_hint, hints.open_world_hint) == (True, True, False)
        assert tools["double"].input_schema["properties"] == {"number": {"type": "integer", "description": "any"}}
        assert await text_of(client, "double", number=2) == ("4", False), "printed text is not taken for a message"
        assert await text_of(client, "double", number="2") == ("number must be an integer, got '2'", True)
        results = await asyncio.gather(*(text_of(client, "wait", seconds=0.2) for _ in range(20)))
        assert results == [("waited", False)] * 20
        with pytest.raises(MCPError, match="no tool 'other'"):
            await client.call_tool("other", {})
        with pytest.raises(MCPError):
            await client.call_tool("wait", {"seconds": 60.0}, read_timeout_seconds=0.2)
        assert await text_of(client, "double", number=3) == ("6", False), "a call that was given up holds no other"
    async with by_sdk("functions", str(folder / "tools.py")) as client:
        assert client.server_info is not None
        assert client.server_info.name == "tools"


async def test_each_session_of_one_process_has_its_own_state(folder: Path) -> None:
    async with by_sdk("functions", str(folder / "tools.py")) as client:
        for session, shown in (("a", '["x"]'), ("b", '["x"]'), ("a", '["x", "x"]')):
            meta: Any = {"agentrl/session": session}
            result = await client.call_tool("note", {"line": "x"}, meta=meta)
            assert result.content[0].text == shown  # type: ignore[union-attr]


async def test_a_cancelled_cell_is_interrupted_and_keeps_its_variables(folder: Path) -> None:
    async with by_sdk("python", "--cell-s", "60") as client:
        assert await text_of(client, "run_python", code="x = 5") == ("", False)
        with pytest.raises(MCPError):
            await client.call_tool("run_python", {"code": "while True: pass"}, read_timeout_seconds=0.5)
        assert await text_of(client, "run_python", code="x") == ("5\n", False)


MESSAGES: Mapping[str, int] = {
    "this is no JSON": -32700,
    "[1]": -32600,
    '{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}': -32601,
    '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": []}': -32602,
    '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "calculate", "arguments": 3}}': -32602,
    "[" * 100_000: -32700,
}


def test_broken_messages_are_refused_and_the_server_goes_on() -> None:
    asked = [
        *MESSAGES,
        '{"jsonrpc": "2.0", "method": "notifications/x"}',
        '{"jsonrpc": "2.0", "id": 9, "method": "ping"}',
        '{"jsonrpc": "2.0", "id": 10, "method": "tools/call",'
        ' "params": {"name": "calculate", "arguments": {"expression": "6*7"}}}',
    ]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "calculator"],
        input="\n".join(asked) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["error"]["code"] for answer in answers[:-2]] == list(MESSAGES.values())
    assert (answers[-2]["id"], answers[-2]["result"], done.returncode) == (9, {}, 0)
    assert answers[-1]["result"]["content"][0]["text"] == "42", "also if stdin ends behind the request"


def test_a_server_starts_without_heavy_imports_and_without_agentrl(folder: Path) -> None:
    """A virtual environment of a server has no agentrl: the isolated interpreter finds nothing but the library."""
    loaded = "import sys, runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    ended = (
        "import atexit, os; real = os._exit; os._exit = lambda code: (print(*sys.modules, file=sys.stderr), real(code))"
    )
    for name in (
        ["calculator"],
        ["files"],
        ["search", str(folder / "corpus")],
        ["functions", str(folder / "tools.py")],
    ):
        words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"{loaded.partition(';')[0]}; {ended}; {loaded}",
            str(PROGRAM),
            *name,
        ]
        done = subprocess.run(words, input="", capture_output=True, text=True, timeout=60)
        modules = set(done.stderr.split())
        assert "agentrl.toolservers.mcp_stdio" in modules, done.stderr
        assert not modules & {"mcp", "pydantic", "msgspec", "anyio", "asyncio", "agentrl.errors"}


def test_a_file_that_fails_names_its_line(folder: Path) -> None:
    (folder / "broken.py").write_text("import json\n\njson.loads('{')\ndef f() -> str:\n    'Doc.'\n")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "functions", str(folder / "broken.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{folder / 'broken.py'}, line 3: json.decoder.JSONDecodeError")
