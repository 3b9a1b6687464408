"""Provides the token that every HTTP listener of a run requires. It is one file of the state directory.

Invariants:
- The file has mode 0600, and is complete or missing.
- The token is created once and never changed.
- Processes that start at the same moment get the same token.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from agentrl.errors import ConfigError, DiskError

TOKEN_FILE = "http.token"
_LEAST_LENGTH = 16


def http_token(state_dir: Path) -> str:
    """The token of the run, created if missing. Clients send it as `Authorization: Bearer TOKEN`."""
    path = state_dir / TOKEN_FILE
    try:
        if not path.exists():
            _make(path)
        token = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as broken:
        raise DiskError(f"The token file {path} cannot be made or read: {broken.strerror}.") from broken
    if len(token) < _LEAST_LENGTH or not token.isprintable() or not token.isascii():
        raise ConfigError(
            f"{path} contains no token.", hint="Delete it while the run is down; the next start makes a new one."
        )
    return token


def _make(path: Path) -> None:
    """The link appears with the whole content, or fails because another process was first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp's files are 0600
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
    finally:
        os.unlink(fresh)
