"""Tasks of Harbor: which can be played without an image, and the scores of their verifiers, which a model cannot
change."""

from __future__ import annotations

import base64
import gzip
import io
import json
import posixpath
import random
import tarfile
from pathlib import Path

import pytest

from agentrl.adapters.harbor_tasks import digest, tasks_in
from agentrl.adapters.player import PlayerError
from agentrl.cli import tried_environments
from agentrl.config.load import load_config
from agentrl.rollout import agent_loops, scorers, user_code
from agentrl.store import datasets
from tests.rollout.conftest import Stage

TEST = """\
cd /app
expected=$(cat /tests/expected.txt)
if [ "$(cat greeting.txt 2>/dev/null)" = "$expected" ]; then echo 1; else echo 0.25; fi > /logs/verifier/reward.txt
"""


def write_task(folder: Path, *, dockerfile: str = "FROM ubuntu:24.04\nWORKDIR /app\nCOPY names.txt /app/\n") -> Path:
    for place, text in {
        "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 20.0\n',
        "instruction.md": "Write a greeting of the one in names.txt to greeting.txt.\n",
        "environment/Dockerfile": dockerfile,
        "environment/names.txt": "Ada\n",
        "tests/test.sh": TEST,
        "tests/expected.txt": "Hello Ada\n",
        "solution/solve.sh": 'echo "Hello $(cat names.txt)" > greeting.txt\n',
    }.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("dockerfile", "sentence"),
    [
        ("FROM ubuntu\nRUN make\n", "needs an image: its Dockerfile has RUN make"),
        ("FROM company/tools:3\n", "its Dockerfile begins with company/tools:3"),
        ("FROM python:3.12\nWORKDIR /testbed\n", "it works in /testbed"),
        ("FROM python:3.12\nCOPY a /etc/a\n", "its Dockerfile has COPY a /etc/a"),
        ("FROM python:3.12\nCOPY ../up /app\n", "its Dockerfile has COPY ../up /app"),
        ("FROM python:3.12\nENV A=1\n", "its Dockerfile has ENV A=1"),
        ("FROM python:3.12\nCOPY names.txt ../up\n", "its Dockerfile has COPY names.txt ../up"),
        ("FROM python:3.12\nADD names.tar.gz /app/\n", "its Dockerfile has ADD names.tar.gz /app/"),
    ],
)
def test_a_task_that_needs_an_image_is_refused_with_the_reason(tmp_path: Path, dockerfile: str, sentence: str) -> None:
    write_task(tmp_path / "one", dockerfile=dockerfile)
    with pytest.raises(PlayerError, match="needs an image") as refused:
        tasks_in(tmp_path, has_network=False)
    assert sentence in str(refused.value)


