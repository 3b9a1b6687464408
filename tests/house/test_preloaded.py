"""The server that runs the tests' commands reports its own end, and is restarted for the next command."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import psutil
import pytest

from tests import preloaded
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture(autouse=True)
def _own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests end their server; the other tests of the lane need theirs."""
    monkeypatch.delenv(preloaded.ADDRESS, raising=False)


def running() -> subprocess.Popen[bytes]:
    server = preloaded._running()
    assert server is not None
    return server


def command(*arguments: str, cwd: Path) -> CompletedProcess[str]:
    return preloaded.run(arguments, env={**os.environ, "AGENTRL_HOME": str(cwd)}, cwd=cwd, timeout=PATIENCE_S)


def works(cwd: Path) -> None:
    assert command("config", "schema", cwd=cwd).returncode == 0


def test_a_server_that_does_not_start_reports_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "tests"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "preloaded.py").write_text("raise SystemExit(7)")
    with monkeypatch.context() as patched:
        patched.setattr(preloaded, "ROOT", tmp_path)
        patched.setattr(preloaded, "_server", None)
        patched.setattr(preloaded, "_address", preloaded._address)  # restores the address of the living server
        with pytest.raises(preloaded.LostError, match=r"ended with exit code 7 before `agentrl config schema` did"):
            command("config", "schema", cwd=tmp_path)
    works(tmp_path)


@pytest.mark.parametrize("with_its_server", [True, False])
def test_a_killed_waiter_does_not_break_the_next_command(tmp_path: Path, with_its_server: bool) -> None:
    works(tmp_path)
    server = psutil.Process(running().pid)
    with ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(command, "config", "check", str(never_read(tmp_path)), cwd=tmp_path)
        fork = waiting_for(wanted, server)
        (reader,) = fork.children()
        if with_its_server:
            server.kill()
        fork.kill()
        who = r"ended with exit code -9" if with_its_server else rf"The fork .* \(pid {server.pid}, which lives\) ended"
        with pytest.raises(preloaded.LostError, match=f"{who} before `agentrl config check .*fifo` did"):
            wanted.result()
    eventually(lambda: not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE, what="its command to end")
    works(tmp_path)
    assert (running().pid == server.pid) is not with_its_server


def test_a_program_of_a_command_answers_as_in_a_fresh_interpreter(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: demo\nsidecars: {web: {command: sleep 1}}\nrollout: {code: [gone.py]}\n")
    words = ("doctor", "run.yaml", "--json")
    environ = {**os.environ, "AGENTRL_HOME": str(tmp_path), "PYTHONPATH": str(preloaded.ROOT)}
    fresh = subprocess.run(
        [sys.executable, "-m", "agentrl", *words], env=environ, cwd=tmp_path, capture_output=True, check=False
    )
    forked = command(*words, cwd=tmp_path)
    assert forked.returncode == fresh.returncode
    assert names_in(forked.stdout) == names_in(fresh.stdout.decode())


def names_in(output: str) -> list[str]:
    return [check["name"] for check in json.loads(output)]


def never_read(folder: Path) -> Path:
    """A run file whose reader waits until it is written."""
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def waiting_for(wanted: Future[CompletedProcess[str]], server: psutil.Process) -> psutil.Process:
    """The fork that waits for the end of the command."""

    def waits() -> psutil.Process | None:
        assert not wanted.done(), wanted.result()
        # Once a fork sleeps with a child, the caller knows the process of the command.
        for fork in server.children():
            # The fork of the last command may still be ending.
            with contextlib.suppress(psutil.NoSuchProcess):
                if fork.children() and fork.status() == psutil.STATUS_SLEEPING:
                    return fork
        return None

    return eventually(waits, what="a command")
