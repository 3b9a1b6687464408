"""Agents on this host."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.errors import AgentrlError, ConflictError, ExitCode
from agentrl.host import process_scan
from agentrl.host.agent_lock import read_agent_file
from agentrl.placement import Placed, Placement
from agentrl.placement.local import LocalPlacement
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalPlacement, str]]:
    monkeypatch.chdir(ROOT)
    run = str(uuid.uuid4())
    arguments = ("--coordinator", f"ipc://{tmp_path}/hub")
    state = tmp_path / "state"
    state.mkdir()
    yield LocalPlacement(state, tmp_path / "run", run, arguments=arguments), run
    assert not process_scan.scan(run, "h1", kill=True).found


def test_agent_is_started_once_described_and_released(place: tuple[LocalPlacement, str]) -> None:
    local, _ = place
    backend: Placement = local
    assert backend.describe() == ()
    (placed,) = backend.ensure(["h1"])
    assert placed.alive
    assert backend.ensure(["h1"]) == (placed,), "an agent that lives is left alone"
    assert backend.describe() == (placed,)
    backend.release(["h1"])
    assert backend.describe() == (Placed("h1", "never started here", False),)


def test_agent_has_a_session_of_its_own(place: tuple[LocalPlacement, str]) -> None:
    local, _ = place
    local.ensure(["h1"])
    known = read_agent_file(local._state_dir, "h1")
    assert known is not None
    assert os.getsid(known.pid) == known.pid
    assert os.readlink(f"/proc/{known.pid}/fd/1").endswith("agent.log")


def test_two_starts_at_once_lead_to_one_agent(place: tuple[LocalPlacement, str]) -> None:
    local, run = place

    def start(_: int) -> str:
        try:
            local.ensure(["h1"])
        except ConflictError:
            return "second"
        return "first"

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(start, range(2)))
    assert "first" in said
    eventually(lambda: len([i for i in process_scan.scan(run, "h1").found if "daemons.host" in i.command]) == 1)


def test_agent_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    local = LocalPlacement(tmp_path, tmp_path / "run", str(uuid.uuid4()), arguments=("--no-such-option",))
    with pytest.raises(AgentrlError, match=r"agent\.log has the reason"):
        local.ensure(["h1"])
    assert "no-such-option" in (tmp_path / "hosts/h1/agent.log").read_text()


def test_folder_without_a_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentrl.placement.local", "--state-dir", str(tmp_path)]
    command += ["--run-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.CONFIG
    assert "run.json" in ended.stderr
