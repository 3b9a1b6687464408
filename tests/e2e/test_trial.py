"""`agentrl try`: episodes of an environment without a run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from agentrl.cli import app
from agentrl.config.load import load_config
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


def test_given_turns_show_results_of_tools_and_scorers(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("words", "said", "scores"),
    [
        (("gymnasium:FrozenLake-v1", "--with", "is_slippery=false"), [1, 1, 2, 2, 1, 2], {"reward": 1.0, "steps": 6.0}),
        (("reasoning-gym:letter_counting", "--with", "seed=1"), ["nothing"], {}),
    ],
)
def test_an_environment_of_another_package_is_tried_by_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: list[Any], scores: dict[str, float]
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    messages = tried(tmp_path, *words, "-n", "1", *(f"--say=<action>{each}</action>" for each in said))
    (ended,) = [each for each in messages if each["event"] == "ended"]
    assert (ended["score"], ended["turns"]) == (scores.get("reward", 0.0), len(said))
    assert scores.items() <= ended["parts"].items()
    assert messages[-1]["event"] == "done"


class _ChatApi(BaseHTTPRequestHandler):
    """A service of chat completions: it calls a tool first, and answers once it has the result."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({**asked, "path": self.path, "key": self.headers["Authorization"]})
        text = ANSWER if len(asked["messages"]) > 2 else CALL
        body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


def test_a_model_behind_an_address_is_asked_in_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shopping(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    with ThreadingHTTPServer(("127.0.0.1", 0), _ChatApi) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        limits = ("--set", "sampling={max_tokens: 8, context: 64}")  # of the service: its tokens are its own
        messages = tried(tmp_path, "shopping.py", "-n", "1", "--model", url, "--model-name", "large", *READS, *limits)
        server.shutdown()
    (ended,) = [each for each in messages if each["event"] == "ended"]
    assert (ended["outcome"], ended["score"], ended["turns"]) == ("answered", 1.0, 2)
    first, second = _ChatApi.asked
    assert (first["path"], first["key"], first["model"]) == ("/v1/chat/completions", "Bearer a-key", "large")
    assert first["max_tokens"] == 8
    assert [one["role"] for one in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"] == "Two teas, please."
    assert second["messages"][2:] == [
        {"role": "assistant", "content": CALL},
        {"role": "user", "content": "1 items"},
        {"role": "user", "content": "there is no milk"},
    ]


def test_an_interrupted_trial_ends_its_program_and_shows_no_traceback(tmp_path: Path) -> None:
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
        (("gymnasium:NoGame-v0",), "gymnasium:NoGame-v0: NameNotFound"),
        (("shopping.py", "--environment", "other"), "There is no environment 'other'"),
        (("empty.py",), "empty.py declares no environment"),
        (("broken.py",), "broken.py, line 2: ZeroDivisionError"),
        (("two.py",), "There are several environments: one, other"),
        (("run.yaml", "--model", "nowhere"), "model.path: there is no directory"),
    ],
)
def test_mistakes_are_one_sentence(
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


def test_init_writes_complete_files_and_overwrites_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run(["init", "sums"]) == ExitCode.OK
    assert load_config("run.yaml").config.environments["sums"].scorer == "sums"
    assert len(Path("run.yaml").read_text().splitlines()) <= 12
    shown = (Path(__file__).parents[2] / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert Path("sums.py").read_text() == shown, "the README shows the files that `init` writes"
    own = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_sums.py"], capture_output=True, text=True)
    assert "2 passed" in own.stdout, own.stdout
    Path("sums.py").write_text("mine")
    assert app.run(["init", "sums"]) == ExitCode.REFUSED
    assert app.run(["init", "two words"]) == ExitCode.USAGE
    lake = ["init", "lake", "--from", "gymnasium:FrozenLake-v1", "--with", "is_slippery=false", "--dir", "lake"]
    assert app.run(lake) == ExitCode.OK
    assert app.run(["config", "check", "lake/run.yaml"]) == ExitCode.OK
    assert app.run(["init", "lake", "--from", "harbour:x"]) == ExitCode.USAGE
    assert Path("sums.py").read_text() == "mine"
    assert "Traceback" not in capsys.readouterr().err
