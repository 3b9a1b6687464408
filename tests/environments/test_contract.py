"""`agentrl check`: it finds each planted fault with its name and line, and finds nothing in environments that keep the
contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import app
from agentrl.errors import ExitCode
from agentrl.policies import example_arguments

EXAMPLES = Path(__file__).parents[2] / "assets" / "environments"
HEAD = """import asyncio, itertools, os, random, subprocess, sys, threading, time
import agentrl as rl

@rl.scorer
def fine(episode):
    return float(episode.answer == episode.truth)

kept = []
count = itertools.count()
"""

FAULTS: dict[str, tuple[str, str]] = {
    "tool_random": ("tool-differs", "@rl.tool\ndef f() -> float:\n    return random.random()  # HERE-2"),
    "tool_hangs": ("tool-hangs", "@rl.tool\ndef f() -> int:  # HERE-1\n    while True: time.sleep(1)"),
    "tool_exits": ("tool-ends-process", "@rl.tool\ndef f() -> int:  # HERE-1\n    os._exit(3)"),
    "tool_huge": ("tool-result-huge", "@rl.tool\ndef f() -> str:  # HERE-1\n    return 'x' * 3_000_000"),
    "tool_controls": ("tool-result-characters", "@rl.tool\ndef f() -> str:  # HERE-1\n    return 'a\\x1b[2J\\ud800'"),
    "tool_type": ("tool-result-type", "@rl.tool\ndef f() -> str:  # HERE-1\n    return object()"),
    "tool_error": (
        "tool-result-characters",
        "@rl.tool\ndef f() -> str:  # HERE-1\n    raise ValueError('\\x1b]0;title\\x07')",
    ),
    "state": (
        "state-no-json",
        "class S(rl.Session):\n    def __init__(self): self.lock = threading.Lock()\n"
        "@rl.tool\ndef f(s: S) -> str:\n    return 'a'",
    ),
    "setup": (
        "setup-fails",
        "class T(rl.Session):\n    def setup(self, task):  # HERE\n        self.word = task.row['word']\n"
        "@rl.tool\ndef f(t: T) -> str:\n    return 'a'",
    ),
    "teardown": (
        "teardown-fails",
        "class U(rl.Session):\n    async def teardown(self):  # HERE\n        self.no\n"
        "@rl.tool\ndef f(u: U) -> str:\n    return 'a'",
    ),
    "agent_raises": (
        "agent-fails",
        "@rl.agent\nasync def a(e):\n    r = await e.chat()\n    r.text.index('right')  # HERE",
    ),
    "agent_outcome": ("agent-outcome", "@rl.agent\nasync def a(e):  # HERE-1\n    await e.chat()\n    return 'great'"),
    "agent_hangs": (
        "agent-hangs",
        "@rl.agent\nasync def a(e):  # HERE-1\n    await e.chat()\n    await asyncio.sleep(1e6)",
    ),
    # Python 3.11 does not catch what interrupts the first instruction of a `try`, so one stands before the loop.
    "agent_never_ends": (
        "hangs",
        "@rl.agent\nasync def a(e):\n    await e.chat()\n    while True:\n        try:\n"
        "            n = 0\n            while True: n += 1  # HERE\n        except BaseException: pass",
    ),
    "agent_random": (
        "agent-differs",
        "@rl.agent\nasync def a(e):  # HERE-1\n    await e.chat()\n    await e.chat(str(next(count)))",
    ),
    "agent_shares": (
        "shared-state",
        "now = []\n@rl.agent\nasync def a(e):  # HERE-1\n    now[:] = [e.query]\n    await e.chat()\n"
        "    await e.chat(now[0])",
    ),
    "agent_keeps_on": (
        "keeps-on-after-cancel",
        "@rl.agent\nasync def a(e):\n    try:\n        await e.chat()  # HERE\n    except asyncio.CancelledError:\n"
        "        pass\n    e.query",
    ),
    "agent_leaves": (
        "leaks-tasks",
        "@rl.agent\nasync def a(e):\n    asyncio.create_task(asyncio.sleep(99))  # HERE\n    await e.chat()",
    ),
    "agent_blocks": ("blocks", "@rl.agent\nasync def a(e):\n    await e.chat()\n    time.sleep(0.4)  # HERE"),
    "agent_exits": ("ends-process", "@rl.agent\nasync def a(e):\n    await e.chat()\n    sys.exit(3)  # HERE"),
    "agent_crashes": (
        "crashes",
        "@rl.agent\nasync def a(e):\n    await e.chat()\n    import ctypes; ctypes.string_at(0)  # HERE",
    ),
    "agent_threads": (
        "leaks-threads",
        "@rl.agent\nasync def a(e):\n    await e.chat()\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()  # HERE",
    ),
    "agent_files": (
        "leaks-files",
        "@rl.agent\nasync def a(e):\n    await e.chat()\n    kept.append(open(__file__))  # HERE",
    ),
    "agent_children": (
        "leaks-processes",
        "@rl.agent\nasync def a(e):\n    await e.chat()\n    kept.append(subprocess.Popen(['sleep', '60']))  # HERE",
    ),
    "agent_cancels": (
        "agent-fails",
        "@rl.agent\nasync def a(e):\n    await e.chat()\n    work = asyncio.create_task(asyncio.sleep(9))\n"
        "    work.cancel()\n    await work  # HERE",
    ),
    "scorer_raises": ("scorer-fails", "@rl.scorer\ndef s(e):\n    return int(e.answer) / 100  # HERE"),
    "scorer_text": ("scorer-no-number", "@rl.scorer  # HERE\ndef s(e):\n    return 'much'"),
    "scorer_nan": ("scorer-no-number", "@rl.scorer  # HERE\ndef s(e):\n    return float('nan')"),
    "scorer_hangs": ("scorer-hangs", "@rl.scorer\nasync def s(e):\n    await asyncio.sleep(1e6)  # HERE"),
    "scorer_loops": ("blocks", "@rl.scorer\ndef s(e):\n    while True: pass  # HERE"),
    "scorer_cancels": ("scorer-fails", "@rl.scorer\nasync def s(e):\n    raise asyncio.CancelledError  # HERE"),
    "scorer_random": ("scorer-differs", "@rl.scorer  # HERE\ndef s(e):\n    return random.random()"),
    "scorer_exits": ("ends-process", "@rl.scorer\ndef s(e):\n    os._exit(4)  # HERE"),
    "scorer_name": ("names", "@rl.scorer(name='a\\nb')  # HERE\ndef s(e):\n    return 1.0"),
}
"""For each environment: the name of the finding, and its code. HERE marks the line that the finding must name."""


def planted() -> tuple[str, dict[str, int]]:
    """One file with all faults, and the line of each fault."""
    text, lines = HEAD, {}
    for name, (_, code) in FAULTS.items():
        # Tools are functions of the same file, so each needs a different name.
        code = code.replace("def f(", f"def f_{name}(")
        for number, line in enumerate(code.splitlines()):
            if "# HERE" in line:
                lines[name] = text.count("\n") + number + 1 - int(line.partition("# HERE-")[2] or 0)
        parts = [f"tools=[f_{name}]"] if "rl.tool" in code else []
        parts += ["agent=a"] if "rl.agent" in code else []
        parts += ["scorers=[s]" if "rl.scorer" in code else "scorers=[fine]"]
        text += f"{code}\nrl.Environment({name!r}, dataset='rows.jsonl', {', '.join(parts)})\n"
    return text, lines


def checked(folder: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "-m", "agentrl", "--json", "check", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, int]]:
    folder = tmp_path_factory.mktemp("planted")
    code, lines = planted()
    (folder / "planted.py").write_text(code)
    rows = [{"query": f"what is {n}?", "answer": str(n)} for n in (3, 5)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, messages = checked(folder, "planted.py", "--at-most", "2", "-n", "8")
    assert status == ExitCode.CONTRACT
    return messages, lines


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_found(found: tuple[list[dict[str, Any]], dict[str, int]], name: str) -> None:
    messages, lines = found
    of_it = [each for each in messages if each["event"] == "finding" and each["environment"] == name]
    faults = {each["name"]: each for each in of_it if each["level"] == "fault"}
    wanted, _ = FAULTS[name]
    assert wanted in faults, of_it
    assert set(faults) == {wanted}, "each fault gives one finding"
    if name in lines:
        assert (Path(faults[wanted]["file"]).name, faults[wanted]["line"]) == ("planted.py", lines[name])
    assert faults[wanted]["sentence"].isprintable()
    assert faults[wanted]["hint"]


def test_the_example_of_init_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run(["init", "sums"]) == ExitCode.OK
    code, messages = checked(tmp_path, "sums.py")
    assert (code, [each for each in messages if each["event"] == "finding"]) == (ExitCode.OK, [])
    assert {each["probe"] for each in messages if each["event"] == "probe"} >= {"tools", "side by side"}


def test_a_game_of_another_package_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    code, messages = checked(tmp_path, "gymnasium:FrozenLake-v1", "--with", "is_slippery=false", "-n", "4")
    assert (code, [each for each in messages if each["event"] == "finding"]) == (ExitCode.OK, [])


def test_the_examples_keep_the_contract(tmp_path: Path) -> None:
    """All four run in one program. The judge of one has no service: the check reports that, but not as a fault."""
    names = sorted(file.stem for file in EXAMPLES.glob("*.py"))
    assert names == ["debate", "essay", "guess", "quiz"]
    listed = "".join(f"  {name}: {EXAMPLES / name}.py\n" for name in names)
    (tmp_path / "run.yaml").write_text(f"name: examples\nmodel: {{build: tiny}}\nenvironments:\n{listed}")
    code, messages = checked(tmp_path, "run.yaml", "-n", "6")
    found = [each for each in messages if each["event"] == "finding"]
    assert (code, {(each["environment"], each["name"]) for each in found}) == (ExitCode.OK, {("essay", "untried")})


def test_arguments_fit_their_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["C", "F"]},
            "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
            "more": {"type": "integer", "default": 7},
        },
        "required": ["city", "unit", "days"],
        "$defs": {"day": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    }
    assert example_arguments.arguments_for(schema) == {"city": "a", "unit": "C", "days": [{"n": 1}]}


def test_what_the_process_of_an_environment_imports_is_not_the_time_of_its_agent(tmp_path: Path) -> None:
    """Its file is imported once when the run file is read, and again beside the episodes."""
    code = f"{HEAD}\ntime.sleep(3)\nrl.Environment('slow', dataset='rows.jsonl', scorers=[fine])\n"
    (tmp_path / "slow.py").write_text(code)
    (tmp_path / "rows.jsonl").write_text('{"query": "what is 3?", "answer": "3"}\n')
    environment = "environments: {slow: {code: slow.py, sandbox: process}}"
    (tmp_path / "run.yaml").write_text(f"name: slow\nmodel: {{build: tiny}}\n{environment}\n")
    status, messages = checked(tmp_path, "run.yaml", "--at-most", "1", "-n", "2")
    assert (status, [each for each in messages if each["event"] == "finding"]) == (ExitCode.OK, [])


def test_a_schema_of_a_stranger_gives_few_arguments_or_none() -> None:
    wide = {"type": "object", "required": [f"p{n}" for n in range(100)]}
    wide["properties"] = {name: {"$ref": "#/$defs/wide"} for name in wide["required"]}
    assert example_arguments.arguments_for({**wide, "$defs": {"wide": wide}}) == {}
    long = {"required": ["a"], "properties": {"a": {"type": "string", "minLength": 10**12}}}
    assert len(example_arguments.arguments_for(long)["a"]) < 10_000
    for part in (5, "x", None, [1], {"enum": 5}, {"anyOf": {"a": 1}}, {"minLength": "x"}, {"type": [[]]}):
        made = example_arguments.arguments_for({"required": ["a"], "properties": {"a": part}})
        assert json.dumps(made)
    for schema in ({"required": 5}, {"required": ["a"], "properties": [1]}, {"$defs": 3, "required": ["a"]}):
        assert example_arguments.arguments_for(schema) == {}


def test_a_check_that_cannot_begin_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import agentrl as rl\n\n"
        "@rl.scorer\ndef right(episode: rl.Episode) -> float:\n    return 1.0\n\n"
        'rl.Environment("one", dataset="rows.jsonl", scorers=[right])\n'
    )
    (tmp_path / "rows.jsonl").write_bytes(b"\xa7\x00")
    code, (answer,) = checked(tmp_path, "one.py")
    assert code == ExitCode.CONFIG
    assert "rows.jsonl line 1 is no JSON" in answer["error"]["message"]
