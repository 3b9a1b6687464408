"""Runs a program of an environment in its sandbox: `python -m agentrl.sandboxes JSON`.

The reader of run files uses it to ask an environment's file for its declaration, so it need not know sandboxes.

Invariant: standard output has only what the program writes. If the sandbox is refused, it has one line of JSON with
`refused` and `hint`, and the program was not started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import ConfigError
from agentrl.sandboxes import sandbox_cgroups
from agentrl.sandboxes.environment_programs import launch_of_environment

REMOVED_WITHIN_S = 5.0


def main(arguments: list[str]) -> int:
    asked = json.loads(arguments[0])
    try:
        launch = launch_of_environment(
            asked["name"],
            asked["command"],
            Path(asked["file"]),
            Sandbox.model_validate(asked["sandbox"]),
            run_dir=Path(asked["run_dir"]),
            secret_files=[Path(file) for file in asked["secret_files"]],
        )
    except ConfigError as refused:
        print(json.dumps({"refused": refused.message, "hint": refused.hint}))
        return int(refused.exit_code)
    try:
        with launch.passing() as descriptors:
            started = subprocess.Popen(launch.command, env=dict(launch.env), cwd=launch.cwd, pass_fds=descriptors)
        return started.wait()
    finally:
        if launch.cgroup is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run(asyncio.wait_for(launch.cgroup.remove(), REMOVED_WITHIN_S))
            sandbox_cgroups.leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
