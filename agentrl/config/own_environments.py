"""Environments that a run file takes from a Python file: `environments: {quiz: quiz.py}`.

Invariants:
- The file is run in a process of its own, which has a limit of time.
- What the run file says itself has priority over what the Python file declares.
- After this a configuration is complete: no other process has to ask the file what it declares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.extended_files import Written
from agentrl.errors import ConfigError
from agentrl.toolservers.function_tools import FunctionFileError, FunctionTool, tools_of

KEY = "code"
Described = dict[str, dict[str, Any]]
"""What a file says, by environment."""
WITHIN_S = 60.0
"""What it imports may be large."""


def fill_in(written: Written, base: Path) -> None:
    """Add what the files declare to the tree of the run file. Raises ConfigError."""
    environments = written.value.get("environments")
    if not isinstance(environments, dict):
        return
    files: dict[Path, Described] = {}
    for name, given in list(environments.items()):
        at = ("environments", str(name))
        if isinstance(given, str):
            given = environments[name] = {KEY: given}
            written.sources[(*at, KEY)] = written.sources.get(at, "")
            written.directories[(*at, KEY)] = written.directories.get(at, base)
        if isinstance(given, dict) and isinstance(given.get(KEY), str) and given[KEY]:
            _fill_in(written, str(name), given, base, files)


def names_in(path: Path) -> tuple[str, ...]:
    """The environments that a file declares. Raises ConfigError."""
    return tuple(_described(path, path.name))


def _fill_in(written: Written, name: str, given: dict[str, Any], base: Path, files: dict[Path, Described]) -> None:
    """`files` are those that were asked already."""
    at = ("environments", name)
    where = written.sources.get((*at, KEY)) or f"environments.{name}.{KEY}"
    beside = written.directories.get((*at, KEY), base)
    path = Path(os.path.normpath(beside / Path(given[KEY]).expanduser()))
    if path not in files:
        files[path] = _described(path, where)
    environment = _environment(files[path], path, name, where)
    source = f"{path.name}:{environment['line']}"
    found = environment["keys"] | {"agent": name} | ({"scorer": name} if environment["scored"] else {})
    tools = _tools(path, environment["tools"], where)
    if tools:
        found["tools"] = [name]
        servers = written.value.setdefault("tools", {})
        _put(written, servers, ("tools", name), _server(path, tools, environment["tools"]), source, path.parent)
    _put(written, written.value["environments"], at, found, source, path.parent)
    rollout = written.value.setdefault("rollout", {})
    code = rollout.get("code") or []
    named = [code] if isinstance(code, str) else list(code)
    rollout["code"] = named if str(path) in named else [*named, str(path)]


def _put(
    written: Written, table: Any, at: tuple[str, str], found: Mapping[str, Any], source: str, directory: Path
) -> None:
    """What is found under a key that the run file does not set."""
    if not isinstance(table, dict):
        return  # Validation says what is wrong with it.
    here = table.setdefault(at[1], {})
    for key, value in found.items():
        if isinstance(here, dict) and here.get(key) is None:
            here[key] = value
            written.sources[(*at, key)], written.directories[(*at, key)] = source, directory


def _server(path: Path, tools: list[FunctionTool], wanted: list[str]) -> dict[str, Any]:
    """The server of the file's tools. Its process serves all episodes and keeps their states apart."""
    stateful = any(tool.session_class for tool in tools if tool.name in wanted)
    unwanted = [tool.name for tool in tools if tool.name not in wanted]
    return {
        "functions": str(path),
        "cwd": str(path.parent),
        "session": "keyed" if stateful else "shared",
        **({"block": unwanted} if unwanted else {}),
    }


def _tools(path: Path, wanted: list[str], where: str) -> list[FunctionTool]:
    if not wanted:
        return []
    try:
        found = list(tools_of(path))
    except FunctionFileError as wrong:
        raise ConfigError(f"{where}: {wrong}.", hint=wrong.hint) from None
    if missing := [name for name in wanted if name not in {tool.name for tool in found}]:
        raise ConfigError(
            f"{where}: {path.name} defines no tool {missing[0]} at its top level.",
            hint="Tools are functions of the file itself, under @rl.tool.",
        )
    return found


def _environment(found: Described, path: Path, name: str, where: str) -> dict[str, Any]:
    """What the file says of the environment of this name."""
    if name in found:
        return found[name]
    known = ", ".join(found)
    if not found:
        raise ConfigError(f"{where}: {path.name} declares no environment.", hint='Write rl.Environment("NAME", ...).')
    raise ConfigError(f"{where}: {path.name} declares no environment {name!r}.", hint=f"It declares {known}.")


def _described(path: Path, where: str) -> Described:
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path}.", hint="It is relative to the run file.")
    command = [sys.executable, "-m", "agentrl.environments", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=WITHIN_S, stdin=subprocess.DEVNULL)
        answer = json.loads(done.stdout or b"{}")
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{where}: {path.name} is not imported within {WITHIN_S:g} s.",
            hint="A file of an environment declares; what takes long belongs into its functions.",
        ) from None
    except ValueError:
        answer = {}
    if "environments" not in answer:
        said = answer.get("error") or f"its process ended with {done.returncode}"
        line = f", line {answer['line']}" if answer.get("line") else ""
        raise ConfigError(f"{where}: {path.name}{line}: {said}.")
    described: Described = answer["environments"]
    return described
