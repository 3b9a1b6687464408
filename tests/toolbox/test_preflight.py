"""Tools are called once before a run, where that is safe; all others are named with how to try them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentrl.cli import app
from agentrl.config import own_tool_servers
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.config.serialization import config_to_plain
from agentrl.errors import ExitCode
from agentrl.toolbox.preflight import Trial, try_tools
from tests.waiting import eventually

SHOP = """
import os, time
import agentrl as rl

class Cart(rl.Session):
    def setup(self, task):
        self.wanted = task.row["wanted"]

@rl.tool
def left(cart: Cart) -> list[str]:
    "What is still wanted."
    return cart.wanted

@rl.tool(example={"item": "tea"})
def put(item: str, cart: Cart) -> str:
    "Put."
    cart.wanted.remove(item)
    return "done"

@rl.tool(example={"item": "coal"})
def order(item: str) -> str:
    "Order."
    raise rl.ToolError(f"there is no {item}")

@rl.tool
def price(item: str) -> int:
    "Price."
    return {"tea": 3}[item]

@rl.tool(effect="outside")
def pay(cents: int) -> str:
    "Pay."
    return "paid"

@rl.tool
def crash() -> str:
    "Crash."
    os._exit(3)

@rl.tool(effect="outside", example={})
def post() -> str:
    "Post."
    with open(__file__ + ".posted", "a") as file:
        file.write("x")
    os._exit(3)

@rl.tool(effect="pure")
def hang() -> str:
    "Hang."
    time.sleep(1000)

@rl.tool
def again() -> str:
    "It works in the next process."
    return "here"

rl.Environment("shop", dataset="rows.jsonl", tools=[left, put, order, price, pay, crash, post, hang, again])
"""
FOREIGN = """
from agentrl.toolservers.mcp_stdio import Server, Tool

HINTS = {"look": {"readOnlyHint": True}, "drop": {"idempotentHint": True}, "set": {"idempotentHint": True,
         "destructiveHint": False}, "send": {}}

class Foreign(Tool):
    def listed(self):
        return {**super().listed(), "_meta": {}, "annotations": HINTS[self.name]}

schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
Server("foreign", "", [Foreign(name, name, schema, lambda arguments, call: arguments["to"]) for name in HINTS]).serve()
"""
RUN = """
name: tried
model: {build: tiny}
environments:
  shop: shop.py
tools:
  shop: {timeout_s: 1, start_s: 30, sandbox: {write: [.]}}
  foreign: {command: ["{python}", foreign.py], examples: {send: {to: me}, none: {}}}
  broken: {command: ["{python}", broken.py]}
  demo: {command: ["{python}", -m, assets.shop_server], session: keyed}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "foreign.py").write_text(FOREIGN)
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "rows.jsonl").write_text('{"query": "Tea.", "answer": "1", "wanted": ["tea"]}\n')
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


def test_each_tool_works_fails_or_is_untried_and_one_that_fails_disturbs_no_other(run_file: Path) -> None:
    config = load_config(run_file).config
    found: list[Trial] = []
    asyncio.run(try_tools(config, list(config.tools), found.append))
    verdicts = {f"{trial.server}.{trial.tool}": trial.verdict for trial in found}
    works = {
        "shop.left",
        "shop.put",
        "shop.again",
        "foreign.look",
        "foreign.set",
        "foreign.send",
        "demo.lookup",
        "demo.calculator",
    }
    fails = {"shop.order", "shop.crash", "shop.post", "shop.hang", "foreign.none", "broken."}
    untried = {"shop.price", "shop.pay", "foreign.drop"}
    assert {name for name, verdict in verdicts.items() if verdict == "works"} == works
    assert {name for name, verdict in verdicts.items() if verdict == "fails"} == fails
    assert {name for name, verdict in verdicts.items() if verdict == "untried"} == untried
    said = {trial.tool or trial.server: f"{trial.sentence} {trial.hint}" for trial in found}
    assert 'refuses its example {"item": "coal"}: there is no coal' in said["order"]
    assert "does not answer {} within 1 s" in said["hang"]
    assert "No module named 'no_such_module'" in said["broken"]
    assert "made-up arguments" in said["price"]
    assert '`tools: {foreign: {examples: {drop: {"to": "a"}}}}`' in said["drop"]
    assert "acts outside" in said["pay"]
    assert run_file.with_name("shop.py.posted").read_text() == "x", "a tool that acts outside is called once"


def test_up_names_untried_tools_and_is_refused_if_a_tool_fails(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(run_file.parent / "home"))
    blocked = "tools.shop.block=[crash, hang, order, post]"
    given = ["up", str(run_file), "--json", "--set", blocked, "--set", "tools.broken={shipped: calculator}"]
    assert app.run([*given, "--dry-run"]) == ExitCode.TOOLS
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["name"] == "tools"
    assert "tools.foreign: the tool none is not there" in error["message"]
    assert "--skip-tools" in error["hint"]
    assert app.run([*given, "--dry-run", "--set", "tools.foreign.examples={}"]) == ExitCode.OK
    notes = " ".join(json.loads(capsys.readouterr().out)["effect"]["notes"])
    assert "8 tools answered" in notes
    assert "pay is untried" in notes


def test_a_tool_whose_state_cannot_be_made_fails_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(
        """
import agentrl as rl

class Room(rl.Session):
    def setup(self, task):
        self.seen = task.query

@rl.tool
def look(room: Room) -> str:
    "Look."
    return room.seen

rl.Environment("room", dataset="no.jsonl", tools=[look])
"""
    )
    (tmp_path / "run.yaml").write_text("name: tried\nmodel: {build: tiny}\nenvironments: {room: room.py}\n")
    found: list[Trial] = []
    asyncio.run(try_tools(load_config(tmp_path / "run.yaml").config, ["room"], found.append))
    (look,) = found
    assert look.verdict == "fails"
    assert "the tool look cannot be called: There is no dataset" in look.sentence


HANGS = """
import time
import agentrl as rl

@rl.tool(effect="pure")
def hang() -> str:
    "Hang."
    time.sleep(1000)
"""


def test_an_interruption_ends_servers_in_order_also_those_that_go_on_without_their_input(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    server = f"{sys.executable} {own_tool_servers.PROGRAM} functions {tmp_path / 'hangs.py'}; sleep 1000"
    tools = {"mine": {"command": ["sh", "-c", server], "cwd": str(tmp_path), "sandbox": "none"}}
    environments = {"mine": {"dataset": str(tmp_path / "rows.jsonl"), "tools": ["mine"]}}
    config = RunConfig.model_validate(
        {"name": "x", "model": {"build": "tiny"}, "environments": environments, "tools": tools}
    )
    asked = {"config": config_to_plain(config), "tools": ["mine"], "run_file": ""}
    command = [sys.executable, "-m", "daemons.tool_preflight"]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path)
    started: list[psutil.Process] = []
    try:
        assert program.stdin is not None
        program.stdin.write(json.dumps(asked).encode() + b"\n")
        program.stdin.close()
        started = eventually(lambda: psutil.Process(program.pid).children(recursive=True), what="its server starts")
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == ExitCode.INTERRUPTED
        assert not [each for each in started if each.is_running()]
    finally:
        for each in (program, *started):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                each.kill()
        program.wait()
