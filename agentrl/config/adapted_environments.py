"""Environments of other packages in a run file: `environments: {lake: "gymnasium:FrozenLake-v1"}`.

Invariants:
- If the tasks do not exist yet, a program of the package makes them; after that the run file names their file like any
  other dataset.
- Values in the run file have priority over values that are found here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.adapters import harbor_tasks
from agentrl.adapters.made_tasks import made, write_whole
from agentrl.adapters.player import OWN_PYTHON, Player, PlayerError
from agentrl.adapters.sources import Source
from agentrl.config import own_tool_servers, paths
from agentrl.config.relative_paths import python_at
from agentrl.config.sandboxed_commands import command_within
from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError

ROWS, HELD_OUT = 512, 64
_COMMAND_S = 60.0
"""The time limit of one shell command."""
_AROUND_S = 30.0
"""The extra time of a task's verifier beyond its own limit before its call is given up."""


@dataclass(frozen=True, slots=True)
class Found:
    """The keys that a source sets in `environments.NAME`, and in `tools.NAME` if it has tools."""

    environment: dict[str, Any]
    server: dict[str, Any] = field(default_factory=dict)


def found_in(
    source: Source,
    name: str,
    given: Mapping[str, Any],
    server: Mapping[str, Any],
    where: str,
    base: Path,
    sandbox: str = "",
) -> Found:
    """The keys that the source sets. `given` and `server` are the sections of the run file; paths are relative to
    `base`, and the sandbox is one of `sandboxed_commands`. Raises ConfigError."""
    try:
        match source.kind:
            case "mcp":
                return Found({"tools": [name]}, {"url": source.name})
            case "harbor":
                return _harbor(Path(os.path.normpath(base / path_of(source.name))), name, server)
        return _of_a_program(source, name, given, base, sandbox)
    except PlayerError as cannot:
        raise ConfigError(f"{where}: {cannot.message}", hint=cannot.hint) from None


def _of_a_program(source: Source, name: str, given: Mapping[str, Any], base: Path, sandbox: str) -> Found:
    python = str(given.get("python") or OWN_PYTHON)
    player = Player(
        source=source,
        python=python_at(python, os.path.normpath(base / path_of(python))),
        arguments=given.get("arguments") or {},
        rows=_number(given, "rows", ROWS),
        held_out=_number(given, "held_out", HELD_OUT),
    )
    tasks = made(player, paths.cache(), command_within(sandbox, player.command, player.program))
    return Found({"dataset": str(tasks.dataset), "agent": name, "scorer": name, **tasks.described})


def _harbor(folder: Path, name: str, server: Mapping[str, Any]) -> Found:
    own = server.get("sandbox")
    sandbox = {"kind": "process", "required": True, "private": list(harbor_tasks.PRIVATE)}
    sandbox |= own if isinstance(own, dict) else {}
    tasks = harbor_tasks.tasks_in(folder, has_network=bool(sandbox.get("network")))
    dataset = paths.cache() / "environments" / f"harbor-{harbor_tasks.digest(tasks)}.jsonl"
    if not dataset.is_file():
        write_whole(dataset, "".join(json.dumps(task.row) + "\n" for task in tasks))
    command = ["{python}", own_tool_servers.PROGRAM, "shell", "--workdir", harbor_tasks.WORKDIR]
    return Found(
        {"dataset": str(dataset), "tools": [name], "agent": name, "scorer": name, "max_turns": 24},
        {
            "command": [*command, "--command-s", f"{_COMMAND_S:g}"],
            "session": "process",
            "timeout_s": max(_COMMAND_S, *(task.verifier_s for task in tasks)) + _AROUND_S,
            "timeout_means": "policy",
            "crash_means": "policy",
            "sandbox": sandbox,
        },
    )


def _number(given: Mapping[str, Any], key: str, default: int) -> int:
    """Values that are not numbers are refused later, with their place."""
    value = given.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
