"""What a tool server finds in its environment, on its command line, or in the headers of requests.

Invariants: it inherits an allow-list and nothing else, so that no secret of the run reaches a program of somebody else;
it carries the run's mark, so that it is found and ended with the run; secrets are resolved at the moment of the start.
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
"""By these every process of a run is found. What gives rights (token, key, coordinator) is not among them."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one process of a server is started."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path


def launch_of(name: str, server: ToolServer, *, run_dir: Path, environ: Mapping[str, str]) -> Launch:
    """Raises ConfigError if a secret is not there."""
    env = {key: environ[key] for key in (*INHERITED, *MARK) if key in environ}
    env["PYTHONUNBUFFERED"] = "1"
    for key, value in server.env.items():
        if key in MARK:
            raise ConfigError(f"tools.{name}.env.{key} is the run's mark and cannot be set.")
        env[key] = _value(f"tools.{name}.env.{key}", value, run_dir, environ)
    cwd = Path(_filled(server.cwd, run_dir)) if server.cwd else run_dir
    return Launch(tuple(_filled(part, run_dir) for part in server.command), env, cwd)


def headers_of(name: str, server: ToolServer, *, run_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Of every request to a server behind a URL. Raises ConfigError if a secret is not there."""
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
    """Other braces are left alone: commands are full of them."""
    return text.replace("{python}", sys.executable).replace("{run_dir}", str(run_dir))
