"""`agentrl try`: episodes of an environment without a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.cli import app
from agentrl.errors import ExitCode
from tests.environments.page import write_shopping
from tests.waiting import PATIENCE_S

CALL, ANSWER = "<tool_call>put(tea)</tool_call><tool_call>put(milk)</tool_call>", "<answer>6</answer>"
READS = ("--set", "environments.shopping.parser=minicpm")


def tried(folder: Path, *words: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "agentrl", "--json", "try", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_told_turns_show_what_tools_and_scorers_make_of_them(tmp_path: Path) -> None:
    write_shopping(tmp_path)
    said = ("--say", CALL, "--say", "<tool_call>put(", "--say", ANSWER)
    messages = tried(tmp_path, "shopping.py", "-n", "2", *said, *READS)
    turns = [each for each in messages if each["event"] == "turn" and each["episode"] == 2]
    assert [tool["result"] for tool in turns[0]["tools"]] == ["1 items", "there is no milk"]
    assert "no closing" in turns[1]["parsed"][0]["error"]
    ends = [each for each in messages if each["event"] == "ended"]
    assert len(ends) == 2
    assert (ends[0]["outcome"], ends[0]["score"]) == ("answered", 1.0)
    assert ends[0]["parts"] == {"total": 1.0, "bought": 0.0, "failed_calls": 1.0}
    assert messages[-1]["event"] == "done"


def test_a_model_of_its_own_answers_without_a_run(tmp_path: Path) -> None:
    file = write_shopping(tmp_path)
    messages = tried(tmp_path, str(file), "-n", "1", "--set", "sampling={max_tokens: 8, context: 512}")
    (ended,) = [each for each in messages if each["event"] == "ended"]
    assert (ended["turns"], ended["outcome"]) == (1, "token_limit")
    assert ended["score"] == 0.0


def test_an_interrupted_trial_ends_its_program_and_says_nothing_of_python(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"query": "a", "answer": "b"}\n')
    loop = "import asyncio\nimport agentrl as rl\n@rl.agent\nasync def slow(episode):\n    await asyncio.sleep(1000)\n"
    (tmp_path / "slow.py").write_text(f"{loop}rl.Environment('slow', dataset='rows.jsonl', agent=slow)\n")
    command = [sys.executable, "-m", "agentrl", "--json", "try", "slow.py", "--say", "x", "-n", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trial:
        assert trial.stdout is not None
        for line in trial.stdout:
            if json.loads(line)["event"] == "episode":
                break
        (program,) = psutil.Process(trial.pid).children()
        trial.terminate()
        _, said = trial.communicate(timeout=PATIENCE_S)
    assert trial.returncode == ExitCode.INTERRUPTED
    assert not program.is_running()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing.py",), "There is no file nothing.py"),
        (("shopping.py", "--environment", "other"), "There is no environment 'other'"),
        (("empty.py",), "empty.py declares no environment"),
        (("broken.py",), "broken.py, line 2: ZeroDivisionError"),
        (("two.py",), "There are several environments: one, other"),
        (("run.yaml", "--model", "nowhere"), "model.path: there is no directory"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    sentence: str,
) -> None:
    write_shopping(tmp_path)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    names = "".join(f"rl.Environment({name!r}, dataset='x')\n" for name in ("one", "other"))
    (tmp_path / "two.py").write_text(f"import agentrl as rl\n{names}")
    monkeypatch.chdir(tmp_path)
    assert app.run(["try", *words, "--json"]) == ExitCode.CONFIG
    assert sentence in json.loads(capsys.readouterr().out)["error"]["message"]


def test_what_init_writes_is_whole_and_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run(["init", "sums"]) == ExitCode.OK
    assert app.run(["config", "check", "run.yaml"]) == ExitCode.OK
    assert len(Path("run.yaml").read_text().splitlines()) <= 12
    own = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_sums.py"], capture_output=True, text=True)
    assert "2 passed" in own.stdout, own.stdout
    call = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
    messages = tried(tmp_path, "run.yaml", "-n", "1", "--say", call, "--say", "<answer>7</answer>")
    assert [each["parts"] for each in messages if each["event"] == "ended"] == [{"right": 1.0, "calls": 1.0}]
    Path("sums.py").write_text("mine")
    assert app.run(["init", "sums"]) == ExitCode.REFUSED
    assert app.run(["init", "two words"]) == ExitCode.USAGE
    assert Path("sums.py").read_text() == "mine"
    assert "Traceback" not in capsys.readouterr().err