def packed_names(folder: Path) -> dict[str, bytes]:
    (task,) = tasks_in(folder, has_network=False)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(task.files()))) as archive:
        found = {posixpath.normpath(info.name): archive.extractfile(info) for info in archive if info.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


@pytest.mark.parametrize("source", ["/secret.txt", "{place}/secret.txt", "link/secret.txt", "linked.txt"])
def test_a_task_of_a_stranger_takes_no_file_of_this_host(tmp_path: Path, source: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("a key")
    copy = f"COPY {source.format(place=outside)} /app/taken.txt"
    folder = write_task(tmp_path / "one", dockerfile=f"FROM ubuntu\n{copy}\n")
    (folder / "environment" / "link").symlink_to(outside)
    (folder / "environment" / "linked.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(PlayerError, match="which is not in environment/"):
        tasks_in(folder, has_network=False)


def test_a_link_that_leads_out_of_a_task_is_refused_before_an_episode(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one", dockerfile="FROM ubuntu\nCOPY . /app\n")
    (folder / "environment" / "deep").mkdir()
    (folder / "environment" / "deep" / "link").symlink_to("/etc/passwd")
    with pytest.raises(PlayerError, match=r"has a file that no session may have: .*link"):
        tasks_in(folder, has_network=False)


def test_a_task_that_is_too_large_is_refused_before_an_episode(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one", dockerfile="FROM ubuntu\nCOPY . /app\n")
    (folder / "environment" / "large").write_bytes(random.Random(1).randbytes(2 << 20))
    with pytest.raises(PlayerError, match="is too large"):
        tasks_in(folder, has_network=False)


@pytest.mark.parametrize(
    ("copy", "names"),
    [
        ("COPY data /app/data/", {"data/Dockerfile", "data/inner/a.txt"}),
        ("COPY data /app/", {"Dockerfile", "inner/a.txt"}),
        ("COPY /data data", {"data/Dockerfile", "data/inner/a.txt"}),
        ("COPY names.txt ./", {"names.txt"}),
        ("COPY . /app", {"names.txt", "data/Dockerfile", "data/inner/a.txt"}),
    ],
)
def test_files_are_where_docker_would_copy_them(tmp_path: Path, copy: str, names: set[str]) -> None:
    folder = write_task(tmp_path / "one", dockerfile=f"FROM ubuntu\nWORKDIR /app\n{copy}\n")
    for name in ("Dockerfile", "inner/a.txt"):
        place = folder / "environment" / "data" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x")
    assert set(packed_names(folder)) == names


@pytest.mark.parametrize("limit", ["inf", "nan", "0", "-1.0", "'long'"])
def test_a_limit_of_a_verifier_that_is_none_is_refused(tmp_path: Path, limit: str) -> None:
    folder = write_task(tmp_path / "one")
    (folder / "task.toml").write_text(f"[verifier]\ntimeout_sec = {limit}\n")
    with pytest.raises(PlayerError, match=r"verifier\.timeout_sec must be a number of seconds"):
        tasks_in(folder, has_network=False)


def test_a_dockerfile_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one")
    (folder / "environment" / "Dockerfile").write_bytes(b"\xff")
    with pytest.raises(PlayerError, match="has a file that is no text"):
        tasks_in(folder, has_network=False)


def test_a_verifier_that_downloads_needs_a_network_and_a_change_of_a_file_is_another_dataset(tmp_path: Path) -> None:
    task = write_task(tmp_path / "one")
    before = digest(tasks_in(tmp_path, has_network=False))
    packed = base64.b64decode(tasks_in(task, has_network=False)[0].files())
    assert (b"Ada" in gzip.decompress(packed), packed[4:8]) == (True, bytes(4)), "the time of packing is not in it"
    assert digest(tasks_in(task, has_network=False)) == before
    (task / "tests" / "test.sh").write_text(f"pip install pytest\n{TEST}")
    with pytest.raises(PlayerError, match=r"tests/test\.sh calls pip install"):
        tasks_in(tmp_path, has_network=False)
    assert digest(tasks_in(tmp_path, has_network=True)) != before


def test_a_command_finds_tasks_from_the_directory_in_which_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks" / "greet")
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    environment = tried_environments.configured("harbor:tasks", None, None, None).environments["tasks"]
    assert [row.id for row in datasets.read(environment.dataset)] == ["greet"]


async def test_the_verifier_of_a_task_scores_what_the_agent_left(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(agent_loops, "_registry", dict(agent_loops._registry))
    monkeypatch.setattr(scorers, "_registry", dict(scorers._registry))
    write_task(tmp_path / "tasks" / "greet")
    (tmp_path / "run.yaml").write_text(
        "name: x\nmodel: {build: tiny}\nenvironments: {shop: {code: 'harbor:tasks', parser: qwen, max_turns: 3}}\n"
    )
    stage.config = load_config(tmp_path / "run.yaml", environ={}).config
    user_code.load(stage.config)
    await stage.toolbox()
    (row,) = datasets.read(stage.config.environments["shop"].dataset)
    assert row.query == "Write a greeting of the one in names.txt to greeting.txt."
    assert row.extra["difficulty"] == "easy"

    def call(command: str, tool: str = "bash") -> str:
        return f"<tool_call>{json.dumps({'name': tool, 'arguments': {'command': command}})}</tool_call>"

    looks = call("ls -a /app /tests /logs; cat names.txt; ls /home /root /work 2>&1")
    cheats = call("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 'echo' > /tests/test.sh")
    # The query decides: it greets, or cheats and calls the verifier, or works until its last turn.
    said = {
        "greets": [looks, call("echo Hello $(cat names.txt) > greeting.txt"), "Done."],
        "cheats": [cheats + call("", "agentrl_verify"), "Done."],
        "works": [call("true"), call("pwd"), call("echo Hello Ada > greeting.txt")],
    }
    engine = await stage.engine(lambda prompt: said[prompt.answers[0].strip()].pop(0))
    for who in list(said):
        await stage.task(who, n=1, extra=row.extra)
    async with stage.sampler():
        ended = {record.task: record for record in await stage.ended(count=3, within_s=60)}
    greets, cheats_, works = (ended[f"shop/train/0/{number:06d}"] for number in range(3))
    assert (greets.outcome, greets.score) == ("answered", 1.0), greets.error
    assert (cheats_.outcome, cheats_.score) == ("answered", 0.25), "a reward that the agent wrote itself is removed"
    assert (works.outcome, works.score) == ("turn_limit", 1.0), "the result of the last turn is verified"
    first = next(call for call in await stage.tool_calls() if call.id.startswith(greets.id) and call.tool == "bash")
    assert "agentrl_verify" not in engine.prompts[0].text
    assert "names.txt" in first.result
    assert "expected.txt" not in first.result, "tests come when the agent has finished"
    assert str(tmp_path) not in first.result
