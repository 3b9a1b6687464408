"""Environment, command line and HTTP headers of a tool server.

Invariants:
- A server inherits an allow-list of variables, so no secret of the run reaches a third-party program.
- It carries the marks of the run, so that `down` finds it.
- Secrets are resolved at the start of the server.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.data_plane import ToolServer
from agentrl.config.secrets import is_reference, resolve_secret
from agentrl.errors import ConfigError

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
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
)
MARK = ("AGENTRL_RUN", "AGENTRL_HOST", "AGENTRL_INCARNATION")
"""Every process of a run has these. They grant no rights: token, key and coordinator address are not among them."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of one process of a server."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path


def launch_of(name: str, server: ToolServer, *, run_dir: Path, environ: Mapping[str, str]) -> Launch:
    """The process of a server. Raises ConfigError if a secret is missing."""
    env = {key: environ[key] for key in (*INHERITED, *MARK) if key in environ}
    env["PYTHONUNBUFFERED"] = "1"
    for key, value in server.env.items():
        if key in MARK:
            raise ConfigError(f"tools.{name}.env.{key} is the run's mark and cannot be set.")
        env[key] = _value(f"tools.{name}.env.{key}", value, run_dir, environ)
    cwd = Path(_filled(server.cwd, run_dir)) if server.cwd else run_dir
    return Launch(tuple(_filled(part, run_dir) for part in server.command), env, cwd)


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
        return _filled(value, run_dir)
    try:
        return resolve_secret(value, environ)
    except ConfigError as missing:
        raise ConfigError(f"{place}: {missing.message}", hint=missing.hint) from None


def _filled(text: str, run_dir: Path) -> str:
    """Replace placeholders; other braces stay."""
    return text.replace("{python}", sys.executable).replace("{run_dir}", str(run_dir))
