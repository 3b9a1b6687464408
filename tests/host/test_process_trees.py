"""The processes that a unit leaves are found and killed, and no other process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.host import cgroups, process_scan, procfs
from agentrl.host.procfs import kill_exactly
from agentrl.protocol import wire
from agentrl.protocol.messages import Answer, Ask, Exited, GroupEmpty, HostStats, ScanReport, ScanRun, Spawned
from tests.host.harness import SLEEP, Bench, identity_of, marked_sleeper, python, spawn
from tests.waiting import PATIENCE_S, aeventually, eventually

both = pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroups", "marks"])

# Forks twice into a session of its own, clears its environment and closes all files. Only its cgroup shows its origin,
# or the fact that the agent, which adopts orphans, becomes its parent.
HIDE = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], 'w').write(str(os.getpid()))
        null = os.open('/dev/null', os.O_RDWR)
        for fd in (0, 1, 2): os.dup2(null, fd)
        os.execve('/bin/sleep', ['sleep', '1000'], {})
    os._exit(0)
os.wait()
"""


def hider(stay: bool, *, times: int = 1) -> tuple[str, ...]:
    hiding = "".join(HIDE.replace("sys.argv[1]", f"sys.argv[1] + '.{n}'") for n in range(times))
    end = "import time; time.sleep(1000)" if stay else "sys.exit(9)"
    return (*python(hiding + end), "{run_dir}/hidden")


async def hidden(bench: Bench, number: int = 0) -> procfs.Identity:
    path = bench.home.run_dir / f"hidden.{number}"
    text = await aeventually(lambda: path.exists() and path.read_text())
    found = identity_of(int(str(text)))
    await aeventually(lambda: procfs.command(found.pid).startswith("sleep"))
    # The agent is its parent only after the process between has ended, too.
    await aeventually(lambda: (stat := procfs.read_stat(found.pid)) is not None and stat.ppid == os.getpid())
    return found


@both
async def test_children_that_hide_are_swept_after_their_leader_died(bench: Bench, use_cgroups: bool) -> None:
    async with bench.tidy_agent(use_cgroups=use_cgroups) as agent:
        agent.receive(spawn("web-0", *hider(stay=True, times=2)))
        spawned = await bench.sent.one(Spawned)
        lost = [await hidden(bench, 0), await hidden(bench, 1)]
        os.kill(spawned.pid, signal.SIGKILL)
        empty = await bench.sent.one(GroupEmpty)
        assert {info.pid for info in empty.swept} == {process.pid for process in lost}
        assert all(info.why and info.command.startswith("sleep") for info in empty.swept)
        assert not any(process.alive() for process in lost)


async def test_without_cgroups_a_process_of_unknown_owner_is_kept(bench: Bench) -> None:
    async with bench.tidy_agent(use_cgroups=False) as agent:
        agent.receive(spawn("other-0", *SLEEP))
        agent.receive(spawn("web-0", *hider(stay=True)))
        spawned = await bench.sent.one(Spawned, "web-0")
        lost = await hidden(bench)
        for life in agent.incarnations.values():
            life.tree.remembered = {}
        os.kill(spawned.pid, signal.SIGKILL)
        await bench.sent.one(GroupEmpty, "web-0")
        # Its owner is unknown while another unit lives. The scan of the run still finds it.
        try:
            agent.receive(Ask("a", ScanRun()))
            answer = await bench.sent.one(Answer)
            found = wire.decode_as(ScanReport, answer.body).found
            assert lost.pid in {info.pid for info in found}
        finally:
            kill_exactly(lost.pid, lost.start_ticks)


@both
async def test_marked_children_in_other_sessions_are_swept(bench: Bench, use_cgroups: bool) -> None:
    async with bench.tidy_agent(use_cgroups=use_cgroups) as agent:
        agent.receive(spawn("other-0", *SLEEP))
        other = await bench.sent.one(Spawned, "other-0")
        agent.receive(
            spawn("web-0", "sh", "-c", "setsid sleep 1000 & setsid sleep 1001 & sleep 1002 & sleep 0.2; exit 1")
        )
        empty = await bench.sent.one(GroupEmpty, "web-0")
        assert len(empty.swept) == 3
        assert procfs.Identity(other.pid, other.start_ticks, procfs.boot_id()).alive()
        assert len(bench.sent.all(Exited)) == 1


async def test_tree_is_not_empty_while_a_child_forks(bench: Bench) -> None:
    breeder = "import os, time\nwhile True:\n  if os.fork() and os.getppid() >= 1: os._exit(0)\n  os.setsid()"
    async with bench.tidy_agent(use_cgroups=True) as agent:
        if not agent.cgroups.can_kill:
            pytest.skip("no cgroup may be written here")
        agent.receive(spawn("web-0", "sh", "-c", f'python3 -c "{breeder}" & sleep 0.3; exit 0'))
        await bench.sent.one(GroupEmpty, "web-0")
        mark = {b"AGENTRL_RUN": bench.home.run.encode(), b"AGENTRL_INCARNATION": b"web-0.1"}.items()
        marked = [pid for pid in procfs.all_pids() if mark <= (procfs.marks(pid) or {}).items()]
        assert marked == []


