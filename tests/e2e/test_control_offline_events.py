"""Logs and events of a run that is down are read with the same commands."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

from agentrl.errors import ExitCode
from tests.e2e.running import Run
from tests.waiting import PATIENCE_S, eventually


def test_logs_and_events_can_be_read_after_down(run: Run) -> None:
    run.sidecar("web", ["sh", "-c", "echo a last word from $AGENTRL_INCARNATION; exec sleep 1000"])
    run.up()
    eventually(lambda: "word" in run.raw("logs", "web-0").stdout, what="the log of the first incarnation")
    run.kill(run.unit_row("web-0").pid)
    run.wait_incarnation("web-0", above=1)
    eventually(lambda: "word" in run.raw("logs", "web-0").stdout, what="the log of the second incarnation")
    living = run.cli("events", "--kind", "incident")
    run.cli("down", "--yes")

    ended = run.raw("status")
    assert ended.returncode == ExitCode.NO_COORDINATOR
    assert f"The run {run.name} is not up: it was taken down " in ended.stderr
    assert f"agentrl up --run {run.name} brings it up again" in ended.stderr
    assert f"agentrl events --run {run.name} read its files" in ended.stderr
    code, answer = run.cli("status", check=False)
    assert (code, answer["error"]["name"]) == (ExitCode.NO_COORDINATOR, "no_coordinator")

    ended = run.raw("logs", "web-0")
    assert (ended.returncode, ended.stdout) == (0, "a last word from web-0.2\n")
    assert f"The run {run.name} is not up. These are the files of {run.name}." in ended.stderr
    assert run.raw("logs", "web-0", "--previous").stdout == "a last word from web-0.1\n"
    assert run.raw("logs", "web-0.9").returncode == ExitCode.UNKNOWN
    assert "web-0.1, web-0.2" in run.raw("logs", "web-0.9").stderr
    assert run.cli("events", "--kind", "incident") == living
    assert any(row["command"] == "down" for row in run.cli("events", "--kind", "operation"))
    assert run.raw("events", "--follow").returncode == ExitCode.NO_COORDINATOR


def test_logs_and_events_can_be_read_after_every_process_was_killed(run: Run) -> None:
    run.sidecar("web", ["sh", "-c", "echo a last word; exec sleep 1000"])
    run.up()
    eventually(lambda: "word" in run.raw("logs", "web-0").stdout, what="the log")
    run.kill_agent_and_coordinator()
    ended = run.raw("logs", "web-0")
    assert (ended.returncode, ended.stdout) == (0, "a last word\n")
    assert "is dead, and so is the host agent" in ended.stderr
    assert [row["command"] for row in run.cli("events", "--kind", "operation")] == ["apply"]


def test_run_without_down_is_chosen_and_otherwise_a_name_is_required(run: Run) -> None:
    other = run.state_dir.parent / "other"
    other.mkdir(parents=True)
    body = {"name": "other", "uuid": str(uuid.uuid4()), "run_dir": str(other), "created_at": 1.0}
    (other / "run.json").write_text(json.dumps(body))
    run.sidecar("web", ["sh", "-c", "echo a last word; exec sleep 1000"])
    run.up()
    eventually(lambda: "word" in run.raw("logs", "web-0").stdout, what="the log")
    run.kill_agent_and_coordinator()
    assert unnamed(run, "logs", "web-0").stdout == "a last word\n"
    run.cli("down", "--yes")
    ended = unnamed(run, "logs", "web-0")
    assert (ended.returncode, ended.stdout) == (ExitCode.NO_COORDINATOR, "")
    assert "With --run NAME this command reads the files of that run." in ended.stderr


def unnamed(run: Run, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", *args]
    return subprocess.run(command, capture_output=True, text=True, env=run.environ, check=False, timeout=PATIENCE_S)
