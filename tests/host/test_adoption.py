"""After the death of a host agent, the next one adopts its processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agentrl.host import child_processes, process_scan, procfs
from agentrl.host.ledger import Entry, Ledger
from agentrl.protocol.messages import AgentExit, Exited, ExitStatus, Forget, GroupEmpty, KillTree, Spawned
from tests.host.coordinator import Listener, agent_log, end, kill9, listening, start_agent
from tests.host.harness import SLEEP, Bench, identity_of, marked_sleeper, python, spawn
from tests.waiting import aeventually


@pytest.fixture
def swept(bench: Bench) -> Iterator[Bench]:
    """Kill every process of the run after the test."""
    yield bench
    assert not process_scan.scan(bench.home.run, "h1", kill=True).found


def ledger_file(bench: Bench, name: str) -> Path:
    return bench.home.state_dir / "hosts/h1/ledger" / f"{name}.json"


def alive(message: Spawned) -> bool:
    return procfs.Identity(message.pid, message.start_ticks, procfs.boot_id()).alive()


async def start_units(listener: Listener, count: int) -> list[Spawned]:
    for slot in range(count):
        listener.tell(spawn(f"web-{slot}", *SLEEP))
    return [await listener.sent.one(Spawned, f"web-{slot}") for slot in range(count)]


async def test_all_units_survive_a_kill_of_their_agent_and_are_adopted(swept: Bench, tmp_path: Path) -> None:
    async with listening(swept.home, tmp_path) as listener:
        first = start_agent(swept.home, listener.address)
        await listener.hello(first)
        units = await start_units(listener, 12)
        kill9(first)
        assert all(map(alive, units))
        second = start_agent(swept.home, listener.address)
        hello = await listener.hello(second)
        assert {(u.unit, u.pid, u.start_ticks) for u in hello.inventory} == {
            (u.unit, u.pid, u.start_ticks) for u in units
        }
        assert all(u.exit is None for u in hello.inventory)
        assert all(map(alive, units))
        # The new agent knows the incarnation and does not start it again.
        listener.sent.messages.clear()
        listener.tell(spawn("web-3", *SLEEP))
        assert (await listener.sent.one(Spawned, "web-3")).pid == units[3].pid
        # The end of an adopted process is seen, with its status.
        os.kill(units[0].pid, signal.SIGKILL)
        assert (await listener.sent.one(Exited, "web-0")).exit.signal == signal.SIGKILL
        listener.tell(KillTree("web-1", 1))
        await listener.sent.one(GroupEmpty, "web-1")
        assert not alive(units[1])
        assert await end(second) == 0
        assert alive(units[2]), "units outlive an agent that was asked to end"


@pytest.mark.parametrize("helper_lives", [True, False])
async def test_status_of_a_process_that_ended_without_an_agent(
    swept: Bench, tmp_path: Path, helper_lives: bool
) -> None:
    async with listening(swept.home, tmp_path) as listener:
        first = start_agent(swept.home, listener.address)
        await listener.hello(first)
        listener.tell(spawn("web-0", "sh", "-c", "echo last words; exit 5"))
        known = await listener.sent.one(Exited, "web-0")
        assert known.exit.code == 5
        (unit,) = [m for m in await start_units(listener, 2) if m.unit == "web-1"]
        stat = procfs.read_stat(unit.pid)
        assert stat
        kill9(first)
        if not helper_lives:
            os.kill(stat.ppid, signal.SIGKILL)
        os.kill(unit.pid, signal.SIGKILL)
        await aeventually(lambda: not alive(unit))
        if helper_lives:
            await aeventually((ledger_file(swept, "web-1.1").with_suffix(".status")).exists)
        second = start_agent(swept.home, listener.address)
        hello = await listener.hello(second)
        entries = {u.unit: u for u in hello.inventory}
        assert entries["web-0"].exit is not None
        assert entries["web-0"].exit.code == 5, "a status that was in the ledger stays known"
        assert entries["web-0"].tail == ("last words",)
        assert entries["web-1"].exit is not None
        if helper_lives:
            assert entries["web-1"].exit.signal == signal.SIGKILL
        else:
            assert "no host agent was there" in entries["web-1"].exit.unknown
        await end(second)


@pytest.mark.parametrize("use_cgroups", [True, False])
async def test_exit_code_of_an_adopted_unit_needs_no_new_kernel(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, use_cgroups: bool
) -> None:
    monkeypatch.setattr(child_processes, "_status_by_pidfd", lambda pidfd: None)
    script = "while [ ! -e {run_dir}/end ]; do sleep 0.01; done; exit 5"
    async with bench.agent(use_cgroups=use_cgroups) as first:
        first.receive(spawn("web-0", "sh", "-c", script))
        await bench.sent.one(Spawned, "web-0")
    async with bench.agent(use_cgroups=use_cgroups) as second:
        assert second.incarnations["web-0.1"].alive
        (bench.home.run_dir / "end").touch()
        assert (await bench.sent.one(Exited, "web-0")).exit == ExitStatus(code=5)
        await aeventually(lambda: second.incarnations["web-0.1"].over)
        second.receive(Forget(("web-0.1",)))
        assert not list(ledger_file(bench, "web-0.1").parent.iterdir())


async def test_agent_ends_after_its_units_on_agent_exit(swept: Bench, tmp_path: Path) -> None:
    async with listening(swept.home, tmp_path) as listener:
        agent = start_agent(swept.home, listener.address)
        await listener.hello(agent)
        await start_units(listener, 1)
        listener.tell(AgentExit())
        listener.tell(KillTree("web-0", 1))
        await listener.sent.one(GroupEmpty, "web-0")
        assert await aeventually(lambda: agent.poll() is not None)
        assert agent.returncode == 0


async def test_second_agent_of_the_same_host_is_refused(swept: Bench, tmp_path: Path) -> None:
    async with listening(swept.home, tmp_path) as listener:
        first = start_agent(swept.home, listener.address)
        await listener.hello(first)
        second = start_agent(swept.home, listener.address)
        await aeventually(lambda: second.poll() is not None)
        assert second.returncode == 6
        assert "A host agent of h1 lives already" in agent_log(swept.home)
        await end(first)


async def test_agent_survives_a_coordinator_that_comes_and_goes(swept: Bench, tmp_path: Path) -> None:
    async with listening(swept.home, tmp_path) as listener:
        agent = start_agent(swept.home, listener.address)
        await listener.hello(agent)
        (unit,) = await start_units(listener, 1)
    os.kill(unit.pid, signal.SIGTERM)
    async with listening(swept.home, tmp_path) as listener:
        hello = await listener.hello(agent)

        def exit_reported() -> bool:
            return any(u.exit is not None and u.exit.signal == signal.SIGTERM for u in hello.inventory) or bool(
                listener.sent.all(Exited)
            )

        await aeventually(exit_reported)
        await end(agent)


def entry_of(bench: Bench, unit: str, **facts: object) -> Entry:
    request = spawn(unit, *SLEEP)
    return Entry(unit=unit, incarnation=1, token="t", spec=request.spec, **facts)  # type: ignore[arg-type]


def write_ledger(bench: Bench, *entries: Entry) -> None:
    ledger = Ledger(bench.home.state_dir / "hosts/h1/ledger")
    ledger.load()
    for entry in entries:
        ledger.intend(entry)


async def test_pid_of_another_process_is_not_killed(bench: Bench, stranger: subprocess.Popen[bytes]) -> None:
    identity = identity_of(stranger.pid)
    wrong_start = entry_of(
        bench, "web-0", pid=stranger.pid, start_ticks=identity.start_ticks - 5, boot_id=identity.boot_id
    )
    wrong_boot = entry_of(bench, "web-1", pid=stranger.pid, start_ticks=identity.start_ticks, boot_id="another boot")
    write_ledger(bench, wrong_start, wrong_boot)
    async with bench.agent() as agent:
        await aeventually(lambda: all(life.over for life in agent.incarnations.values()))
        agent.receive(KillTree("web-0", 1))
        inventory = {u.unit: u for u in agent.hello().inventory}
        assert "belongs to another process now" in inventory["web-0"].exit.unknown  # type: ignore[union-attr]
        assert "booted" in inventory["web-1"].exit.unknown  # type: ignore[union-attr]
        assert [inventory[unit].exit.with_host for unit in ("web-0", "web-1")] == [False, True]  # type: ignore[union-attr]
    assert identity.alive()


async def test_intent_without_a_pid_is_resolved_by_the_mark(bench: Bench) -> None:
    process = marked_sleeper(bench.home, "web-0.1")
    try:
        write_ledger(bench, entry_of(bench, "web-0"), entry_of(bench, "web-1"))
        async with bench.agent(use_cgroups=False) as agent:
            assert agent.incarnations["web-0.1"].entry.pid == process.pid
            assert agent.incarnations["web-0.1"].alive
            gone = agent.incarnations["web-1.1"].entry
            assert gone.exit is not None
            assert "no process with its mark" in gone.exit.unknown
            agent.receive(KillTree("web-0", 1))
            await bench.sent.one(GroupEmpty, "web-0")
    finally:
        process.kill()
        process.wait()


async def test_next_agent_sweeps_after_a_recorded_exit(bench: Bench) -> None:
    leftover = marked_sleeper(bench.home, "web-0.1")
    identity = identity_of(leftover.pid)
    try:
        entry = entry_of(bench, "web-0", pid=1, start_ticks=1, boot_id=procfs.boot_id())
        write_ledger(bench, msgspec.structs.replace(entry, exit=ExitStatus(code=1)))
        async with bench.agent(use_cgroups=False):
            empty = await bench.sent.one(GroupEmpty, "web-0")
            assert [info.pid for info in empty.swept] == [leftover.pid]
            assert not identity.alive()
    finally:
        leftover.kill()
        leftover.wait()


def test_broken_ledger_file_is_set_aside(bench: Bench) -> None:
    path = ledger_file(bench, "web-0.1")
    path.parent.mkdir(parents=True)
    path.write_text("{ half")
    ledger = Ledger(path.parent)
    ledger.load()
    assert ledger.entries() == ()
    assert path.with_suffix(".broken").exists()


def test_status_of_a_forgotten_incarnation_is_removed(bench: Bench) -> None:
    write_ledger(bench, entry_of(bench, "web-0"))
    path = ledger_file(bench, "web-0.1")
    for name in ("web-0.1", "web-1.1"):
        path.with_name(f"{name}.status").write_text("0\n")
    Ledger(path.parent).load()
    assert [found.name for found in path.parent.glob("*.status")] == ["web-0.1.status"]


def test_incomplete_line_is_ignored(bench: Bench) -> None:
    path = ledger_file(bench, "web-0.1")
    write_ledger(bench, entry_of(bench, "web-0"))
    ledger = Ledger(path.parent)
    ledger.load()
    ledger.record(entry_of(bench, "web-0", pid=7))
    ledger.record(entry_of(bench, "web-0", pid=8))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    again = Ledger(path.parent)
    again.load()
    assert [entry.pid for entry in again.entries()] == [7]
    again.record(entry_of(bench, "web-0", pid=9))
    last = Ledger(path.parent)
    last.load()
    assert [entry.pid for entry in last.entries()] == [9]


async def test_orphans_of_the_agent_are_reaped(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(
            spawn("web-0", *python("import os\nfor _ in range(20):\n  if os.fork() == 0: os._exit(7)\nos._exit(4)"))
        )
        exited = await bench.sent.one(Exited)
        assert exited.exit.code == 4, "reaping orphans must not take the status of a known child"
        mine = os.getpid()

        def no_zombies() -> bool:
            return not [s for s in procfs.all_stats().values() if s.ppid == mine and s.state == "Z"]

        await aeventually(no_zombies)