async def test_concurrent_deaths_are_swept_together(bench: Bench) -> None:
    async with bench.tidy_agent(use_cgroups=False) as agent:
        for slot in range(20):
            agent.receive(spawn(f"web-{slot}", "sh", "-c", "setsid sleep 1000 & exec sleep 1001"))
        for slot in range(20):
            await bench.sent.one(Spawned, f"web-{slot}")
        waiting, passes = 0, 0
        until_all_waited: list[int] = []
        look, take = agent.services.sweeper._snapshot, agent.services.sweeper._take

        async def counted() -> object:
            nonlocal waiting
            waiting += 1
            return await look()

        async def when_all_wait() -> object:
            nonlocal passes
            passes += 1
            await aeventually(lambda: waiting >= 20, what="all sweeps to want a look")
            until_all_waited.append(passes)
            return await take()

        agent.services.sweeper._snapshot = counted  # type: ignore[method-assign, assignment]
        agent.services.sweeper._take = when_all_wait  # type: ignore[method-assign, assignment]
        for message in bench.sent.all(Spawned):
            os.kill(message.pid, signal.SIGKILL)
        await aeventually(lambda: len(bench.sent.all(GroupEmpty)) == 20)
        assert until_all_waited[0] == 1, "one pass over /proc serves all waiting sweeps"


def test_pid_with_another_start_time_is_not_killed(stranger: subprocess.Popen[bytes]) -> None:
    identity = identity_of(stranger.pid)
    assert not kill_exactly(stranger.pid, identity.start_ticks + 1)
    assert identity.alive()
    assert kill_exactly(stranger.pid, identity.start_ticks)
    eventually(lambda: not identity.alive())


async def test_stray_process_is_reported(bench: Bench) -> None:
    strays = [marked_sleeper(bench.home, "web-9.4"), marked_sleeper(bench.home, "web-9.5", host="h2")]
    try:
        async with bench.tidy_agent() as agent:
            agent.receive(spawn("web-0", *SLEEP))
            stats = await bench.sent.one(HostStats, that=lambda m: bool(m.strays) and bool(m.units))
            assert [(info.pid, info.incarnation) for info in stats.strays] == [(strays[0].pid, "web-9.4")]
    finally:
        for process in strays:
            process.kill()
            process.wait()


async def test_scan_reports_what_it_could_not_prove(bench: Bench) -> None:
    async with bench.tidy_agent(use_cgroups=False) as agent:
        agent.receive(spawn("web-0", *SLEEP))
        pid = (await bench.sent.one(Spawned)).pid
        await aeventually(lambda: procfs.marks(pid), what="the environment of a process that is being executed")
        agent.receive(Ask("a", ScanRun()))
        report = wire.decode_as(ScanReport, (await bench.sent.one(Answer)).body)
        # Ending processes, such as the helper of the test before, may still be descendants of the test process.
        assert [info.incarnation for info in report.found if info.why == "mark"] == ["web-0.1"], report.found
        assert "not in cgroups" in report.unproven
        agent.receive(Ask("b", ScanRun(kill=True)))
        answer = await bench.sent.one(Answer, that=lambda m: m.ask == "b")
        report = wire.decode_as(ScanReport, answer.body)
        assert report.found == ()
        assert [info.incarnation for info in report.killed if info.why == "mark"] == ["web-0.1"], report.killed
        assert (await bench.sent.one(Exited)).exit.signal == signal.SIGKILL


def test_process_during_an_exec_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"PATH=/bin\0AGENTRL_RUN=run-uuid\0"
    seen = iter([b"", b"", whole])
    monkeypatch.setattr(procfs, "_environment", lambda pid: next(seen))
    monkeypatch.setattr(procfs, "_becomes_another_program", lambda pid: True)
    assert procfs.marks(os.getpid()) == {procfs.MARK_RUN: b"run-uuid"}


async def test_agent_removes_its_cgroups(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        base = agent.cgroups.tree_base
        if base is None:
            pytest.skip("no cgroup may be written here")
        agent.receive(spawn("web-0", *SLEEP))
        await aeventually(lambda: (base / "web-0.1").is_dir())
    assert not base.exists()


def test_scan_lists_and_kills_only_processes_of_the_run(bench: Bench, stranger: subprocess.Popen[bytes]) -> None:
    marked = subprocess.Popen(
        # A child that clears its environment is found by descent.
        ["sh", "-c", "env -i sleep 1000 & exec sleep 1001"],
        env={**os.environ, "AGENTRL_RUN": bench.home.run, "AGENTRL_INCARNATION": "web-0.1"},
    )
    other_run = subprocess.Popen(SLEEP, env={**os.environ, "AGENTRL_RUN": "another", "AGENTRL_INCARNATION": "web-0.1"})
    try:

        def both_found() -> bool:
            return {info.why for info in process_scan.scan(bench.home.run, "h1").found} == {"mark", "descent"}

        eventually(both_found)
        command = [sys.executable, "-m", "agentrl.host.process_scan", bench.home.run, "--kill", "--json"]
        ended = subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2], timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        assert b'"killed":[{' in ended.stdout
        assert marked.wait(PATIENCE_S) == -signal.SIGKILL
        assert stranger.poll() is None
        assert other_run.poll() is None
    finally:
        for process in (marked, other_run):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("own", "base"),
    [
        ("/user.slice/agentrl-host@demo.service", "/user.slice/agentrl-host@demo.service"),
        ("/agentrl-host@1.service/agentrl-0a1b2c3d.h1/web-0.1", "/agentrl-host@1.service"),
        ("/agentrl-0a1b2c3d.h.example.org/web-0.1", ""),
        ("/system.slice", "/system.slice"),
    ],
)
def test_cgroups_are_made_in_the_service_of_the_agent(monkeypatch: pytest.MonkeyPatch, own: str, base: str) -> None:
    monkeypatch.setattr(procfs, "read_bytes", lambda path: f"0::{own}\n".encode())
    assert cgroups._own_path("") == base
