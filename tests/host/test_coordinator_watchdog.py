"""The host agent keeps exactly one coordinator alive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from agentrl.config.run_marker import MARKER, Marker
from agentrl.errors import ExitCode
from agentrl.host import procfs
from agentrl.host.agent import Agent
from agentrl.host.child_processes import ChildProcesses
from agentrl.host.coordinator_watchdog import CoordinatorWatchdog
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import CoordinatorTrouble, Spawned, Welcome
from tests.host.harness import SLEEP, Bench, identity_of, spawn
from tests.waiting import aeventually, eventually

# Replaces the coordinator: writes its pid file like the real one and lives until it is killed.
COORDINATOR = """
import json, os, sys, time
folder = sys.argv[1]
open(folder + '/starts', 'a').write('x')
code = int(open(folder + '/code').read() or 0) if os.path.exists(folder + '/code') else None
if code is not None: sys.exit(code)
start = int(open(f'/proc/{os.getpid()}/stat').read().rpartition(')')[2].split()[19])
boot = open('/proc/sys/kernel/random/boot_id').read().strip()
json.dump({'pid': os.getpid(), 'start_ticks': start, 'boot_id': boot, 'host': 'h'}, open(folder + '/tmp', 'w'))
os.replace(folder + '/tmp', folder + '/coordinator.json')
time.sleep(1000)
"""

RUN = f"run-{uuid.uuid4()}"


@contextlib.asynccontextmanager
async def guarding(folder: Path, gave_up: list[str], agent: Agent | None = None) -> AsyncIterator[CoordinatorWatchdog]:
    processes = ChildProcesses()
    processes.become_parent_of_orphans()

    def left() -> bool:
        gave_up.append("it left")
        return agent is not None and agent.coordinator_left()

    watchdog = CoordinatorWatchdog(
        processes,
        folder,
        folder / "coordinator.log",
        RUN,
        on_given_up=gave_up.append,
        on_left=left,
        on_taken=lambda: agent is not None and agent.run_was_taken(),
        command=(sys.executable, "-c", COORDINATOR, str(folder)),
    )
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()
        processes.close()


def pid_of(folder: Path) -> int:
    path = folder / "coordinator.json"
    return int(json.loads(path.read_text())["pid"]) if path.exists() else 0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    eventually(lambda: not ended(), what="the end of all that was started")


def ended() -> list[int]:
    """Kill the processes of the run and return their pids. During an exec a process has its mark, but no command."""
    found = [pid for pid in procfs.all_pids() if (procfs.marks(pid) or {}).get(procfs.MARK_RUN) == RUN.encode()]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


async def test_killed_coordinator_is_restarted_at_once_and_carries_the_mark(folder: Path) -> None:
    async with guarding(folder, []) as watchdog:
        first = await aeventually(lambda: pid_of(folder))
        assert first == watchdog.pid
        assert (procfs.marks(first) or {})[b"AGENTRL_RUN"] == RUN.encode()
        os.kill(first, signal.SIGKILL)
        second = await aeventually(lambda: pid_of(folder) not in (0, first) and pid_of(folder))
        assert second == watchdog.pid


async def test_next_agent_adopts_the_living_coordinator_and_restarts_it_when_it_dies(folder: Path) -> None:
    async with guarding(folder, []):
        first = await aeventually(lambda: pid_of(folder))
    async with guarding(folder, []) as watchdog:
        assert watchdog.pid == first
        assert (folder / "starts").read_text() == "x"
        os.kill(int(first), signal.SIGKILL)
        await aeventually(lambda: watchdog.pid not in (0, first))


@pytest.mark.parametrize(
    ("code", "words"), [(78, "configuration is wrong"), (6, "Another coordinator holds"), (0, "by itself")]
)
async def test_end_that_a_restart_cannot_repair_is_final(folder: Path, code: int, words: str) -> None:
    (folder / "code").write_text(str(code))
    gave_up: list[str] = []
    async with guarding(folder, gave_up) as watchdog:
        await aeventually(lambda: not watchdog.active)
        assert words in gave_up[-1]
        assert gave_up[:-1] == (["it left"] if code == 0 else [])
        assert not watchdog.active
        assert (folder / "starts").read_text() == "x"


@pytest.mark.parametrize("keeps", [False, True], ids=["without units", "with a unit"])
async def test_agent_ends_with_its_coordinator_unless_it_has_units(bench: Bench, folder: Path, keeps: bool) -> None:
    (folder / "code").write_text("0")
    gave_up: list[str] = []
    async with bench.tidy_agent() as agent:
        if keeps:
            agent.receive(spawn("web-0", *SLEEP))
            await bench.sent.one(Spawned)
        async with guarding(folder, gave_up, agent) as agent.watchdog:
            await aeventually(lambda: not agent.watchdog.active)
            assert len(gave_up) == (2 if keeps else 1), "an agent that ends does not report that it gave up"
            assert agent.finished.is_set() == (not keeps)


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_units_end_with_their_agent_if_the_run_was_taken_up_on_another_host(
    bench: Bench, folder: Path, elsewhere: bool
) -> None:
    (folder / "code").write_text("6")
    gave_up: list[str] = []
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        pid = (await bench.sent.one(Spawned)).pid
        boot = "another" if elsewhere else procfs.boot_id()
        marker = Marker(host="far", boot_id=boot, name="r", uuid=agent.home.run, heartbeat_at=0.0)
        (agent.home.run_dir / MARKER).write_bytes(msgspec.json.encode(marker))
        async with guarding(folder, gave_up, agent) as agent.watchdog:
            if elsewhere:
                await aeventually(agent.finished.is_set, what="its end")
                assert agent.exit_code == ExitCode.CONFLICT
                assert procfs.read_stat(pid) is None
            else:
                await aeventually(lambda: gave_up)
                assert identity_of(pid).alive()


async def test_holder_of_the_lock_is_adopted_once_coordinator_json_names_it(folder: Path) -> None:
    (folder / "code").write_text("6")
    gave_up: list[str] = []
    async with guarding(folder, gave_up) as watchdog:
        await aeventually(lambda: (folder / "starts").exists() and watchdog.pid == 0)
        holder = sleeper()
        try:
            identity = identity_of(holder.pid)
            file = {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
            (folder / "coordinator.json").write_text(json.dumps(file))
            await aeventually(lambda: watchdog.pid == holder.pid)
            assert gave_up == []
        finally:
            watchdog.stop()
            holder.kill()
            holder.wait()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True)


async def test_pauses_between_restarts_grow_with_repeated_deaths(folder: Path) -> None:
    (folder / "code").write_text("1")
    loop = asyncio.get_running_loop()
    # Measured from before the first start; a later beginning would miss part of the pauses.
    then = loop.time()
    async with guarding(folder, []) as watchdog:
        await aeventually(lambda: len((folder / "starts").read_text()) >= 5)
        assert loop.time() - then > 3.0, "the pauses are 0.5, 1 and 2 s"
        assert watchdog.active


WELCOME = Welcome(epoch="e", run=RUN, run_name="r", now_ct=0.0, coordinator_silent_s=0.4)


def no_reply(message: Message) -> bool:
    return False


def reports_of(watchdog: CoordinatorWatchdog) -> list[CoordinatorTrouble]:
    """The reports for the next coordinator."""
    reply: list[Message] = []
    watchdog.received(WELCOME, lambda message: reply.append(message) is None)
    return [each for each in reply if isinstance(each, CoordinatorTrouble)]


async def test_silent_coordinator_writes_its_stacks_and_is_replaced(
    folder: Path,
) -> None:
    async with guarding(folder, []) as watchdog:
        first = await aeventually(lambda: pid_of(folder))
        watchdog.received(WELCOME, no_reply)
        await aeventually(lambda: pid_of(folder) not in (0, first) and watchdog.pid == pid_of(folder))
        (trouble,) = reports_of(watchdog)
        assert trouble.pid == first
        assert "silent" in trouble.what
        assert "started" in trouble.done
        assert trouble.exit is not None
        assert trouble.exit.signal == signal.SIGABRT
        assert reports_of(watchdog) == [], "the trouble is reported once"


def state_of(pid: int) -> str:
    stat = procfs.read_stat(pid)
    return stat.state if stat is not None else ""


async def test_stopped_coordinator_is_continued_once_and_replaced_if_it_stays_silent(folder: Path) -> None:
    async with guarding(folder, []) as watchdog:
        first = int(await aeventually(lambda: pid_of(folder)))
        os.kill(first, signal.SIGSTOP)
        await aeventually(lambda: state_of(first) == "T")
        watchdog.received(WELCOME, no_reply)
        # A continued process needs processor time before it sleeps again.
        await aeventually(lambda: state_of(first) != "T")
        # On a busy machine it may have been replaced meanwhile, which is a second report.
        trouble = reports_of(watchdog)[0]
        assert (trouble.pid, trouble.exit) == (first, None)
        assert "stopped" in trouble.what
        await aeventually(lambda: watchdog.pid not in (0, first))
