"""One incarnation from its spawn to the end of its last process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agentrl.host import procfs, spawn_environment
from agentrl.host.accelerators import Accelerators
from agentrl.protocol.messages import (
    Exited,
    Forget,
    GroupEmpty,
    HostStats,
    KillTree,
    ProcessState,
    SignalUnit,
    Spawned,
    SpawnFailed,
)
from agentrl.protocol.specs import Resources
from tests.host.harness import SLEEP, Bench, marked_sleeper, python, spawn
from tests.waiting import PATIENCE_S, aeventually

both = pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroups", "marks"])


@both
async def test_unit_is_started_signalled_and_its_end_reported(bench: Bench, use_cgroups: bool) -> None:
    async with bench.tidy_agent(use_cgroups=use_cgroups) as agent:
        agent.receive(spawn("web-0", *SLEEP))
        spawned = await bench.sent.one(Spawned, "web-0")
        identity = procfs.Identity(spawned.pid, spawned.start_ticks, procfs.boot_id())
        assert identity.alive()
        agent.receive(SignalUnit("web-0", 1, signal.SIGTERM))
        exited = await bench.sent.one(Exited, "web-0")
        assert exited.exit.signal == signal.SIGTERM
        await bench.sent.one(GroupEmpty, "web-0")
        assert not identity.alive()


async def test_exit_code_and_last_lines_are_reported(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", "sh", "-c", "echo one; printf '\\033[31mtwo\\033[0m\\007\\n' >&2; exit 3"))
        exited = await bench.sent.one(Exited)
        assert exited.exit.code == 3
        assert exited.tail == ("one", "two")


async def test_same_incarnation_is_never_started_twice(bench: Bench, tmp_path: Path) -> None:
    marker = tmp_path / "starts"
    async with bench.tidy_agent() as agent:
        request = spawn("web-0", "sh", "-c", f"echo x >> {marker}; exec sleep 1000")
        agent.receive(request)
        agent.receive(request)
        await aeventually(lambda: len(bench.sent.all(Spawned)) == 2)
        assert len({message.pid for message in bench.sent.all(Spawned)}) == 1
        await aeventually(lambda: marker.exists() and marker.read_text())
        agent.receive(KillTree("web-0", 1))
        await bench.sent.one(GroupEmpty)
        bench.sent.messages.clear()
        agent.receive(request)
        assert (await bench.sent.one(Exited)).exit.signal == signal.SIGKILL
        assert bench.sent.all(GroupEmpty)
        assert marker.read_text() == "x\n"


async def test_incarnation_is_forgotten_only_when_its_tree_is_empty(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        await bench.sent.one(Spawned)
        agent.receive(Forget(("web-0.1",)))
        assert "web-0.1" in agent.incarnations
        agent.receive(KillTree("web-0", 1))
        await bench.sent.one(GroupEmpty)
        agent.receive(Forget(("web-0.1",)))
        assert agent.incarnations == {}
        assert list((bench.home.state_dir / "hosts/h1/ledger").iterdir()) == []


@pytest.mark.parametrize(
    ("command", "extra", "words"),
    [
        (("no-such-program-anywhere",), {}, "not found on PATH"),
        ((__file__,), {}, "may not be executed"),
        (SLEEP, {"env": {"PASSWORD": "env:NO_SUCH_VARIABLE"}}, "NO_SUCH_VARIABLE"),
        (SLEEP, {"env": {"PASSWORD": "file:/no/such/file"}}, "/no/such/file"),
        (SLEEP, {"cwd": "/no/such/folder"}, "/no/such/folder"),
    ],
)
async def test_spawn_that_can_never_succeed_is_final(
    bench: Bench, command: tuple[str, ...], extra: dict[str, object], words: str
) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *command, **extra))
        failed = await bench.sent.one(SpawnFailed)
        assert failed.final
        assert words in failed.reason
        assert agent.incarnations == {}


async def test_process_gets_its_marks_secrets_and_placeholders(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEEP_SECRET", "swordfish")
    monkeypatch.setenv("AGENTRL_KEY", "of somebody else")
    async with bench.tidy_agent() as agent:
        agent.receive(
            spawn(
                "web-3",
                "sh",
                "-c",
                "env > {run_dir}/env.{slot}; echo {other} $1",
                "sh",
                "{unit}",
                incarnation=7,
                env={"PASSWORD": "env:DEEP_SECRET", "WHERE": "{state_dir}/x"},
            )
        )
        exited = await bench.sent.one(Exited)
        assert exited.tail == ("{other} web-3",)
        env = dict(line.split("=", 1) for line in (bench.home.run_dir / "env.3").read_text().splitlines())
        assert env["PASSWORD"] == "swordfish"
        assert env["WHERE"] == f"{bench.home.state_dir}/x"
        assert env["AGENTRL_INCARNATION"] == "web-3.7"
        assert env["AGENTRL_RUN"] == bench.home.run
        assert env["AGENTRL_TOKEN"] == "token"
        assert "AGENTRL_KEY" not in env
        ledger = (bench.home.state_dir / "hosts/h1/ledger/web-3.7.json").read_text()
        assert "swordfish" not in ledger


@pytest.mark.parametrize(
    ("cpus", "env", "expected"), [(0.0, {}, "1"), (2.5, {}, "3"), (2.5, {"OMP_NUM_THREADS": "16"}, "16")]
)
def test_unit_computes_with_as_many_threads_as_it_reserves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cpus: float, env: dict[str, str], expected: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    order = spawn("web-0", "true", env=env, resources=Resources(cpus=cpus))
    found = spawn_environment.of_unit(order, bench.home, heartbeat_s=1.0, accelerators=Accelerators())
    assert found["OMP_NUM_THREADS"] == expected


def test_unit_gets_only_the_usual_variables_and_those_of_its_spec(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "OPENAI_API_KEY": "k",
        "MY_MONGO_URL": "m",
        "HF_TOKEN": "t",
        "AGENTRL_KEY": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    usual = {"https_proxy": "p", "CUDA_VISIBLE_DEVICES": "1", "LC_ALL": "C", "PYTHONPATH": "/x", "HF_HOME": "/h"}
    for name, value in {**given, **usual}.items():
        monkeypatch.setenv(name, value)
    found = spawn_environment.of_unit(
        spawn("web-0", "true", env={"TOKEN": "env:HF_TOKEN"}), bench.home, heartbeat_s=1.0, accelerators=Accelerators()
    )
    assert usual.items() <= found.items()
    assert not given.keys() & found.keys()
    assert found["TOKEN"] == "t"


def test_allocator_of_a_unit_adjusts_its_own_thresholds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed threshold is never adjusted, and then every larger tensor is mapped, cleared and unmapped again."""
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    found = spawn_environment.of_unit(spawn("web-0", "true"), bench.home, heartbeat_s=1.0, accelerators=Accelerators())
    assert not [name for name in found if name.startswith("MALLOC_")]


