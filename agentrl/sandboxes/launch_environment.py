"""Environment, command line and HTTP headers of a tool server.

Invariants:
- A server inherits an allow-list of variables, so no secret of the run reaches a third-party program.
- It carries a mark by which `down` finds it, and not the uuid of the run, which names its sockets and directories.
- Secrets are resolved at the start of the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentrl.config.data_plane import ToolServer
from agentrl.config.secrets import is_reference, resolve_secret
from agentrl.errors import ConfigError
from agentrl.host import procfs
from agentrl.sandboxes.sandbox_cgroups import SandboxCgroup
from agentrl.tool_environments.environment_cache import interpreters_of
from agentrl.tool_environments.environments import environment_of
from agentrl.tracing import trace_context

INHERITED = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
)
CERTIFICATES = ("CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE")
"""Variables that name files with certificates, without which programs reach nothing behind a proxy of their host."""
TRACEPARENT = "TRACEPARENT"
"""The variable with the trace of the operation for which the process is started, named as in OpenTelemetry."""
MARKS = ("AGENTRL_HOST", "AGENTRL_INCARNATION")
"""Variables that every process of a run has. They are not an address and grant no rights."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of one process of a server."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    sandbox: str = "none"
    """The kind of the sandbox that the command makes."""
    removal: tuple[str, ...] = ()
    """The command that removes what may outlive the process; empty if nothing does."""
    cgroup: SandboxCgroup | None = None
    inherited: tuple[socket.socket | BinaryIO, ...] = ()
    """What the process inherits besides its standard input and output."""
    interpreters: tuple[Path, ...] = ()
    """The interpreters of the environment with the packages of the server, which the server always sees."""

    @contextlib.contextmanager
    def passing(self) -> Iterator[list[int]]:
        """The numbers of the inherited descriptors, which are closed here afterwards."""
        try:
            yield [each.fileno() for each in self.inherited]
        finally:
            for each in self.inherited:
                each.close()

    @property
    def program(self) -> str:
        """The path of the program; empty if it does not exist."""
        name = self.command[0]
        if "/" in name:
            return str(self.cwd / name) if (self.cwd / name).exists() else ""
        return shutil.which(name, path=self.env.get("PATH", os.defpath)) or ""


def launch_of(name: str, server: ToolServer, *, run_dir: Path, environ: Mapping[str, str]) -> Launch:
    """The process of a server. Raises ConfigError if a secret, or the pins of its packages, are missing."""
    env = {key: environ[key] for key in (*INHERITED, *CERTIFICATES, *MARKS) if key in environ}
    if run := environ.get(procfs.MARK_RUN.decode()):
        env[procfs.MARK_TOOL.decode()] = procfs.mark_of(run)
    env["PYTHONUNBUFFERED"] = "1"
    if (trace := trace_context.current()) is not None:
        env[TRACEPARENT] = trace.header()
    for key, value in server.env.items():
        if key in procfs.MARKS:
            raise ConfigError(f"tools.{name}.env.{key} is a mark of the run and cannot be set.")
        env[key] = _value(f"tools.{name}.env.{key}", value, run_dir, environ)
    environment = environment_of(name, server, run_dir)
    if environment is not None:
        env["PATH"] = f"{environment / 'bin'}:{env.get('PATH', os.defpath)}"
    interpreters = tuple(interpreters_of(environment)) if environment is not None else ()
    cwd = Path(filled(server.cwd, run_dir)) if server.cwd else run_dir
    command = tuple(filled(part, run_dir) for part in server.start_command)
    return Launch(command, env, cwd, interpreters=interpreters)


def headers_of(name: str, server: ToolServer, *, run_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Headers of all requests to a server behind a URL. Raises ConfigError if a secret is missing."""
    headers = {
        key: _value(f"tools.{name}.headers.{key}", value, run_dir, environ) for key, value in server.headers.items()
    }
    if server.token is not None:
        token = _value(f"tools.{name}.token", str(server.token), run_dir, environ)
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _value(place: str, value: str, run_dir: Path, environ: Mapping[str, str]) -> str:
    if not is_reference(value):
        return filled(value, run_dir)
    try:
        return resolve_secret(value, environ)
    except ConfigError as missing:
        raise ConfigError(f"{place}: {missing.message}", hint=missing.hint) from None


def filled(text: str, run_dir: Path) -> str:
    """The text with its placeholders replaced; other braces stay."""
    return text.replace("{python}", sys.executable).replace("{run_dir}", str(run_dir))
