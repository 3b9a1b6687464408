"""The agent of the coordinator's own host."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.errors import AgentrlError, ConflictError, ExitCode
from agentrl.host import process_scan
from agentrl.placement.agent_process import end_agent, living_agent, start_agent
from tests.placement.sites import ROOT
from tests.waiting import eventually


def test_two_starts_at_once_lead_to_one_agent_with_a_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run, state = str(uuid.uuid4()), tmp_path / "state"

    def start(_: int) -> str:
        try:
            start_agent(state, tmp_path / "run", run, "h1", ("--coordinator", f"ipc://{tmp_path}/hub"))
        except ConflictError:
            return "second"
        return "first"

    try:
        with ThreadPoolExecutor(2) as pool:
            assert "first" in list(pool.map(start, range(2)))
        eventually(lambda: len([i for i in process_scan.scan(run, "h1").found if "daemons.host" in i.command]) == 1)
        known = living_agent(state, "h1")
        assert known is not None
        assert os.getsid(known.pid) == known.pid
        assert os.readlink(f"/proc/{known.pid}/fd/1").endswith("agent.log")
        end_agent(state, "h1")
    finally:
        killed = process_scan.scan(run, "h1", kill=True).killed
    assert not [info for info in killed if "daemons.host" in info.command]


def test_agent_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(AgentrlError, match=r"agent\.log has the reason"):
        start_agent(tmp_path, tmp_path / "run", str(uuid.uuid4()), "h1", ("--no-such-option",))
    assert "no-such-option" in (tmp_path / "hosts/h1/agent.log").read_text()


def test_folder_without_a_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentrl.placement.local", "--state-dir", str(tmp_path)]
    command += ["--run-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.CONFIG
    assert "run.json" in ended.stderr