@both
async def test_stop_and_continuation_of_a_process_are_reported(bench: Bench, use_cgroups: bool) -> None:
    async with bench.tidy_agent(use_cgroups=use_cgroups) as agent:
        agent.receive(spawn("web-0", *SLEEP))
        spawned = await bench.sent.one(Spawned)
        os.kill(spawned.pid, signal.SIGSTOP)
        await bench.sent.one(ProcessState, that=lambda m: m.stopped)
        os.kill(spawned.pid, signal.SIGCONT)
        await bench.sent.one(ProcessState, that=lambda m: not m.stopped)


async def test_stopped_process_handles_sigterm_at_once(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        spawned = await bench.sent.one(Spawned)
        os.kill(spawned.pid, signal.SIGSTOP)
        agent.receive(SignalUnit("web-0", 1, signal.SIGTERM))
        assert (await bench.sent.one(Exited)).exit.signal == signal.SIGTERM


@both
async def test_usage_includes_the_whole_tree(bench: Bench, use_cgroups: bool) -> None:
    async with bench.tidy_agent(use_cgroups=use_cgroups) as agent:
        busy = "while True: pass"
        agent.receive(spawn("web-0", "sh", "-c", f'python3 -c "{busy}" & exec sleep 1000'))

        def seen(message: HostStats) -> bool:
            return any(u.processes == 2 and u.cpu_percent > 1 and u.rss_bytes > 1 << 20 for u in message.units)

        stats = await bench.sent.one(HostStats, that=seen)
        assert stats.memory_used_bytes > 0
        assert stats.disk_free_bytes > 0


HUNGRY = "import time\nx = []\nwhile True:\n  x.append(bytearray(4 << 20)); time.sleep(0.002)"


@both
async def test_unit_over_its_memory_limit_is_killed_with_the_reason(bench: Bench, use_cgroups: bool) -> None:
    async with bench.tidy_agent(use_cgroups=use_cgroups) as agent:
        if use_cgroups and not agent.cgroups.can_limit_memory:
            pytest.skip("no memory cgroup may be written here")
        agent.receive(spawn("web-0", *python(HUNGRY), resources=Resources(memory_max_bytes=100 << 20)))
        exited = await bench.sent.one(Exited)
        assert exited.exit.oom
        assert exited.exit.signal == signal.SIGKILL
        await bench.sent.one(GroupEmpty)


async def test_ordinary_kill_is_not_called_out_of_memory(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP, resources=Resources(memory_max_bytes=100 << 20)))
        spawned = await bench.sent.one(Spawned)
        os.kill(spawned.pid, signal.SIGKILL)
        exited = await bench.sent.one(Exited)
        assert exited.exit.signal == signal.SIGKILL
        assert not exited.exit.oom


async def test_end_without_a_coordinator_is_in_the_next_hello(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        spawned = await bench.sent.one(Spawned)
        bench.sent.listening = False
        agent.disconnected()
        os.kill(spawned.pid, signal.SIGKILL)
        await aeventually(lambda: agent.incarnations["web-0.1"].over)
        assert not bench.sent.all(Exited)
        bench.sent.listening = True
        inventory = agent.hello().inventory
        assert inventory[0].exit is not None
        assert inventory[0].exit.signal == signal.SIGKILL
        assert inventory[0].group_empty


@pytest.mark.parametrize(("argument", "reason"), [("a\0b", "null byte"), ("x" * (1 << 20), "Argument list too long")])
async def test_command_that_cannot_be_executed_is_a_final_failure(bench: Bench, argument: str, reason: str) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", "ls", argument))
        failed = await bench.sent.one(SpawnFailed)
        assert failed.final
        assert reason in failed.reason
        assert list((bench.home.state_dir / "hosts/h1/ledger").iterdir()) == []


async def test_kill_of_an_unknown_incarnation_is_answered(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(KillTree("web-0", 7))
        assert (await bench.sent.one(GroupEmpty, "web-0", 7)).swept == ()


async def test_process_with_the_mark_of_an_unknown_incarnation_is_killed(bench: Bench) -> None:
    stray = marked_sleeper(bench.home, "web-0.7")
    async with bench.tidy_agent() as agent:
        agent.receive(KillTree("web-0", 7))
        agent.receive(KillTree("web-0", 7))
        empty = await bench.sent.one(GroupEmpty, "web-0", 7)
        assert [(each.pid, each.why) for each in empty.swept] == [(stray.pid, "mark")]
    assert stray.wait(PATIENCE_S) is not None
