"""What operators see of tool servers, and do to them: real servers in real sandboxes."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import HealthCheck, ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import UnknownNameError, UsageError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Tier
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import UnitPart
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.tool_commands import (
    ExecInSandbox,
    ExecOutput,
    ListSandboxes,
    ListTools,
    ListToolServers,
    ListToolSessions,
    ReleaseSession,
    RestartTool,
    SandboxRow,
    ShowExecOutput,
    ToolLogs,
)
from agentrl.protocol.wire import raw
from agentrl.sandboxes import sandbox_cgroups
from agentrl.toolbox.served_tool_commands import ServedToolCommands
from agentrl.toolbox.service_report import parts_of
from agentrl.toolbox.tool_manager import ToolManager
from agentrl.toolbox.toolbox import Toolbox
from tests.toolbox.conftest import FAULTY, Hands, MakeToolbox, faulty
from tests.waiting import aeventually

RUN = "5a5a5a5a-0000-4000-8000-000000000000"
HOG = "import __main__; __main__.held = bytearray(b'x') * ({mib} << 20); found = 'held'"


class Managed:
    """A toolbox with a server of processes and one that all sessions share, each in its sandbox."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.toolbox = hands.toolbox
        self.manager = ToolManager(hands.toolbox)
        self.served = ServedToolCommands(hands.toolbox)

    async def act(self, args: Args, id: str = "op", *, dry_run: bool = False) -> Any:
        """Send a command as the coordinator does: again until it is done."""
        name = next(spec.name for spec in COMMANDS.values() if spec.args is type(args))
        question = AskUnit("ask", id, name, raw(args), "ada", dry_run=dry_run)
        return await self.served.answer(question)

    async def done(self, args: Args, id: str = "op") -> Done:
        async def whole() -> Done | None:
            answer: Done = await self.act(args, id)
            return None if answer.under_way else answer

        return await aeventually(whole)

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
    commands = ServedToolCommands(Toolbox({}, run_dir=tmp_path))
    assert {*commands.queries, *commands.changes} == served


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


async def test_release_ends_the_calls_of_its_session_as_cancelled_and_nothing_else(
    managed: Managed, tmp_path: Path
) -> None:
    await managed.hands.open("r1", "own", "all")
    await managed.hands.open("r2", "own", "all")
    hangs = asyncio.create_task(managed.hands.call("r1", "r1/0", "hang", server="own"))
    await aeventually(lambda: managed.manager.sessions(ListToolSessions())[0].running)
    counted = await managed.hands.call("r2", "r2/0", "count", server="all")
    before = managed.manager.servers(ListToolServers())

    release = ReleaseSession("r1", "toolbox-0.1")
    effect = await managed.act(release, dry_run=True)
    assert "the session r1 of all, own ends, and 1 call under way end as cancelled" in effect.sentence()
    assert COMMANDS["release_session"].tier(effect) is Tier.DESTRUCTIVE
    await managed.done(release)
    answer = await hangs
    assert (answer.status, answer.error_class) == ("cancelled", "infrastructure")
    assert "released by ada" in answer.content
    assert await managed.done(release) == Done(("r1 released all, own",)), "once per operation"

    with pytest.raises(UnknownNameError, match="No session 'r1' is open"):
        await managed.act(release, "another", dry_run=True)
    again = await managed.hands.call("r2", "r2/1", "count", server="all")
    assert [text.content.split()[2] for text in (counted, again)] == ["1", "2"], "its state is untouched"
    after = managed.manager.servers(ListToolServers())
    assert [row.failed for row in after] == [row.failed for row in before], "no failure of the tool"
    assert [row.died for row in after] == [0, 0]


