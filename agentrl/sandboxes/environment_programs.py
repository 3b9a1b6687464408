"""Starts the program of an environment in the same kind of sandbox as a tool server.

Invariants:
- It sees the directory of its file, its Python and the paths that its `sandbox` names, and gets the same environment
  variables as a tool server.
- Without `network` it reaches none of the hosts of its list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.sandboxes.launch_environment import Launch, launch_of
from agentrl.sandboxes.network_access import NetworkAccess
from agentrl.sandboxes.sandbox_choice import sandboxed
from agentrl.sandboxes.visible_files import Secrets

SECTION = "environments"


def launch_of_environment(
    name: str,
    command: Sequence[str],
    file: Path,
    sandbox: Sandbox,
    *,
    run_dir: Path,
    secret_files: Iterable[Path],
    network: NetworkAccess | None = None,
) -> Launch:
    """`file` is the Python file of the environment. Raises ConfigError if there is no such sandbox here."""
    seen = sandbox.model_copy(update={"read": (*sandbox.read, str(file))})
    server = ToolServer(command=tuple(command), cwd=str(file.parent), sandbox=seen)
    plain = launch_of(name, server, run_dir=run_dir, environ=os.environ)
    secrets = Secrets.of_this_host(os.environ, run_dir, secret_files)
    return sandboxed(name, server, plain, run_dir=run_dir, secrets=secrets, network=network, section=SECTION)
