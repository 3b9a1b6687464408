"""Provides the token that every HTTP listener of a run requires. It is one file of the state directory.

Invariants:
- The file has mode 0600, and is complete or missing.
- Its first line is the token that clients send; listeners accept each line. So a token is replaced in three steps
  without a refused call: both are accepted, the new one is sent, only the new one is accepted.
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
    """The token of a run for a process that lives through its replacement: the file is read again when it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._tokens = self._read()

    @property
    def current(self) -> str:
        """What clients send, as `Authorization: Bearer TOKEN`."""
        return self._fresh()[0]

    def accepts(self, authorization: bytes) -> bool:
        """Whether a header shows the token of the run. Takes the same time for any wrong one."""
        found = [hmac.compare_digest(authorization, _BEARER + token.encode()) for token in self._fresh()]
        return any(found)

    def _fresh(self) -> tuple[str, ...]:
        try:
            now = os.stat(self._path)
            if (now.st_ino, now.st_mtime_ns) != self._seen:
                self._tokens = self._read()
        except (OSError, ConfigError):
            # A listener goes on with the token that it knows; the next start says what is wrong with the file.
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
    """The token that replaces this one. It begins with its number, so which of two is the newer one is always known."""
    return f"{generation(token) + 1}.{secrets.token_urlsafe(32)}"


def generation(token: str) -> int:
    """1 for the first token of a run, which has no number."""
    number, dot, _ = token.partition(".")
    return int(number) if dot and number.isdecimal() else 1


def current(token: str | RunToken) -> str:
    """What a client sends."""
    return token if isinstance(token, str) else token.current


def accepts(token: str | RunToken, authorization: bytes) -> bool:
    """Whether a header shows this token."""
    if isinstance(token, str):
        return hmac.compare_digest(authorization, _BEARER + token.encode())
    return token.accepts(authorization)


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