async def test_restart_waits_for_sessions_and_keeps_their_state(managed: Managed) -> None:
    await managed.hands.open("r1", "own", "all")
    first = await managed.hands.call("r1", "r1/0", "count", server="all")
    old = managed.sandboxes(server="all")[0]
    restart = RestartTool(server="all")
    effect = await managed.act(restart, dry_run=True)
    assert effect.sentence() == f"restarts {old.id}; 1 session end first"
    assert COMMANDS["restart_tool"].tier(effect) is Tier.DISRUPTIVE

    assert "waits for r1" in (await managed.act(restart)).under_way
    await aeventually(lambda: len(managed.sandboxes(server="all", filter="state=shared")) == 2, what="both serve")
    await managed.hands.open("r2", "all")
    second = await managed.hands.call("r2", "r2/0", "count", server="all")
    third = await managed.hands.call("r1", "r1/1", "count", server="all")
    counts = [text.content.split()[2] for text in (first, second, third)]
    assert counts == ["1", "1", "2"], "the old session keeps its state"
    boxes = {row.id: row.sandboxes for row in managed.manager.sessions(ListToolSessions())}
    assert old.id in boxes["r1"]
    assert old.id not in boxes["r2"], "a new session has the new process"
    await managed.toolbox.close("r1")
    await managed.done(restart)
    assert [row.id for row in managed.sandboxes(server="all")] != [old.id]
    assert managed.manager.servers(ListToolServers(server="all"))[0].died == 0


async def test_restart_at_once_ends_the_calls_without_blame(managed: Managed) -> None:
    managed.toolbox.all_servers["own"].config = server(Path(), "process", crash_means="policy")
    await managed.hands.open("r1", "own")
    hangs = asyncio.create_task(managed.hands.call("r1", "r1/0", "hang", server="own"))
    await aeventually(lambda: managed.manager.sessions(ListToolSessions())[0].running)
    box = await managed.of_session("r1")
    restart = RestartTool(sandbox=box.id, now=True)
    effect = await managed.act(restart, dry_run=True)
    assert "the session of r1 ends" in effect.sentence()
    await managed.done(restart)
    answer = await hangs
    assert (answer.status, answer.error_class) == ("lost", "infrastructure")
    assert "restarted by ada" in answer.content
    assert managed.manager.servers(ListToolServers(server="own"))[0].died == 0
    with pytest.raises(UnknownNameError, match="No sandbox"):
        await managed.act(restart, "another", dry_run=True)


async def run_inside(managed: Managed, box: str, *command: str, within_s: float = 20.0) -> ExecOutput:
    args = ExecInSandbox(box, command, within_s)
    await managed.done(args, f"exec {command}")
    return (await managed.act(ShowExecOutput(f"exec {command}")))[0]


