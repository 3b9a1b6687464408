"""`agentrl eval`: evaluates models on environments without a run; evaluations are killed, resumed, shown, compared and
exported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.errors import ExitCode
from agentrl.evaluation import results_file
from tests.waiting import eventually

ENVIRONMENT = """
import agentrl as rl

@rl.scorer
def long(episode: rl.Episode) -> float:
    print("what code prints is no message")
    return float(len(episode.texts[0]) % 2)

rl.Environment("quiz", dataset="quiz.jsonl", scorers=[long], max_turns=1)
"""
TASKS, ATTEMPTS = 6, 3
WORDS = ["eval", "run", "quiz.py", "--model", "one=first", "--model", "second", "-k", str(ATTEMPTS)]
SAMPLED = ["--set", "sampling={max_tokens: 12, context: 256}", "--set", "evaluation.temperature=1.0"]


def agentrl(folder: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "agentrl", "--json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return json.loads(done.stdout)


def refused(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "agentrl", "--json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode not in (ExitCode.OK, 1), done.stdout
    return str(json.loads(done.stdout)["error"]["message"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "quiz.py").write_text(ENVIRONMENT)
    rows = [
        {"id": f"q{number}", "query": f"{number}?", "tags": ["odd"] if number % 2 else []} for number in range(TASKS)
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number, name in enumerate(("first", "second")):
        build_tiny(tmp_path / name, ["0? 1? 2? words"], seed=number)
    return tmp_path


def test_an_evaluation_that_is_killed_goes_on_and_its_results_are_shown_and_compared(folder: Path) -> None:
    out = folder / "results.jsonl"
    command = [sys.executable, "-m", "agentrl", *WORDS, *SAMPLED, "--at-once", "1"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        eventually(lambda: out.exists() and len(results_file.read(out)) >= 2, what="two attempts")
        (program,) = [
            child for child in psutil.Process(first.pid).children() if "daemons.evaluation" in child.cmdline()
        ]
        program.send_signal(signal.SIGKILL)
        first.communicate()
    before = {one.key: one.at for one in results_file.read(out)}
    shown = agentrl(folder, *WORDS, *SAMPLED)
    after = results_file.read(out)
    assert len(after) == 2 * TASKS * ATTEMPTS
    assert {one.key: one.at for one in after if one.key in before} == before, "finished attempts are not repeated"
    assert [(one["model"], one["tasks"], one["attempts"]) for one in shown] == [
        (name, TASKS, TASKS * ATTEMPTS) for name in ("one", "second")
    ]
    texts = {one.turns[0]["text"] for one in after if one.model == "one" and one.task == "q0"}
    assert len(texts) > 1, "attempts at one task are sampled with different seeds"
    assert {one["part"] for one in agentrl(folder, "eval", "show", str(out), "--by", "tag")} == {"odd", "no tag"}
    (compared,) = agentrl(folder, "eval", "compare", str(out))["parts"]
    assert compared["tasks"] == TASKS
    written = agentrl(folder, "eval", "export", str(out), "--to", "logs")["written"]
    assert [Path(each).name for each in written] == ["quiz_one.eval", "quiz_second.eval"]


def test_an_environment_of_another_package_is_evaluated_by_its_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(folder / "cache"))
    words = ("eval", "run", "reasoning-gym:letter_counting", "--with", "size=4", "--model", "first", "--limit", "2")
    (shown,) = agentrl(folder, *words, "-k", "1", *SAMPLED)
    assert (shown["part"], shown["tasks"], shown["failed"]) == ("letter_counting", 2, 0)


def test_an_evaluation_without_any_score_fails_and_succeeds_when_it_is_repeated(folder: Path) -> None:
    whole = (folder / "quiz.py").read_text()
    (folder / "quiz.py").write_text(whole.replace("float(len", "float(missing(len").replace("% 2)", "% 2))"))
    words = ["eval", "run", "quiz.py", "--model", "first", "-k", "1", *SAMPLED]
    command = [sys.executable, "-m", "agentrl", "--json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == ExitCode.FAILED, done.stdout + done.stderr
    assert "No attempt of first got a score" in done.stderr
    (shown,) = json.loads(done.stdout)
    assert (shown["failed"], shown["attempts"]) == (TASKS, 0)
    (folder / "quiz.py").write_text(whole)
    (shown,) = agentrl(folder, *words)
    assert (shown["failed"], shown["attempts"]) == (0, TASKS)


def test_mistakes_are_one_sentence_each(folder: Path) -> None:
    assert "There is no file" in refused(folder, "eval", "run", "other.py", "--model", "first")
    assert "nowhere" in refused(folder, "eval", "run", "quiz.py", "--model", "nowhere", *SAMPLED)
    assert "two models 'first'" in refused(folder, "eval", "run", "quiz.py", "--model", "first", "--model", "first")
    assert "names no model" in refused(folder, "eval", "run", "quiz.py")
    assert "There is no file" in refused(folder, "eval", "show", "none.jsonl")
    (folder / "results.jsonl").write_text("rubbish\n")
    assert "results.jsonl:1 is no result" in refused(folder, "eval", "compare", "results.jsonl")
    assert "--by length" in refused(folder, "eval", "show", "results.jsonl", "--by", "length")
