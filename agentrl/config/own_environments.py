"""Environments that a run file takes from a Python file: `environments: {quiz: quiz.py}`.

Invariants:
- The file is run in a separate process, which has a time limit and the sandbox that the run file names for it.
- Values of the run file have priority over declarations of the Python file.
- After this a configuration is complete: no other process needs to run the file to learn its declarations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.adapters.player import OWN_PYTHON
from agentrl.adapters.sources import Source, source_of
from agentrl.config import adapted_environments, tool_sandbox
from agentrl.config.extended_files import Written
from agentrl.config.hub_words import is_hub_word
from agentrl.config.own_tool_servers import PROGRAM
from agentrl.config.relative_paths import python_at
from agentrl.config.sandboxed_commands import command_within, sandbox_of
from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError
from agentrl.toolservers.function_tools import FunctionFileError, FunctionTool, tools_of

KEY = "code"
ENTRY_POINTS = "agentrl.environments"
"""The group in which a package names its environments: `quiz = "my_package.quiz"`."""
Described = dict[str, dict[str, Any]]
"""The declarations of a file, by environment."""
WITHIN_S = 60.0
"""This long, because the file may import large packages."""


@dataclass(frozen=True, slots=True)
class _Runner:
    """The interpreter and the sandbox that run a file."""

    python: str = OWN_PYTHON
    sandboxed: str = ""
    """The sandbox, in the form of `sandboxed_commands`."""

    def command(self, file: Path) -> list[str]:
        asked = [self.python.replace(OWN_PYTHON, sys.executable), PROGRAM, "describe", str(file)]
        return command_within(self.sandboxed, asked, file)


Files = dict[tuple[Path, _Runner], Described]
"""The declarations by file and runner."""


def fill_in(written: Written, base: Path) -> None:
    """Add the declarations of the files to the tree of the run file. Raises ConfigError."""
    environments = written.value.get("environments")
    if not isinstance(environments, dict):
        return
    files: Files = {}
    for name, given in list(environments.items()):
        at = ("environments", str(name))
        if isinstance(given, str):
            given = environments[name] = {KEY: given}
            written.sources[(*at, KEY)] = written.sources.get(at, "")
            written.directories[(*at, KEY)] = written.directories.get(at, base)
        if not isinstance(given, dict) or not isinstance(given.get(KEY), str) or not given[KEY]:
            continue
        if source := source_of(given[KEY]):
            _adapt(written, str(name), source, given, base)
        else:
            _fill_in(written, str(name), given, base, files)


def _adapt(written: Written, name: str, source: Source, given: dict[str, Any], base: Path) -> None:
    """Add the keys of an environment of another package."""
    at = ("environments", name)
    where = written.sources.get((*at, KEY)) or f"environments.{name}.{KEY}"
    beside = written.directories.get((*at, KEY), base)
    tools = written.value.get("tools")
    own = tools.get(name) if isinstance(tools, dict) else None
    server = own if isinstance(own, dict) else {}
    sandbox = sandbox_of(written, name, given, base)
    found = adapted_environments.found_in(source, name, given, server, where, beside, sandbox)
    if found.server:
        if "sandbox" in found.server:
            server.pop("sandbox", None)  # The server that was found already has this sandbox.
        _put(written, written.value.setdefault("tools", {}), ("tools", name), found.server, str(source), beside)
    _put(written, written.value["environments"], at, found.environment, str(source), beside)


def names_in(path: Path) -> tuple[str, ...]:
    """The environments that a file declares. Raises ConfigError."""
    return tuple(_described(path, path.name))


def installed(name: str) -> Path | None:
    """The file of an environment that an installed package has under this name."""
    for found in entry_points(group=ENTRY_POINTS, name=name):
        spec = find_spec(found.value.partition(":")[0])
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _fill_in(written: Written, name: str, given: dict[str, Any], base: Path, files: Files) -> None:
    """Add the declarations of one file. `files` are those that were already run."""
    at = ("environments", name)
    where = written.sources.get((*at, KEY)) or f"environments.{name}.{KEY}"
    beside = written.directories.get((*at, KEY), base)
    path = Path(os.path.normpath(beside / path_of(given[KEY])))
    python = _python(written, at, given, base)
    runner = _Runner(python, sandbox_of(written, name, given, base))
    if not path.is_file() and given[KEY].isidentifier():
        path = installed(given[KEY]) or path
    if (path, runner) not in files:
        files[path, runner] = _described(path, where, runner)
    environment = _environment(files[path, runner], path, name, where)
    source = f"{path.name}:{environment['line']}"
    if runner.sandboxed:
        _refuse_other_tools(environment["keys"], path, where)
        _refuse_files_outside(environment["keys"], path, where)
    found = environment["keys"] | {"agent": name} | ({"scorer": name} if environment["scored"] else {})
    tools = _tools(path, environment["tools"], where)
    if tools:
        found["tools"] = [name]
        servers = written.value.setdefault("tools", {})
        server = _server(path, tools, environment["tools"], python)
        if tool_sandbox.is_required(given.get("sandbox", environment["keys"].get("sandbox", "none"))):
            # The tools are in the same file, and a toolbox may be on a host without sandboxes.
            server["sandbox"] = {"kind": "process", "required": True}
        _put(written, servers, ("tools", name), server, source, path.parent)
    _put(written, written.value["environments"], at, found, source, path.parent)
    if python != OWN_PYTHON or tool_sandbox.is_named(given.get("sandbox", "none")):
        # The file runs in a separate process, so samplers do not see its declarations.
        written.value["environments"][name][KEY] = str(path)
        apart = {"resumable": True} if environment["resumable"] else {}
        _put(written, written.value["environments"], at, apart, source, path.parent)
        return
    rollout = written.value.setdefault("rollout", {})
    code = rollout.get("code") or []
    named = [code] if isinstance(code, str) else list(code)
    rollout["code"] = named if str(path) in named else [*named, str(path)]


def _python(written: Written, at: tuple[str, str], given: Mapping[str, Any], base: Path) -> str:
    """The Python that runs the file."""
    named = given.get("python") or OWN_PYTHON
    beside = written.directories.get((*at, "python"), base)
    return python_at(str(named), os.path.normpath(beside / path_of(str(named))))


def _put(
    written: Written, table: Any, at: tuple[str, str], found: Mapping[str, Any], source: str, directory: Path
) -> None:
    """Add the found values whose keys the run file does not set."""
    if not isinstance(table, dict):
        return  # Validation will report the error.
    here = table.setdefault(at[1], {})
    for key, value in found.items():
        if isinstance(here, dict) and here.get(key) is None:
            here[key] = value
            inner = [(*at, key, each) for each in value] if isinstance(value, dict) else []
            for place in ((*at, key), *inner):
                written.sources[place], written.directories[place] = source, directory


def _server(path: Path, tools: list[FunctionTool], wanted: list[str], python: str) -> dict[str, Any]:
    """The server of the file's tools. Its process serves all episodes and keeps their states apart."""
    by_own = {"functions": str(path)}
    stateful = any(tool.session_class for tool in tools if tool.name in wanted)
    unwanted = [tool.name for tool in tools if tool.name not in wanted]
    return {
        **(by_own if python == OWN_PYTHON else {"command": [python, PROGRAM, "functions", str(path)]}),
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
    """The declarations of the file for the environment of this name."""
    if name in found:
        return found[name]
    known = ", ".join(found)
    if not found:
        raise ConfigError(f"{where}: {path.name} declares no environment.", hint='Write rl.Environment("NAME", ...).')
    raise ConfigError(f"{where}: {path.name} declares no environment {name!r}.", hint=f"It declares {known}.")


def _described(path: Path, where: str, runner: _Runner = _Runner()) -> Described:
    if not path.is_file():
        hint = "It is relative to the run file; or name an environment of an installed package."
        raise ConfigError(f"{where}: there is no file {path}.", hint=hint)
    try:
        done = subprocess.run(runner.command(path), capture_output=True, timeout=WITHIN_S, stdin=subprocess.DEVNULL)
        answer = json.loads(done.stdout or b"{}")
    except OSError as wrong:
        hint = "`python` names the program of another environment."
        raise ConfigError(f"{where}: {runner.python} does not start: {wrong.strerror}.", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{where}: {path.name} is not imported within {WITHIN_S:g} s.",
            hint="A file of an environment declares; what takes long belongs into its functions.",
        ) from None
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    if "refused" in answer:
        raise ConfigError(str(answer["refused"]), hint=str(answer.get("hint", "")))
    described = answer.get("environments")
    if not isinstance(described, dict) or not all(map(_is_whole, described.values())):
        said = answer.get("error") or f"its process ended with {done.returncode}"
        line = f", line {answer['line']}" if answer.get("line") else ""
        raise ConfigError(f"{where}: {path.name}{line}: {said}.")
    return described


def _is_whole(environment: object) -> bool:
    """Whether this is a complete answer of our program. It is checked because the file runs beside the program and may
    write to the same output."""
    return isinstance(environment, dict) and all(
        isinstance(environment.get(key), kind)
        for key, kind in {"line": int, "keys": dict, "tools": list, "scored": bool, "resumable": bool}.items()
    )


def _refuse_other_tools(keys: Mapping[str, Any], path: Path, where: str) -> None:
    """A file with a sandbox may name only the tool server of its own functions, because its agent could call any server
    that it names."""
    if "tools" in keys:
        raise ConfigError(
            f"{where}: {path.name} has a sandbox, so it may not name tool servers.",
            hint="Write it in the run file: environments: {NAME: {tools: [...]}}.",
        )


def _refuse_files_outside(keys: Mapping[str, Any], path: Path, where: str) -> None:
    """A file with a sandbox may not declare a dataset that it could not read itself, because its episodes would show
    it."""
    for key in ("dataset", "evaluation"):
        named = keys.get(key)
        if not isinstance(named, str) or is_hub_word(named):
            continue
        if not (path.parent / path_of(named)).resolve().is_relative_to(path.parent.resolve()):
            raise ConfigError(
                f"{where}: {path.name} has a sandbox, and its {key} {named} is not in the directory of the file.",
                hint=f"Write it in the run file: environments: {{NAME: {{{key}: {named}}}}}.",
            )
