"""The file of results survives kills and second writers; summaries count tasks; logs are what inspect reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.cli import evaluate
from agentrl.cli.options import Cli
from agentrl.errors import ConfigError, RefusedError, UsageError
from agentrl.evaluation import attempts, inspect_log, results_file
from agentrl.evaluation.results_file import ResultsFile
from agentrl.evaluation.summaries import comparison, summaries
from agentrl.protocol.evaluation_commands import Attempt
from agentrl.store.documents import Task
from daemons import evaluation as daemon
from daemons.evaluation import EvaluationAttempt

WRITER = """
import sys
from pathlib import Path
from agentrl.protocol.evaluation_commands import Attempt
from agentrl.evaluation.results_file import ResultsFile
with ResultsFile(Path(sys.argv[1])) as file:
    for number in range(100000):
        file.add(Attempt(key=str(number), model="m", environment="e", task="t", attempt=number, error="x" * 5000))
        print(number, flush=True)
"""


def attempt(task: str, number: int = 0, score: float | None = 1.0, **others: Any) -> Attempt:
    fields = {"model": "m", "environment": "quiz", "outcome": "answered", **others}
    return Attempt(key=f"{fields['model']}/{task}/{number}", task=task, attempt=number, score=score, **fields)


def test_what_was_reported_before_a_kill_is_there_and_the_next_writer_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(20)]
        with pytest.raises(RefusedError, match="Another `agentrl eval run` adds to"), ResultsFile(file):
            pass
        writer.send_signal(signal.SIGKILL)
    with file.open("ab") as end:  # as a kill within a write leaves it
        end.write(b'{"key": "half')
    assert {one.attempt for one in results_file.read(file)} >= set(told)
    with ResultsFile(file) as again:
        again.add(attempt("last"))
    assert results_file.read(file)[-1].task == "last"
    assert all(json.loads(line) for line in file.read_bytes().splitlines())


def test_the_newest_of_a_key_counts_and_rubbish_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with ResultsFile(file) as those:
        those.add(attempt("a", score=None, outcome="tool_server_failed"))
        those.add(attempt("a", score=0.5))
    assert [one.score for one in results_file.read(file)] == [0.5]
    with file.open("a") as end:
        end.write('{"key": 3}\n')
    with pytest.raises(ConfigError, match=rf"{file}:3 is no result"):
        results_file.read(file)
    with pytest.raises(ConfigError, match="There is no file"):
        results_file.read(tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    "body",
    [b'{"query": "1 + 1?"}\n{"query": "2 + 2?"}', b"name: demo\nmodel: {build: tiny}", b"weights"],
    ids=["dataset", "run file", "one line"],
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path, body: bytes) -> None:
    file = tmp_path / "named-by-mistake"
    file.write_bytes(body)
    with pytest.raises(ConfigError, match="no file of results"), ResultsFile(file):
        pass
    assert file.read_bytes() == body


def test_zeros_that_a_loss_of_power_left_are_no_attempt(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with ResultsFile(file) as those:
        those.add(attempt("a"))
    with file.open("ab") as end:
        end.write(bytes(40))
    with ResultsFile(file) as those:
        those.add(attempt("b"))
    assert [one.task for one in results_file.read(file)] == ["a", "b"]


def test_figures_are_of_the_newest_setup_of_a_model(tmp_path: Path) -> None:
    """The weights of a directory were written again, and then with fewer attempts."""
    file = tmp_path / "results.jsonl"
    old = [made_with("old", "a", number, 0.0) for number in range(2)]
    new, elsewhere = made_with("new", "a", 0, 1.0), made_with("old", "a", 0, 0.5, environment="shop")
    with ResultsFile(file) as those:
        for one in (*old, new, elsewhere):
            those.add(one)
    assert results_file.counting(file) == [new, elsewhere]
    assert len(results_file.read(file)) == 4
    with ResultsFile(file) as those:
        wanted = [EvaluationAttempt(task=Task(id="a"), name="a", attempt=0, key=old[0].key, setup="old")]
        assert daemon._known(those, "m", wanted) >= {one.key for one in old}
    assert results_file.counting(file) == [old[1], elsewhere, old[0]], "the weights from before are there again"
    edited = made_with("old", "a", 0, 1.0, key="of another text with the same id")
    with ResultsFile(file) as those:
        those.add(edited)
    assert edited in results_file.counting(file)
    assert old[0] not in results_file.counting(file)


def made_with(setup: str, task: str, number: int, score: float, **others: Any) -> Attempt:
    fields = {"key": f"{setup}/{others.get('environment', '')}/{task}/{number}", "setup": setup, **others}
    return msgspec.structs.replace(attempt(task, number, score), **fields)


def test_a_summary_counts_tasks_and_leaves_failures_out() -> None:
    those = [
        *(attempt("a", number, score, tags=("easy", "short")) for number, score in enumerate([1.0, 0.0])),
        *(attempt("b", number, 0.0, tags=("hard",)) for number in range(2)),
        attempt("c", 0, None, outcome="engine_gone"),
    ]
    (one,) = summaries(those)
    assert (one.tasks, one.attempts, one.failed, one.mean) == (2, 4, 1, 0.25)
    assert one.passed == {"1": 0.25, "2": 0.5}
    assert {found.part: found.mean for found in summaries(those, "tag")} == {
        "easy": 0.5,
        "short": 0.5,
        "hard": 0.0,
        "no tag": None,
    }


def test_a_tag_that_a_row_has_twice_counts_its_tasks_once() -> None:
    (one,) = summaries([attempt("a", tags=("easy", "easy"))], "tag")
    assert (one.attempts, one.passed) == (1, {"1": 1.0})
    assert attempts.tags_of({"tags": ["easy", "easy", 3]}) == ("easy", "3")
    assert attempts.tags_of({"tags": None}) == attempts.tags_of({}) == ()
    assert attempts.difficulty_of({"difficulty": None}) == ""
    assert attempts.difficulty_of({"difficulty": 3}) == "3"


def test_models_are_compared_on_common_tasks() -> None:
    first = [attempt(f"t{number}", score=0.0) for number in range(12)]
    second = [attempt(f"t{number}", score=1.0, model="n") for number in range(4, 20)]
    (part,) = comparison(first, second)
    assert (part.tasks, part.better, part.worse, part.difference, part.shown) == (8, 8, 0, 1.0, True)
    assert part.moved[0] == ("quiz/t4", 1.0)
    with pytest.raises(ConfigError, match="no task in common"):
        comparison(first[:2], second)


def test_a_model_and_an_environment_are_known_by_what_they_are(tmp_path: Path) -> None:
    weights, code = tmp_path / "model.safetensors", tmp_path / "quiz.py"
    weights.write_bytes(b"one")
    code.write_text("1")
    before = attempts.digest_of_model(tmp_path), attempts.digest_of_environment({"max_turns": 3}, [code])
    (tmp_path / "notes.txt").write_text("not a part of the model")
    assert attempts.digest_of_model(tmp_path) == before[0]
    os.utime(weights, ns=(1, 1))
    code.write_text("2")
    assert attempts.digest_of_model(tmp_path) != before[0]
    assert attempts.digest_of_environment({"max_turns": 3}, [code]) != before[1]


def test_a_log_has_a_header_its_samples_and_their_summaries(tmp_path: Path) -> None:
    turn = {"text": "look", "tools": [{"tool": "look", "arguments": {"at": 1}, "status": "ok", "result": "2"}]}
    those = [attempt("a", 0, 1.0, turns=(turn,)), attempt("a", 1, None, error="it is gone"), attempt("b", 0, 0.0)]
    those.append(msgspec.structs.replace(attempt("a"), model="models/other"))
    files = inspect_log.write(those, tmp_path / "logs")
    assert [file.name for file in files] == ["quiz_m.eval", "quiz_models-other.eval"]
    with zipfile.ZipFile(files[0]) as log:
        header, listed = json.loads(log.read("header.json")), json.loads(log.read("summaries.json"))
        first = json.loads(log.read("samples/a_epoch_1.json"))
    assert (header["eval"]["config"]["epochs"], header["results"]["completed_samples"]) == (2, 2)
    assert [(one["id"], one["epoch"], bool(one["scores"])) for one in listed] == [
        ("a", 1, True),
        ("a", 2, False),
        ("b", 1, True),
    ]
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "tool"]
    assert first["messages"][1]["tool_calls"][0]["id"] == first["messages"][2]["tool_call_id"]


def test_each_log_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = [("math", "hard_m"), ("math_hard", "m"), ("math", "hard m"), ("math", "m" * 300), ("math", "m" * 300 + "x")]
    those = [attempt("a", environment=environment, model=model) for environment, model in names]
    files = inspect_log.write(those, tmp_path)
    assert len({*files}) == len(names)
    assert [model_of(file) for file in files] == [f"agentrl/{model}" for _, model in names]


def model_of(file: Path) -> str:
    with zipfile.ZipFile(file) as log:
        return str(json.loads(log.read("header.json"))["eval"]["model"])


def test_two_models_of_a_file_are_named_before_they_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with ResultsFile(file) as those:
        for model in ("a", "b", "c"):
            those.add(attempt("t", model=model))
    cli = Cli()
    with pytest.raises(UsageError, match="has 3 models, and two are compared") as several:
        evaluate._two(cli, file, None, [])
    with pytest.raises(UsageError, match="--model names 1 model, and two are compared") as one:
        evaluate._two(cli, file, None, ["a", "a"])
    assert several.value.hint == one.value.hint == "Choose two of a, b, c with --model."
    assert [name for name, _ in evaluate._two(cli, file, None, ["c", "a"])] == ["c", "a"]
    with pytest.raises(ConfigError, match="no results of 'd'"):
        evaluate._two(cli, file, None, ["a", "d"])


def test_a_password_of_an_address_is_not_in_the_results() -> None:
    assert evaluate._named("https://me:secret@models.example/v1") == (
        "https://models.example/v1",
        "https://me:secret@models.example/v1",
    )
    assert evaluate._named("mine=http://127.0.0.1:1/v1") == ("mine", "http://127.0.0.1:1/v1")
    assert evaluate._named("models/tuned/") == ("tuned", "models/tuned/")
