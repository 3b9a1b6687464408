"""Units start inside their cgroups, by clone3 or, where that is not possible, by a fork that enters them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.host import process_spawner, procfs
from agentrl.host.cgroups import Cgroups, detect
from agentrl.host.child_processes import ChildProcesses, Process, status_in
from agentrl.protocol.messages import ExitStatus
from tests.waiting import aeventually

both = pytest.mark.parametrize("clone", [True, False], ids=["clone3", "fork"])


class Spawns:
    """Starts shell scripts, each in a cgroup of its own."""

    def __init__(self, folder: Path, cgroups: Cgroups, *, clone: bool) -> None:
        self.processes = ChildProcesses(clone_into_cgroup=clone)
        self.processes.become_parent_of_orphans()
        self.ended: dict[int, ExitStatus] = {}
        self._folder = folder
        self._cgroups = cgroups
        self._count = 0

    def start(self, *command: str, env: dict[str, str] | None = None) -> Process:
        self._count += 1
        group = self._cgroups.make(f"web-{self._count}.1")
        output = os.open(self._folder / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            return self.processes.spawn_unit(
                command,
                env={"PATH": os.environ["PATH"]} | (env or {}),
                on_exit=lambda process, status: self.ended.update({process.pid: status}),
                output=output,
                cwd=self._folder,
                cgroups=group.paths(),
                status_file=self._folder / f"web-{self._count}.1.status",
            )
        finally:
            os.close(output)

    async def output_of(self, script: str) -> list[str]:
        process = self.start("/bin/sh", "-c", script)
        assert (await aeventually(lambda: self.ended.get(process.pid))).code == 0
        return (self._folder / "out").read_text().splitlines()

    @property
    def helper(self) -> int:
        return self.processes._spawner.pid


@contextlib.asynccontextmanager
async def spawning(tmp_path: Path, *, clone: bool = True) -> AsyncIterator[Spawns]:
    cgroups = detect(f"{os.getpid():08d}", tmp_path.name)
    if not cgroups.can_kill:
        pytest.skip("no cgroup may be written here")
    spawns = Spawns(tmp_path, cgroups, clone=clone)
    try:
        yield spawns
    finally:
        spawns.processes.close()
        assert cgroups.tree_base
        for path in cgroups.tree_base.iterdir():
            if path.is_dir():
                (path / "cgroup.kill").write_text("1")
                await aeventually(lambda path=path: b"populated 0" in procfs.read_bytes(f"{path}/cgroup.events"))
                path.rmdir()
        cgroups.close()


@both
async def test_child_is_in_its_cgroup_and_session_before_its_first_instruction(tmp_path: Path, clone: bool) -> None:
    async with spawning(tmp_path, clone=clone) as spawns:
        lines = await spawns.output_of('grep ^0: /proc/$$/cgroup; echo $PPID; cut -d" " -f1,6 /proc/$$/stat; pwd')
        assert lines[0].endswith("/web-1.1")
        assert int(lines[1]) == spawns.helper
        assert len(set(lines[2].split())) == 1, "the leader of a session"
        assert lines[3] == str(tmp_path)


@pytest.fixture
def ignored_signals() -> Iterator[None]:
    """Ignore signals like a script that starts the agent with nohup or in the background."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@both
@pytest.mark.usefixtures("ignored_signals")
async def test_child_inherits_no_descriptor_and_no_ignored_signal(tmp_path: Path, clone: bool) -> None:
    async with spawning(tmp_path, clone=clone) as spawns:
        *descriptors, ignored = await spawns.output_of("ls /proc/$$/fd; grep SigIgn /proc/$$/status")
        assert descriptors == ["0", "1", "2"]
        numbers = {number for number in range(1, 65) if int(ignored.split()[1], 16) >> number - 1 & 1}
        assert not numbers & signal.valid_signals(), (
            "no signal is ignored except those that the C library reserves for threads"
        )


@both
async def test_exit_status_of_a_child_is_reported_once(tmp_path: Path, clone: bool) -> None:
    async with spawning(tmp_path, clone=clone) as spawns:
        process = spawns.start("/bin/sleep", "1000")
        os.kill(process.pid, signal.SIGKILL)
        assert (await aeventually(lambda: spawns.ended.get(process.pid))).signal == signal.SIGKILL


