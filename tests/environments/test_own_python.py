"""An environment with a Python of its own: its file runs in that Python, and never in a process of agentrl."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import app
from agentrl.config.load import load_config
from agentrl.config.own_tool_servers import PROGRAM
from agentrl.errors import ConfigError, ExitCode
from agentrl.rollout.environments_elsewhere import ACTIVITIES
from tests.images import tiny_vision

FAR = """
import asyncio
import only_there
import agentrl as rl

@rl.tool(effect="pure")
def double(number: int) -> int:
    "Twice the number."
    return only_there.twice(number)

@rl.agent
async def talks(episode: rl.Conversation) -> None:
    episode.state["seen"] = episode.row["kind"]
    reply = await episode.chat()
    while reply.calls:
        reply = await episode.chat(results=await episode.results_of(reply))
    pro, con = episode.branch("pro", system="Be brief."), episode.branch("con")
    await asyncio.gather(pro.chat("Why?"), con.chat("Why not?"))
    if episode.row["kind"] == "wrong use":
        await episode.chat()
    episode.state["last"] = True

@rl.scorer
def right(episode: rl.Episode) -> float:
    if episode.row["kind"] == "raises":
        return 1 / 0
    return float(episode.truth == episode.calls[0].result and episode.state == {"seen": "plain", "last": True})

@rl.metric
def beside(episode: rl.Episode) -> int:
    return len(episode.texts_of("pro")) + len(episode.texts_of("con"))

