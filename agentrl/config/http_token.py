"""Provides the token that every HTTP listener of a run requires. It is one file of the state directory.

Invariants:
- The file has mode 0600, and is complete or missing.
- Its first line is the token that clients send; listeners accept every line. So a token can be replaced in three steps
  without a refused call: listeners accept both tokens, clients send the new one, listeners accept only the new one.
- Processes that start at the same moment get the same token.
"""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
from pathlib import Path

from agentrl.errors import ConfigError, DiskError

TOKEN_FILE = "http.token"
_LEAST_LENGTH = 16
_BEARER = b"Bearer "


class RunToken:
    """The token of a run, for a process that must survive its replacement: the file is read again when it has
    changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._tokens = self._read()

    @property
    def current(self) -> str:
        """The token that clients send, as `Authorization: Bearer TOKEN`."""
        return self._fresh()[0]

    def accepts(self, authorization: bytes) -> bool:
        """Whether a header contains the token of the run. Takes the same time for every wrong token."""
        found = [hmac.compare_digest(authorization, _BEARER + token.encode()) for token in self._fresh()]
        return any(found)

    def _fresh(self) -> tuple[str, ...]:
        try:
            now = os.stat(self._path)
            if (now.st_ino, now.st_mtime_ns) != self._seen:
                self._tokens = self._read()
        except (OSError, ConfigError):
            # A listener goes on with the token that it knows; the next start reports the problem of the file.
            pass
        return self._tokens

    def _read(self) -> tuple[str, ...]:
        now = os.stat(self._path)
        tokens = tuple(self._path.read_text(encoding="ascii", errors="replace").split())
        if not tokens or any(
            len(token) < _LEAST_LENGTH or not (token.isascii() and token.isprintable()) for token in tokens
        ):
            raise ConfigError(
                f"{self._path} contains no token.",
                hint="Delete it while the run is down; the next start makes a new one.",
            )
        self._seen = (now.st_ino, now.st_mtime_ns)
        return tokens


def http_token(state_dir: Path) -> RunToken:
    """The token of the run, created if missing."""
    path = state_dir / TOKEN_FILE
    try:
        if not path.exists():
            _make(path)
        return RunToken(path)
    except OSError as broken:
        raise DiskError(f"The token file {path} cannot be made or read: {broken.strerror}.") from broken


def tokens_in_file(state_dir: Path) -> list[str]:
    """All accepted tokens, the one that clients send first. Raises AgentrlError."""
    http_token(state_dir)
    try:
        return (state_dir / TOKEN_FILE).read_text(encoding="ascii", errors="replace").split()
    except OSError as broken:
        raise DiskError(f"{state_dir / TOKEN_FILE} cannot be read: {broken.strerror}.") from broken


def token_after(token: str) -> str:
    """The token that replaces this one. It begins with its number, which shows which of two tokens is newer."""
    return f"{generation(token) + 1}.{secrets.token_urlsafe(32)}"


def generation(token: str) -> int:
    """The number of a token; 1 for the first token of a run, which does not contain a number."""
    number, dot, _ = token.partition(".")
    return int(number) if dot and number.isdecimal() else 1


def current(token: str | RunToken) -> str:
    """The token that a client sends."""
    return token if isinstance(token, str) else token.current


def accepts(token: str | RunToken, authorization: bytes) -> bool:
    """Whether a header contains this token."""
    if isinstance(token, str):
        return hmac.compare_digest(authorization, _BEARER + token.encode())
    return token.accepts(authorization)


def _make(path: Path) -> None:
    """Creates the file by a link, which appears with its whole content, or fails because another process was first."""
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
