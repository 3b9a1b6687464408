"""Error hints for a coordinator that is silent, stopped or dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.client import Client
from agentrl.client.run_processes import coordinator_of, start_ticks
from agentrl.config import paths
from agentrl.errors import NoCoordinatorError
from tests.waiting import eventually


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The coordinator of the run `mine`: a process that is stopped by a signal."""
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    paths.create_run("mine", tmp_path / "run")
    state = paths.state_dir("mine")
    process = subprocess.Popen(["sleep", "1000"])
    where = {name: f"ipc://{tmp_path}/{name}" for name in ("address", "feed", "metrics")}
    who = {"pid": process.pid, "start_ticks": start_ticks(process.pid)}
    (state / "coordinator.json").write_text(json.dumps({**who, **where}))
    agent(state)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: (living := coordinator_of(state)) is not None and "stopped" in living.condition)
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def test_hint_names_a_stopped_coordinator_and_its_host_agent(stopped: int) -> None:
    with pytest.raises(NoCoordinatorError, match=r"does not answer within 0\.1 s") as silent:
        async with Client.connect("mine", timeout_s=0.1):
            pass
    assert f"Its process ({stopped}) is stopped by a signal." in silent.value.hint
    assert "supervision.coordinator_silent_s" in silent.value.hint


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a run whose coordinator was killed."""
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    paths.create_run("mine", tmp_path / "run")
    state = paths.state_dir("mine")
    process = subprocess.Popen(["true"])
    process.wait()
    where = {name: f"ipc://{tmp_path}/{name}" for name in ("address", "feed", "metrics")}
    (state / "coordinator.json").write_text(json.dumps({"pid": process.pid, "start_ticks": 1, **where}))
    return state


def agent(state: Path, **more: str) -> None:
    """The file of a host agent whose process is alive: this one."""
    file = state / "hosts" / "here" / "agent.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), **more}))


async def hint() -> str:
    with pytest.raises(NoCoordinatorError) as nobody:
        async with Client.connect("mine", timeout_s=0.1):
            pass
    return nobody.value.hint


async def test_hint_says_that_the_host_agent_restarts_the_coordinator(dead: Path) -> None:
    agent(dead)
    assert "starts it again by itself" in (seen := await hint())
    assert "agentrl up" not in seen
    (dead / "coordinator.json").unlink()
    assert "the run is just beginning, or coming to its end" in await hint(), "a missing file does not show which"


async def test_hint_names_a_host_agent_that_gave_up(dead: Path) -> None:
    agent(dead, coordinator="The coordinator's configuration is wrong.")
    assert "given up starting it: The coordinator's configuration is wrong. Then `agentrl down`" in await hint()


async def test_hint_without_a_host_agent_is_up(dead: Path) -> None:
    assert "agentrl up" in await hint()
