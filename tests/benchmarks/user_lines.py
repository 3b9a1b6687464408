"""Measures how many lines a person writes for the examples, with agentrl and with two interfaces of verifiers.

Invariants:
- All files are formatted by the formatter of this tree and counted by one function.
- Every environment is played with the same scripted service, and all libraries must give it the same scores.
"""

from __future__ import annotations

import ast
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.report import Outcome
from tests.benchmarks.scripted_service import SCORES, scripted_service

OURS = Path(__file__).parents[2] / "assets" / "environments"
PEERS = Path(__file__).parent / "verifiers_peers"
CLASSIC = Path(__file__).parents[2] / ".venv-verifiers" / "bin"
TASKSETS = Path(sys.prefix) / "peers" / "verifiers" / "bin"
TITLES = {"quiz": "a quiz", "guess": "a game of tools with a state", "essay": "a judged text", "debate": "a debate"}
WITHIN_S = 300.0
_DATA = "data"
"""Code that reads the dataset does not count: assignments to this name, and imports of the modules in `_OF_DATA`.
agentrl needs no such code, because it takes the name of the file."""
_OF_DATA = {"datasets", "json", "pathlib"}
_MARKUP = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of(file: Path) -> int:
    """The number of lines with code, without empty lines, comments, docstrings and code that reads the dataset."""
    return len(_code(file))


def tokens_of(file: Path) -> int:
    """The number of tokens on these lines, which no formatter changes."""
    counted = _code(file)
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    return sum(each.type not in _MARKUP and each.start[0] in counted for each in tokens)


def _code(file: Path) -> set[int]:
    return {line for statement in _statements(ast.parse(file.read_text())) for line in statement}


def _statements(tree: ast.Module) -> Iterator[range]:
    """The lines of each statement. For a statement with a body these are its own lines, with decorators and `else`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or _is_text(node) or _is_of_data(node):
            continue
        begin = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        body = getattr(node, "body", None)
        yield range(begin, max(body[0].lineno, begin + 1) if body else (node.end_lineno or begin) + 1)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_of_data(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return {each.name for each in node.names} <= _OF_DATA
    if isinstance(node, ast.ImportFrom):
        return node.module in _OF_DATA
    names = node.targets if isinstance(node, ast.Assign) else ()
    return any(isinstance(each, ast.Name) and each.id == _DATA for each in names)


Rewards = Mapping[str, Sequence[float]]


def ours(url: str, folder: Path) -> Rewards:
    """The scores of the two tasks of each environment, from `agentrl eval run`."""
    named = "".join(f"  {name}: {OURS / name}.py\n" for name in SCORES)
    models = f"models:\n  judge: [{{url: {url}, model: large}}]\n"
    (folder / "run.yaml").write_text(f"name: lines\nmodel: {{build: tiny}}\nenvironments:\n{named}{models}")
    command = [sys.executable, "-m", "agentrl", "--json", "eval", "run", "run.yaml", "--model", url]
    command += ["--out", "results.jsonl", "--set", "sampling={max_tokens: 256, context: 8000}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WITHIN_S)
    if done.returncode:
        raise RuntimeError(f"agentrl failed: {done.stderr.strip()[-2000:]}")
    rewards: dict[str, list[float]] = {name: [] for name in SCORES}
    for row in map(json.loads, (folder / "results.jsonl").read_text().splitlines()):
        rewards[row["environment"]].append(math.nan if row["score"] is None else row["score"])
    return rewards


def classic(url: str, folder: Path) -> Rewards:
    """The same scores, from `evaluate` of verifiers 0.1."""
    program = [_there(CLASSIC) / "python", PEERS / "play_classic.py", url, *SCORES]
    return json.loads(_played(program, folder, PEERS / "classic").splitlines()[-1])  # type: ignore[no-any-return]


def tasksets(url: str, folder: Path) -> Rewards:
    """The same scores, from the program `vf-eval` of verifiers 0.4."""
    rewards = {}
    for name in SCORES:
        seats = ("pro", "con", "agent") if name == "debate" else ("agent",)
        program: list[str | Path] = [_there(TASKSETS) / "vf-eval", name, "-m", "scripted", "--no-push"]
        program += ["--output-dir", name, "--client.base-url", url, "--client.api-key-var", "OPENAI_API_KEY"]
        for seat in seats:
            program += [f"--env.{seat}.harness.id", "null", f"--env.{seat}.runtime.type", "subprocess"]
        if name == "essay":
            judge = "--env.taskset.task.judge"
            program += [f"{judge}.base-url", url, f"{judge}.api-key-var", "OPENAI_API_KEY"]
        _played(program, folder, PEERS / "tasksets")
        (file,) = (folder / name).glob("*/traces.jsonl")
        traces = [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]
        rewards[name] = [
            sum(each["score"] * each["weight"] for each in trace["rewards"].values())
            for trace in traces
            if trace["rewards"]
        ]
    return rewards


def _there(programs: Path) -> Path:
    if not programs.is_dir():
        raise RuntimeError(f"{programs} does not exist. `make bench` creates it.")
    return programs


def _played(program: Sequence[str | Path], folder: Path, files: Path) -> str:
    path = f"{Path(program[0]).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(files), "OPENAI_API_KEY": "none", "HOME": str(folder), "PATH": path}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S)
    if done.returncode:
        raise RuntimeError(f"{program[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def as_expected(rewards: Rewards, whose: str) -> None:
    for name, wanted in SCORES.items():
        found = sorted(rewards[name])
        if len(found) != len(wanted) or not all(map(math.isclose, found, wanted)):
            raise RuntimeError(f"{whose}: the episodes of {name} have the scores {found} instead of {list(wanted)}")


def measure() -> Outcome:
    outcome = Outcome("lines of the user, with agentrl and with verifiers")
    with tempfile.TemporaryDirectory(prefix="bench-") as name, scripted_service() as url:
        folder = Path(name)
        for file in OURS.glob("*.jsonl"):
            shutil.copy(file, folder)
        for whose in (ours, classic, tasksets):
            as_expected(whose(url, folder), whose.__name__)
    for name, title in TITLES.items():
        mine = OURS / f"{name}.py"
        for peer, version in (("classic", "verifiers 0.1.14"), ("tasksets", "verifiers 0.4.0")):
            theirs = PEERS / peer / f"{name}.py"
            outcome.within(title, lines_of(mine), "lines", version, lines_of(theirs), 1)
            outcome.within(title, tokens_of(mine), "words", version, tokens_of(theirs), 1)
    outcome.notes.append("All were played with the same answers, and each episode was worth the same in all three.")
    return outcome
