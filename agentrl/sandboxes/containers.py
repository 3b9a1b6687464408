"""Builds the command line that runs a tool server in a container of podman or docker.

Invariants:
- The container is removed with its server, also if the engine's client was killed.
- Secrets are passed by the name of their variable and never in the arguments.
- The image is named by its digest and never fetched during a start.
"""

from __future__ import annotations

import functools
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.config.tool_sandbox import Sandbox
from agentrl.sandboxes.launch_environment import CERTIFICATES, Launch

_ENGINES = ("podman", "docker")
_TRY_WITHIN_S = 20.0
_NOT_PASSED = frozenset([*CERTIFICATES, "HOME", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER"])
"""Variables that describe the host. The image has its own."""


@functools.cache
def engine() -> str:
    """The path of the first engine that is installed; empty if there is none."""
    return next((found for name in _ENGINES if (found := shutil.which(name))), "")


@functools.cache
def problem() -> str:
    """Empty if containers can be started here, else a clause that says why not and what to do."""
    if not engine():
        return "neither podman nor docker is installed; install one of them (`apt-get install podman`)"
    try:
        done = subprocess.run([engine(), "info"], capture_output=True, text=True, timeout=_TRY_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as broken:
        return f"{engine()} does not run here ({broken})"
    if done.returncode == 0:
        return ""
    complaint = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
    return f"{Path(engine()).name} cannot start containers here ({complaint})"


def launch(name: str, plain: Launch, sandbox: Sandbox, *, read: Sequence[Path], write: Sequence[Path]) -> Launch:
    """The start of the server in a container of its own, and the command that removes it."""
    own_name = f"agentrl-{name}-{secrets.token_hex(6)}"
    command = (
        *(engine(), "run", "--rm", "--interactive", "--name", own_name, "--pull", "never", "--init"),
        *("--network", "host" if sandbox.has_network_of_host else "none", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--ipc", "private"),
        *_limits(sandbox),
        *_mounts(plain.cwd, read, write),
        *("--workdir", str(plain.cwd)),
        *(word for key in sorted(plain.env.keys() - _NOT_PASSED) for word in ("--env", key)),
        sandbox.image,
        *plain.command,
    )
    return replace(plain, command=command, sandbox="container", removal=(engine(), "rm", "--force", own_name))


def _limits(sandbox: Sandbox) -> Iterator[str]:
    yield from ("--memory", str(sandbox.memory), "--memory-swap", str(sandbox.memory))
    yield from ("--pids-limit", str(sandbox.processes), "--ulimit", f"nofile={sandbox.open_files}")
    yield from ("--ulimit", f"fsize={sandbox.file_size}", "--ulimit", "core=0")
    if sandbox.cpu_s:
        yield from ("--ulimit", f"cpu={sandbox.cpu_s}")
    yield from ("--tmpfs", f"/tmp:rw,size={sandbox.file_size},mode=1777")


def _mounts(cwd: Path, read: Sequence[Path], write: Sequence[Path]) -> Iterator[str]:
    for path in dict.fromkeys((cwd, *read)):
        if path not in write:
            yield from ("--volume", f"{path}:{path}:ro")
    for path in write:
        yield from ("--volume", f"{path}:{path}:rw")
