"""The training demo: its hints, and an interrupted demo leaves no process and no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from assets import train_demo
from assets.demo_operator import Operator


@pytest.mark.parametrize("keep", [False, True])
def test_first_and_last_line_explain_how_to_keep_and_read_the_demo(
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
        else "`agentrl tui --playback @demo` plays a recorded demo."
    )


def test_failed_demo_keeps_its_files_and_names_commands_for_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process is started, because the run file is refused."""

    def prepare(demo: train_demo.TrainingDemo) -> None:
        demo.home.joinpath("assets").mkdir()
        demo.home.joinpath("assets", "train.yaml").write_text("name: shop\nsidecars: {web: {command: x, coun: 1}}\n")

    monkeypatch.setattr(train_demo.TrainingDemo, "_prepare", prepare)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train_demo"])
    assert train_demo.main() == 1
    *_, failed, left = capsys.readouterr().out.splitlines()
    (home,) = tmp_path.glob("agentrl-demo-*")
    assert failed.startswith(f"The demo failed. AGENTRL_HOME={home}/state agentrl up --run shop ")
    assert "ended with 78" in failed
    assert "unknown key sidecars.web.coun" in failed
    assert left == f"Its files and logs are in {home}; rm -r {home} removes them."


def test_hint_contains_the_environment_and_the_run_option(tmp_path: Path) -> None:
    operator = Operator(Console(), tmp_path, "shop")
    shown = operator.as_typed(
        "The trainer is fatal. `agentrl logs trainer-0 --previous` shows why, agentrl doctor checks."
    )
    where = f"AGENTRL_HOME={tmp_path / 'state'}"
    assert f"`{where} agentrl logs --run shop trainer-0 --previous` shows why, agentrl doctor checks." in shown


def test_successful_or_interrupted_demo_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for code in (0, 130):
        monkeypatch.setattr(train_demo, "_run", lambda demo, console, code=code: code)
        monkeypatch.setattr(sys, "argv", ["train_demo"])
        assert train_demo.main() == code
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assets.train_demo", "--json", "--keep", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        output = []
        while "from another terminal" not in (line := demo.stderr.readline()):
            assert line, f"the demo ended by itself: {output}"
            output.append(line)
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