rl.Environment("far", dataset="far.jsonl", tools=[double], agent=talks, scorers=[right, beside])
"""
RUN = """
name: far
model: {build: tiny}
environments:
  far: {code: far.py, python: theirs/bin/python, sandbox: none}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(tmp_path / "theirs")], check=True)
    (packages,) = (tmp_path / "theirs").glob("lib/python*/site-packages")
    (packages / "only_there.py").write_text("def twice(number):\n    return 2 * number\n")
    (tmp_path / "far.py").write_text(FAR)
    rows = [{"query": "3", "answer": "6", "kind": kind} for kind in ("plain", "raises", "wrong use")]
    (tmp_path / "far.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


@pytest.mark.parametrize("sandbox", ["none", "process"])
def test_agent_scorers_and_tools_run_by_the_python_of_the_environment(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, sandbox: str
) -> None:
    run_file.write_text(RUN.replace("none", sandbox))
    monkeypatch.chdir(run_file.parent)
    call = '<tool_call>{"name": "double", "arguments": {"number": 3}}</tool_call>'
    said = ["--say", call, *["--say", "<answer>6</answer>"] * 3]
    command = [sys.executable, "-m", "agentrl", "--json", "try", "run.yaml", "-n", "3", *said]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    messages: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    plain, raises, wrong = sorted(
        (each for each in messages if each["event"] == "ended"), key=lambda each: int(each["episode"])
    )
    assert (plain["outcome"], plain["score"], plain["parts"]) == ("answered", 1.0, {"right": 1.0, "beside": 2.0})
    assert raises["score"] is None
    assert "ZeroDivisionError: division by zero (far.py, line 26)" in raises["error"]
    assert "a further turn needs a message" in wrong["error"]
    assert wrong["outcome"] == "loop_failed"


def test_a_missing_python_is_refused_with_one_sentence(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file.write_text(RUN.replace("theirs", "nowhere"))
    with pytest.raises(ConfigError, match=r"nowhere/bin/python does not start: No such file"):
        load_config(run_file)
    run_file.write_text(RUN.replace("theirs/bin/python", "'{python}'"))
    assert app.run(["config", "check", str(run_file)]) == ExitCode.CONFIG
    assert "far.py, line 3: ModuleNotFoundError: No module named 'only_there'" in capsys.readouterr().err


SEES = """
import asyncio
import io
import agentrl as rl

def square(side: int) -> bytes:
    from PIL import Image
    written = io.BytesIO()
    Image.new("RGB", (side, side), (200, side, 0)).save(written, "PNG")
    return written.getvalue()

@rl.tool(effect="pure")
def paint(side: int) -> list:
    "Paints a square."
    return ["painted:", rl.Image(square(side))]

@rl.agent
async def looks(episode: rl.Conversation) -> None:
    reply = await episode.chat()
    (result,) = await episode.results_of(reply)
    seen = [*await episode.images(), *await episode.images(result)]
    mine = await episode.text_of(rl.Image(square(32)))
    await episode.chat(f"Compare {result} with {mine}.")
    try:
        await episode.text_of(rl.Image(b"no image"))
    except ValueError as wrong:
        episode.state["refused"] = str(wrong)
    episode.state["heads"] = [each.data[:4].decode("latin1") for each in [*seen, *await episode.images(mine)]]

@rl.scorer
def right(episode: rl.Episode) -> float:
    assert episode.state["refused"]
    return float(episode.state["heads"] == ["\\x89PNG"] * 3)

rl.Environment("far", dataset="far.jsonl", tools=[paint], agent=looks, scorers=[right])
"""


def test_an_agent_in_a_sandbox_gets_images_and_shows_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_vision.write(tmp_path / "model", "qwen2_5_vl")
    (tmp_path / "red.png").write_bytes(tiny_vision.square((200, 0, 0)))
    (tmp_path / "far.jsonl").write_text(json.dumps({"query": "What?", "answer": "!", "images": ["red.png"]}) + "\n")
    (tmp_path / "far.py").write_text(SEES)
    run = "name: far\nmodel: {path: model}\nenvironments:\n  far: {code: far.py, sandbox: process}\n"
    (tmp_path / "run.yaml").write_text(run)
    call = '<tool_call>{"name": "paint", "arguments": {"side": 40}}</tool_call>'
    command = [sys.executable, "-m", "agentrl", "--json", "try", "run.yaml", "-n", "1", "--say", call, "--say", "!"]
    done = subprocess.run(command, capture_output=True, text=True)
    (ended,) = [each for each in map(json.loads, done.stdout.splitlines()) if each["event"] == "ended"]
    assert (ended["score"], ended["error"]) == (1.0, ""), done.stdout


ENDS = """
import asyncio
from pathlib import Path
import agentrl as rl

async def down(episode: rl.Conversation) -> None:
    await asyncio.sleep(0.05)
    Path(__file__).with_name(episode.query).touch()

@rl.agent
async def talks(episode: rl.Conversation) -> None:
    if episode.row["talks"]:
        await episode.chat()
    episode.state["seen"] = {1, 2}

rl.Environment("ends", dataset="no.jsonl", agent=talks, teardown=down)
"""


def test_an_episode_that_its_sampler_ends_is_torn_down_and_a_state_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    asked = {"module": ACTIVITIES, "file": str(tmp_path / "ends.py"), "name": "ends"}
    command = [sys.executable, PROGRAM, "play", json.dumps(asked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(number: int, do: str, activity: str, **fields: Any) -> Any:
            print(json.dumps({"id": number, "do": do, "activity": activity, **fields}), file=process.stdin, flush=True)
            answer = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            assert answer["id"] == number
            return answer["ok"]

        assert json.loads(process.stdout.readline())["id"] == 0
        for number, name in enumerate(("silent", "talking")):
            given = {"query": name, "row": {"talks": name == "talking"}, "tools": []}
            ask(10 * number + 1, "begin", name, kind="act", given=given)
        assert "TypeError: episode.state cannot be written as JSON: " in ask(2, "next", "silent")["failed"]
        assert ask(12, "next", "talking")["do"] == "chat"
        ask(13, "end", "talking")
        process.stdin.close()
        assert process.wait() == 0
    assert (tmp_path / "talking").exists(), "the episode was not torn down after its sampler ended it"
