"""The training demo is interrupted: nothing of it is left, and it says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from assets import train_demo


@pytest.mark.parametrize("keep", [False, True])
def test_it_says_at_its_beginning_how_it_is_kept_and_at_its_end_how_it_is_read(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(demo: train_demo.TrainingDemo, console: Console) -> int:
        console.print("it begins")
        return 0

    monkeypatch.setattr(train_demo, "_run", run)
    monkeypatch.setattr(sys, "argv", ["train_demo", *(["--keep", str(tmp_path / "kept")] if keep else [])])
    assert train_demo.main() == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "it begins" if keep else "make demo ARGS='--keep DIR'" in first
    state = tmp_path / "kept" / "state"
    assert last == (
        f"To read its records: AGENTRL_HOME={state} agentrl up --run shop --read-only"
        if keep
        else "`agentrl tui --replay @demo` plays one that was recorded."
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assets.train_demo", "--json", "--keep", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        said = []
        while "from another terminal" not in (line := demo.stderr.readline()):
            assert line, f"the demo ended by itself: {said}"
            said.append(line)
        assert "agentrl tui" in line
        os.kill(demo.pid, signal.SIGINT)
        out, err = demo.communicate()
    assert demo.returncode == 130
    assert "Nothing of shop is left" in err
    assert json.loads(out)["exit_code"] == 130
    assert [process.pid for process in psutil.process_iter() if str(tmp_path) in _command(process)] == []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
