"""An environment in a sandbox: what its agent and scorers may do, and what a hostile environment can disturb."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.adapters import player_process
from agentrl.adapters.player import OWN_PYTHON, Player, PlayerError
from agentrl.adapters.sources import Source
from agentrl.config import tool_sandbox
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.rollout import adapted_environments, scorers
from agentrl.rollout.environments_elsewhere import FileProgram, activity, register_elsewhere
from agentrl.rollout.sandboxed_starts import Confined
from agentrl.sandboxes import bubblewrap, sandbox_cgroups

FILE = """
import ctypes, os, signal, socket, time, urllib.error, urllib.request
import agentrl as rl

def tried(what):
    try:
        return what()
    except OSError as refused:
        return type(refused).__name__

def bomb():
    made = 0
    try:
        while made < 500:
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)
            made += 1
    except OSError as refused:
        return [made < 32, type(refused).__name__]

def fetched(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code

def fill(place):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in range(64):
        open(f"{place}/{number}", "wb").write(bytes(1 << 22))

ATTACKS = {
    "reads": lambda row: [tried(lambda: open(path).read()) for path in row["paths"]],
    "connects": lambda row: [tried(lambda: socket.create_connection(tuple(each), 5)) for each in row["addresses"]],
    "variables": lambda row: [name for name in os.environ if "TOKEN" in name or "KEY" in name],
    "writes": lambda row: tried(lambda: open(row["file"], "a")),
    "scratch": lambda row: open("/tmp/mine", "w").write("abc"),
    "fills": lambda row: tried(lambda: fill("/tmp")),
    "bombs": lambda row: bomb(),
    "fetches": lambda row: [fetched(url) for url in row["urls"]],
    "dies": lambda row: os.kill(os.getpid(), signal.SIGKILL),
    "crashes": lambda row: ctypes.string_at(0),
    "lies": lambda row: [tried(lambda: os.write(number, b'{"id": 10000}\\n')) for number in range(3, 12)],
    "spins": lambda row: [None for _ in iter(int, 1)],
}

@rl.agent
async def agent(episode: rl.Conversation) -> None:
    reply = await episode.chat()
    if reply.text:
        episode.state["found"] = ATTACKS[reply.text](episode.row)

rl.Environment("mine", dataset="mine.jsonl", agent=agent)
"""
RUN = """
name: mine
model: {build: tiny}
environments:
  mine: {code: mine.py, sandbox: {processes: 32, file_size: 8MiB}}
"""
LIMITS = {"processes": 32, "file_size": "8MiB"}
WRITES = """
import json, os
os.write(1, json.dumps({{"environments": {}}}).encode())
os._exit(0)
"""
KEYS = {"line": 1, "keys": {}, "tools": [], "scored": False, "resumable": False}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in ("mine.py", "calm.py"):
        (tmp_path / file).write_text(FILE)
    (tmp_path / "mine.jsonl").write_text('{"query": "?", "answer": "!"}\n')
    (tmp_path / "run.yaml").write_text(RUN)
    for file in ("state/mine/token", "runs/mine/config.json", "key"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("secret")
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "state"))
    for name, value in (("TOKEN", "fencing-token"), ("RUN", str(uuid.uuid4())), ("INCARNATION", "sampler-0.1")):
        monkeypatch.setenv(f"AGENTRL_{name}", value)
    monkeypatch.setenv("OPENAI_API_KEY", "of the operator")
    return tmp_path


@pytest.fixture
async def program(project: Path) -> AsyncIterator[FileProgram]:
    run_dir, secret = project / "runs" / "mine", project / "key"
    file, sandbox = str(project / "mine.py"), tool_sandbox.required(LIMITS)
    sandbox_cgroups.usable_places.cache_clear()
    yield FileProgram(file, "mine", OWN_PYTHON, Confined("mine", sandbox, run_dir, (secret,)))
    await scorers.close_scorers()
    assert not [place for place, _ in sandbox_cgroups.usable_places() if place.exists()]
    sandbox_cgroups.usable_places.cache_clear()


async def attack(program: FileProgram, kind: str, **row: Any) -> Any:
    async def serve(want: dict[str, Any]) -> Any:
        return {"text": kind, "calls": [], "errors": []}

    ended = await activity(program, "act", {"query": "?", "row": row, "tools": []}, serve)
    return ended.state.get("found")


async def test_a_hostile_environment_reaches_nothing_of_the_run(program: FileProgram, project: Path) -> None:
    """The file of the environment is beside the run file and the state of the run."""
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        coordinator.setblocking(False)
        address = coordinator.getsockname()
        secrets = [project / "state/mine/token", project / "runs/mine/config.json", project / "key"]
        paths = [str(path) for path in (*secrets, f"/proc/{os.getpid()}/environ", Path.home() / ".profile")]
        found = await asyncio.gather(
            attack(program, "reads", paths=paths),
            attack(program, "connects", addresses=[address, ("192.0.2.1", 80)]),
            attack(program, "variables"),
            attack(program, "writes", file=str(project / "mine.py")),
            attack(program, "scratch"),
            attack(program, "fills"),
            attack(program, "bombs"),
        )
        with pytest.raises(BlockingIOError):
            coordinator.accept()
    reads, connects, *others = found
    assert set(reads) <= {"FileNotFoundError", "PermissionError"}
    assert connects == ["ConnectionRefusedError", "OSError"]
    assert others == [[], "OSError", 3, "OSError", [True, "BlockingIOError"]]


async def test_an_environment_with_a_list_of_hosts_reaches_only_these(program: FileProgram) -> None:
    with (
        http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as listed,
        http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other,
    ):
        threading.Thread(target=listed.handle_request, daemon=True).start()
        addresses = [f"127.0.0.1:{web.server_address[1]}" for web in (listed, other)]
        sandbox = tool_sandbox.required({"network": addresses[:1]})
        confined = dataclasses.replace(program.confined, sandbox=sandbox)
        open_to_one = dataclasses.replace(program, confined=confined)
        assert await attack(open_to_one, "fetches", urls=[f"http://{each}/" for each in addresses]) == [200, 403]


async def test_an_environment_that_ends_its_process_costs_only_its_own_episodes(
    program: FileProgram, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player_process, "STANDS_STILL_S", 4.0)
    confined = dataclasses.replace(program.confined, sandbox=tool_sandbox.required("process"))
    calm = FileProgram(str(project / "calm.py"), "mine", OWN_PYTHON, confined)
    ends = {
        "dies": "its program was ended by SIGKILL",
        "crashes": "its program was ended by SIGSEGV",
        "lies": "an answer of its program cannot be read: it answers 10000",
        "spins": "it holds up its own process for 4 s",
    }
    released = asyncio.Event()

    async def serve(want: dict[str, Any]) -> Any:
        await released.wait()
        return {"text": "", "calls": [], "errors": []}

    other = asyncio.create_task(activity(calm, "act", {"query": "?", "row": {}, "tools": []}, serve))
    for kind, sentence in ends.items():
        with pytest.raises(PlayerError, match=f"mine.py: {sentence}"):
            await attack(program, kind)
    assert await attack(program, "scratch") == 3, "the next episode starts the process again"
    released.set()
    assert (await other).returned is None


def test_without_bubblewrap_an_environment_is_refused_before_its_file_is_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "mine.py").write_text(f"open({str(project / 'ran')!r}, 'w')\n" + FILE)
    monkeypatch.setenv("PATH", str(project))
    sentence = r"environments.mine.sandbox requires the kind process: bubblewrap is not installed; install the package"
    with pytest.raises(ConfigError, match=sentence):
        load_config(project / "run.yaml")
    assert not (project / "ran").exists()


def test_an_environment_is_refused_on_a_host_without_its_sandbox(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "mine.py").write_text(f"try: open({str(project / 'ran')!r}, 'w')\nexcept OSError: pass\n" + FILE)
    config = load_config(project / "run.yaml").config
    assert not (project / "ran").exists(), "the file ran only in its sandbox"
    assert config.rollout.code == ()
    monkeypatch.setattr(bubblewrap, "problem", lambda: "user namespaces are off; allow them")
    with pytest.raises(
        ConfigError, match=r"environments.mine.sandbox requires the kind process: user namespaces are off"
    ):
        register_elsewhere(config)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (FILE.replace("mine.jsonl", "../mine.jsonl"), r"its dataset ../mine.jsonl is not in the directory of the file"),
        (WRITES.format({"mine": 1}), "its process ended with 0"),
        (
            WRITES.format({"mine": KEYS | {"keys": {"dataset": "mine.jsonl", "tools": ["shell"]}}}),
            "so it may not name tool servers",
        ),
    ],
)
def test_declarations_of_a_hostile_file_are_refused(project: Path, code: str, sentence: str) -> None:
    (project / "mine.py").write_text(code)
    with pytest.raises(ConfigError, match=sentence):
        load_config(project / "run.yaml")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("{code: mine.py, sandbox: {memory: 1KiB}}", "environments.mine.sandbox: .*at least 16MiB"),
        ("{code: mine.py, sandbox: {kind: container, image: 'a@sha256:" + "0" * 64 + "'}}", "not container"),
        ("{dataset: mine.jsonl, sandbox: process}", "code that runs in a separate process"),
    ],
)
def test_an_impossible_sandbox_is_refused_with_one_sentence(project: Path, environment: str, sentence: str) -> None:
    (project / "run.yaml").write_text(f"name: mine\nmodel: {{build: tiny}}\nenvironments: {{mine: {environment}}}\n")
    with pytest.raises(ConfigError, match=sentence):
        load_config(project / "run.yaml")


async def test_the_same_package_with_and_without_a_sandbox_has_two_processes(project: Path) -> None:
    player = Player(source=Source("gymnasium", "CartPole-v1"), rows=1, held_out=0)
    inside = [
        adapted_environments._PlayerInSandbox(player, Confined(name, tool_sandbox.required(LIMITS), project, ()))
        for name in ("one", "other")
    ]
    processes = [adapted_environments._process_of(program) for program in (player, *inside, player)]
    assert processes[0] is processes[3]
    assert len({id(process) for process in processes}) == 3
    await scorers.close_scorers()


@pytest.mark.parametrize("required", [True, False])
def test_tools_of_an_environment_that_requires_a_sandbox_never_run_without_it(project: Path, required: bool) -> None:
    tool = "@rl.tool\ndef look() -> str:\n    'Look.'\n    return ''\n"
    (project / "mine.py").write_text(
        f"import agentrl as rl\n{tool}\nrl.Environment('mine', dataset='mine.jsonl', tools=[look], sandbox='process')\n"
    )
    if not required:
        (project / "run.yaml").write_text(RUN.replace("{processes", "{required: false, processes"))
    sandbox = load_config(project / "run.yaml").config.tools["mine"].sandbox
    assert (sandbox.kind, sandbox.required) == ("process", required)
