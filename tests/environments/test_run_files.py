"""The declarations of a Python file become the configuration of a run, and mistakes are reported with their line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from tests.environments.page import JUDGES, blocks, write_shopping


def test_the_example_of_the_page_is_a_run(tmp_path: Path) -> None:
    loaded = load_config(write_shopping(tmp_path), environ={})
    environment, server = loaded.config.environments["shopping"], loaded.config.tools["shopping"]
    assert (environment.agent, environment.scorer, environment.max_turns) == ("shopping", "shopping", 6)
    assert environment.dataset == str(tmp_path / "shopping.jsonl")
    assert (server.functions, server.session) == (str(tmp_path / "shopping.py"), "keyed")
    assert loaded.config.rollout.code == (str(tmp_path / "shopping.py"),)
    line = (
        (tmp_path / "shopping.py")
        .read_text()[: (tmp_path / "shopping.py").read_text().index("shopping = ")]
        .count("\n")
    )
    assert loaded.sources["environments.shopping.max_turns"] == f"shopping.py:{line + 1}"


def test_the_run_file_has_priority(tmp_path: Path) -> None:
    file = write_shopping(tmp_path)
    file.write_text(
        "name: shopping\nmodel: {build: tiny}\nenvironments:\n  shopping: {code: shopping.py, max_turns: 3}\n"
        "tools:\n  shopping: {timeout_s: 2}\n"
    )
    config = load_config(file, environ={}).config
    assert config.environments["shopping"].max_turns == 3
    assert (config.tools["shopping"].timeout_s, config.tools["shopping"].session) == (2, "keyed")


def test_an_empty_answer_schema_of_a_file_is_a_value(tmp_path: Path) -> None:
    """With the default a judge of free text would get an empty answer, because the text has no tags."""
    (tmp_path / "own.py").write_text(
        "import agentrl as rl\nrl.Environment('own', dataset='d', answer_schema='', weight=None)\n"
    )
    file = tmp_path / "run.yaml"
    file.write_text("name: x\nmodel: {build: tiny}\nenvironments: {own: own.py}\n")
    environment = load_config(file, environ={}).config.environments["own"]
    assert (environment.answer_schema, environment.weight) == ("", 1.0)


def test_two_environments_of_one_file_offer_their_own_tools(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import agentrl as rl\n@rl.tool\ndef a(x: int) -> int: ...\n@rl.tool\ndef b(x: int) -> int: ...\n"
        "rl.Environment('one', dataset='d', tools=[a])\nrl.Environment('other', dataset='d', tools=[b])\n"
    )
    file = tmp_path / "run.yaml"
    file.write_text("name: x\nmodel: {build: tiny}\nenvironments: {one: two.py, other: two.py}\n")
    config = load_config(file, environ={}).config
    assert (config.tools["one"].block, config.tools["other"].block) == (("b",), ("a",))
    assert config.tools["one"].session == "shared", "tools without state share a session"
    assert config.rollout.code == (str(tmp_path / "two.py"),)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("x = 1\ny = undefined\n", r"run\.yaml:3: own\.py, line 2: NameError: name 'undefined' is not defined\."),
        ("def f(:\n", r"own\.py, line 1: SyntaxError"),
        ("raise SystemExit(3)\n", r"own\.py, line 1: SystemExit: 3"),
        ("import os\nos._exit(7)\n", r"own\.py: its process ended with 7"),
        ("x = 1\n", r"own\.py declares no environment\."),
        ("import agentrl as rl\nrl.Environment('other', dataset='d')\n", "declares no environment 'own'"),
        ("import agentrl as rl\nrl.Environment('o w n', dataset='d')\n", "line 2: ValueError: the name of an"),
        (
            "import agentrl as rl\ndef f(): ...\nrl.Environment('own', dataset='d', tools=[f])\n",
            "line 3: TypeError: f is no tool: write @rl.tool above",
        ),
        (
            "import agentrl as rl\n@rl.tool\ndef f(x): ...\nrl.Environment('own', dataset='d', tools=[f])\n",
            "line 3, column 7: the parameter x of f has no type",
        ),
        ("import agentrl as rl\n@rl.scorer\ndef f(a, b): ...\n", "line 2: TypeError: the scorer f must take one"),
        ("import agentrl as rl\n@rl.tool(effect='none')\ndef f(): ...\n", "line 2: ValueError: there is no effect"),
        ("import agentrl as rl\nrl.Environment('own', dataset='d', turns=3)\n", r"own\.py:2: .*turns"),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, code: str, sentence: str) -> None:
    (tmp_path / "own.py").write_text(code)
    (tmp_path / "run.yaml").write_text("name: x\nmodel: {build: tiny}\nenvironments: {own: own.py}\n")
    with pytest.raises(ConfigError, match=sentence):
        load_config(tmp_path / "run.yaml", environ={})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: x\nenvironments: {own: own.py}\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:2: there is no file .*own\.py"):
        load_config(tmp_path / "run.yaml", environ={})


def test_importing_the_public_names_is_light() -> None:
    """Importing all public names loads no package that a process of tools lacks."""
    code = (
        "import sys, agentrl\n"
        "names = [name for name in agentrl.__all__ if name not in ('Client', 'connect')]\n"
        "assert all(getattr(agentrl, name) for name in names)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(names, sorted(loaded & {'pydantic', 'msgspec', 'torch', 'zmq'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ["Conversation", "Environment", "Episode", "Image", "OtherModelError", "Reply", "Score", "Session", "Task"]
    names += ["ToolCall", "ToolError", "agent", "judge", "metric", "other_model", "scorer", "simulated_user", "tool"]
    assert done.stdout.strip() == f"{['__version__', *names]} []"


def test_the_examples_of_the_page_of_judges_are_declared(tmp_path: Path) -> None:
    for number, text in enumerate(blocks("python", JUDGES)):
        (tmp_path / f"support{number}.py").write_text(text)
        names = {"name": "x", "model": {"build": "tiny"}, "environments": {"support": f"support{number}.py"}}
        (tmp_path / "run.yaml").write_text(json.dumps(names))
        support = load_config(tmp_path / "run.yaml", environ={}).config.environments["support"]
        assert (support.agent, support.scorer) == ("support", ("support", "exact")[number])


def test_the_loop_of_the_page_is_declared(tmp_path: Path) -> None:
    (tmp_path / "puzzle.py").write_text(blocks("python")[1])
    (tmp_path / "run.yaml").write_text("name: x\nmodel: {build: tiny}\nenvironments: {puzzle: puzzle.py}\n")
    environment = load_config(tmp_path / "run.yaml", environ={}).config.environments["puzzle"]
    assert (environment.agent, environment.scorer, environment.tools) == ("puzzle", "exact", ())
