"""The token that every HTTP listener of a run wants, kept in one file of the state directory.

Invariants: the file is 0600 and complete or not there; it is made once, by whoever is first, and never changed: of two
processes that start at the same moment both get the same token.
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
    """The run's token, made if there is none yet. Clients send it as `Authorization: Bearer TOKEN`."""
    path = state_dir / TOKEN_FILE
    try:
        if not path.exists():
            _make(path)
        token = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as broken:
        raise DiskError(f"The token file {path} cannot be made or read: {broken.strerror}.") from broken
    if len(token) < _LEAST_LENGTH or not token.isprintable() or not token.isascii():
        raise ConfigError(
            f"{path} holds no token.", hint="Delete it while the run is down; the next start makes a new one."
        )
    return token


def _make(path: Path) -> None:
    """A link appears at once with all its content, or fails because somebody else's is there already."""
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