async def test_program_runs_within_the_sandbox_and_its_limits(managed: Managed, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    await managed.hands.open("r1", "own")
    box = await managed.of_session("r1")
    effect = await managed.act(ExecInSandbox(box.id, ("echo", "a;b $HOME")), dry_run=True)
    assert effect.sentence() == f"runs `echo 'a;b $HOME'` in {box.id}, which serves r1"
    assert COMMANDS["exec_in_sandbox"].tier(effect) is Tier.DISRUPTIVE

    said = await run_inside(managed, box.id, "echo", "a;b $HOME")
    assert (said.exit, said.stdout) == (0, "a;b $HOME\n"), "no shell reads the words"
    code = f"""
import os, resource, socket
own = open('/proc/1/cmdline').read()
print('bwrap' in own or 'prlimit' in own, os.path.exists({str(tmp_path / "secret")!r}))
print(sorted(os.listdir('/proc/self/fd')) <= ['0', '1', '2', '3'])
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')))
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('NoNewPrivs')))
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('Seccomp:')))
print(resource.getrlimit(resource.RLIMIT_DATA)[0], os.getuid() != 0)
try:
    socket.create_connection(('127.0.0.1', 22), 1)
except OSError as failed:
    print(type(failed).__name__)
try:
    os.chroot('.')
except OSError as failed:
    print(type(failed).__name__)
held = bytearray(b'x') * (400 << 20)
"""
    tried = await run_inside(managed, box.id, sys.executable, "-c", code)
    assert tried.stdout.splitlines() == [
        "True False", "True", "0000000000000000", "1", "2", f"{256 << 20} True",
        "ConnectionRefusedError", "PermissionError",
    ]  # fmt: skip
    assert tried.exit == 1
    assert "MemoryError" in tried.stderr


async def test_program_in_a_sandbox_is_bounded_in_time_and_output(managed: Managed) -> None:
    await managed.hands.open("r1", "own")
    box = await managed.of_session("r1")
    long = await run_inside(managed, box.id, sys.executable, "-c", "print('x' * (2 << 20))")
    assert (long.exit, long.cut, len(long.stdout)) == (0, True, 256 << 10)
    leaves = (
        "import os, time; os.fork() or os.setsid() and time.sleep(600); print('begun', flush=True); time.sleep(600)"
    )
    late = await run_inside(managed, box.id, sys.executable, "-c", leaves, within_s=1.0)
    assert late.exit is None
    assert "begun" in late.stdout
    inside = await run_inside(managed, box.id, "ls", "/proc")
    assert len([name for name in inside.stdout.split() if name.isdecimal()]) <= 5, "what it started is gone"
    missing = await run_inside(managed, box.id, "no-such-program")
    assert (missing.exit, missing.stderr) == (127, "no-such-program: No such file or directory\n")


async def test_memory_hog_is_shown_with_its_session_and_reported_until_it_ends(managed: Managed) -> None:
    await managed.hands.open("r1", "own")
    await managed.hands.call("r1", "r1/0", "python", server="own", code=HOG.format(mib=235))

    def part() -> UnitPart:
        return next(each for each in parts_of(managed.toolbox.servers()) if each.name == "own")

    def near_its_limit() -> SandboxRow | None:
        """The row of the sandbox. The limit holds for what the tool has reserved, of which it uses more and more."""
        row = managed.sandboxes(filter="memory_share>=0.9", sort="-memory")[0]
        return row if part().memory_share >= 0.9 and row.memory_bytes > 235 << 20 else None

    box = await aeventually(near_its_limit, what="it is near its limit")
    assert (box.session, part().fullest) == ("r1", box.id)
    assert box.memory_bytes <= box.memory_limit_bytes
    await managed.toolbox.close("r1")
    await aeventually(lambda: not part().fullest, what="the alert can end")


async def test_server_whose_tool_hangs_or_fails_is_named_though_it_lives(make: MakeToolbox, tmp_path: Path) -> None:
    answers, down = tmp_path / "answers", tmp_path / "down"
    hangs = HealthCheck(tool="note", arguments={"path": str(tmp_path / "notes"), "until": str(answers)})
    fails = HealthCheck(tool="search", arguments={"while_down": str(down)})
    down.touch()
    servers = {"hangs": faulty(health=hangs), "fails": faulty(session="process", pool=1, health=fails), "ok": faulty()}
    async with make(servers) as hands:

        def found() -> dict[str, str]:
            return {row.id: row.unhealthy for row in ToolManager(hands.toolbox).servers(ListToolServers())}

        await aeventually(lambda: all(row.state == "serving" for row in hands.toolbox.servers()))
        await aeventually(lambda: found()["hangs"] and found()["fails"], what="both are named")
        assert found()["hangs"] == "note did not answer within 4 s"
        assert found()["fails"].startswith("search failed: ")
        assert "the line is down" in found()["fails"]
        assert not found()["ok"]
        assert all(row.state == "serving" for row in hands.toolbox.servers())
        assert [part.unhealthy != "" for part in parts_of(hands.toolbox.servers())] == [True, True, False]
        boxes = ToolManager(hands.toolbox).sandboxes(ListSandboxes(filter='purpose="health check"'))
        assert [box.server for box in boxes] == ["fails"]
        answers.touch()
        down.unlink()
        await aeventually(lambda: not any(found().values()), what="both are well again")
        assert [row.died for row in hands.toolbox.servers()] == [0, 0, 0]


async def test_logs_show_lines_of_a_server_and_of_a_sandbox_that_has_ended(managed: Managed) -> None:
    await managed.hands.open("r1", "own")
    box = (await managed.of_session("r1")).id
    await managed.hands.call("r1", "r1/0", "die", server="own", words="the last words")
    await managed.toolbox.close("r1")
    lines = managed.manager.logs(ToolLogs(name=box))
    assert [(line.sandbox, line.text) for line in lines] == [(box, "the last words")]
    assert managed.manager.logs(ToolLogs(name="own")) == lines
    assert managed.manager.logs(ToolLogs(name="own-1", after={"toolbox-0.1": lines[-1].number})) == []
    with pytest.raises(UnknownNameError, match="no tool server or sandbox 'own-77'"):
        managed.manager.logs(ToolLogs(name="own-77"))
