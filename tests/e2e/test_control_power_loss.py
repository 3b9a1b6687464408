"""`up` reports the real state after all processes were killed at once, and if all are killed while it waits."""

from __future__ import annotations

import os
import signal

from agentrl.errors import ExitCode
from agentrl.host import cgroups
from tests.e2e.running import Run
from tests.waiting import eventually


def kill_everything(run: Run) -> None:
    """Kill all processes of the run at once, as in a power loss."""
    processes = run.processes()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            os.kill(process.pid, number)
    eventually(lambda: not run.processes())


def test_up_after_a_power_loss_starts_every_unit_again_before_it_ends(run: Run) -> None:
    run.sidecar("web", ["sleep", "1000"], count=6)
    run.up()
    for _ in range(3):
        before = run.incarnations()
        kill_everything(run)
        report = run.up()
        assert report["kept"] == []
        assert sorted(report["came_up_again"]) == sorted(before)
        assert all(run.alive(row.pid) for row in run.units().values())
    prefix = cgroups.run_prefix(run.uuid())
    run.cli("down", check=False)
    left = [name for mount in cgroups._mounts() if mount for _, names, _ in os.walk(mount) for name in names]
    assert not [name for name in left if name.startswith(prefix)], "empty cgroups are removed too"


def test_up_ends_soon_when_the_run_is_killed_meanwhile(run: Run) -> None:
    run.sidecar("web", ["sleep", "1000"], ready={"exec": ["false"]})
    run.write()
    waiting = run.start("up", str(run.file))
    eventually(lambda: run.lives_of("web-0"))
    kill_everything(run)
    _, error = waiting.communicate(timeout=30)
    assert waiting.returncode == ExitCode.NO_COORDINATOR
    assert "is dead, and so is the host agent" in error
    assert "goes on" not in error