async def test_program_that_cannot_be_executed_raises_and_leaves_no_process(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        for command, number in (("/bin/no-such-program", errno.ENOENT), (str(tmp_path), errno.EACCES)):
            with pytest.raises(OSError, match=re.escape(os.strerror(number))):
                spawns.start(command)
        with pytest.raises(ValueError, match="null byte"):
            spawns.start("/bin/echo", "a\0b")
        assert not [pid for pid in spawns.processes.own_pids() - {spawns.helper, 0}]


async def test_helper_that_died_is_replaced(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        await spawns.output_of("true")
        first = spawns.helper
        os.kill(first, signal.SIGKILL)
        assert (await spawns.output_of("grep ^0: /proc/$$/cgroup"))[-1].endswith("/web-2.1")
        assert (await spawns.output_of("grep ^0: /proc/$$/cgroup"))[-1].endswith("/web-3.1")
        assert spawns.helper not in (0, first)


async def test_helper_that_hangs_delays_one_start_and_nothing_runs_twice(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        await spawns.output_of("true")
        os.kill(spawns.helper, signal.SIGSTOP)
        assert await spawns.output_of("echo once") == ["once"]


async def test_second_helper_that_hangs_fails_one_start_and_later_starts_get_their_own_pids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers: list[subprocess.Popen[bytes]] = []
    start_helper = subprocess.Popen

    def start_stopped(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        helpers.append(start_helper(*arguments, **options))
        helpers[-1].send_signal(signal.SIGSTOP)
        return helpers[-1]

    async with spawning(tmp_path) as spawns:
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", start_stopped)
            patched.setattr(process_spawner, "_REPLY_WITHIN_S", 1.0)
            with pytest.raises(OSError, match="failed twice") as failed:
                spawns.start("/bin/sh", "-c", "echo never")
        assert failed.value.errno == errno.EAGAIN
        assert [helper.returncode for helper in helpers] == [-signal.SIGKILL] * 2
        assert await spawns.output_of("echo first $$") == [f"first {[*spawns.ended][-1]}"]
        assert (await spawns.output_of("echo second $$"))[1:] == [f"second {[*spawns.ended][-1]}"]


async def test_second_helper_that_ends_at_once_fails_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spawning(tmp_path) as spawns:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", "/bin/false")
            with pytest.raises(OSError, match="failed twice"):
                spawns.start("/bin/true")
        assert await spawns.output_of("echo once") == ["once"]


async def test_helper_that_was_replaced_leaves_its_children_to_the_agent(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        process = spawns.start("/bin/sh", "-c", "while [ ! -e end ]; do sleep 0.01; done; exit 5")
        os.kill(spawns.helper, signal.SIGKILL)
        await spawns.output_of("true")
        (tmp_path / "end").touch()
        assert (await aeventually(lambda: spawns.ended.get(process.pid))).code == 5


async def test_helper_that_hangs_does_not_hide_a_status(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        process = spawns.start("/bin/sh", "-c", "exit 5")
        os.kill(spawns.helper, signal.SIGSTOP)
        assert (await aeventually(lambda: spawns.ended.get(process.pid))).code == 5


async def test_error_that_is_not_from_the_system_is_reported(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        with pytest.raises(OSError, match="UnicodeEncodeError"):
            spawns.start("/bin/echo", "\ud800")


async def test_child_that_cannot_be_watched_is_killed_and_the_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with spawning(tmp_path) as spawns:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", full)
            with pytest.raises(OSError, match="Too many open files"):
                spawns.start("/bin/sleep", "1000")

        def left() -> list[int]:
            spawns.processes.reap()
            return [stat.pid for stat in procfs.all_stats().values() if stat.ppid == spawns.helper]

        await aeventually(lambda: not left())
        assert (await spawns.output_of("echo next"))[-1] == "next"


async def test_helper_lives_until_its_last_child_has_ended(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        child, helper = spawns.start("/bin/sh", "-c", "while [ ! -e end ]; do sleep 0.01; done; exit 5"), spawns.helper
        spawns.processes.close()
        assert child.identity.alive()
        (tmp_path / "end").touch()
        status_file = tmp_path / "web-1.1.status"
        await aeventually(lambda: status_in(status_file))
        assert status_in(status_file) == ExitStatus(code=5)
        await aeventually(lambda: (stat := procfs.read_stat(helper)) is None or stat.state == "Z")


async def test_helper_without_children_ends_with_the_agent(tmp_path: Path) -> None:
    async with spawning(tmp_path) as spawns:
        await spawns.output_of("true")
        helper = spawns.helper
        spawns.processes.close()
        assert procfs.read_stat(helper) is None
