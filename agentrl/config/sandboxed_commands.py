"""Commands that read the declarations of an environment in the sandbox that its run file names for it.

Invariant: the code that reads a run file does not make sandboxes itself; `python -m agentrl.sandboxes` makes them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config import tool_sandbox
from agentrl.config.extended_files import Written
from agentrl.config.relative_paths import sandbox_paths
from agentrl.config.secrets import files_of_references
from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError

_PROGRAM = "agentrl.sandboxes"


def sandbox_of(written: Written, name: str, given: Mapping[str, Any], base: Path) -> str:
    """The sandbox of an environment and the paths that it must hide, as JSON; empty without a sandbox. Raises
    ConfigError."""
    if not tool_sandbox.is_named(given.get("sandbox", "none")):
        return ""

    def beside(key: tuple[str, ...], path: str) -> str:
        return os.path.normpath(written.directories.get(key, base) / path_of(path))

    try:
        sandbox = sandbox_paths(("environments", name), tool_sandbox.required(given["sandbox"]), beside)
    except ValidationError as wrong:
        what = wrong.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"environments.{name}.sandbox: {what}.") from None
    run_dir = base / str(written.value.get("dir") or f"runs/{written.value.get('name')}")
    asked = {
        "name": name,
        "sandbox": sandbox.model_dump(mode="json"),
        "run_dir": os.path.abspath(path_of(run_dir)),
        "secret_files": [str(file) for file in files_of_references(written.value)],
    }
    return json.dumps(asked)


def command_within(sandbox: str, command: Sequence[str], file: Path) -> list[str]:
    """The command within a sandbox of `sandbox_of` that can read `file`; unchanged without a sandbox."""
    if not sandbox:
        return list(command)
    within = json.loads(sandbox) | {"command": list(command), "file": str(file)}
    return [sys.executable, "-m", _PROGRAM, json.dumps(within)]
