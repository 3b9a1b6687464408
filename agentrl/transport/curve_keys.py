"""Creates, reads and writes CURVE keys and their files.

Invariants:
- A secret is never in a repr, a log or a file that others can read.
- A key file is written completely or not at all.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
from zmq.utils import z85

from agentrl.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair; both halves are 40 characters of Z85."""

    public: str
    secret: str = field(repr=False)


ServerKeys = KeyPair
"""The coordinator's pair: clients know its public half beforehand, so no other program can impersonate it."""


@dataclass(frozen=True, slots=True)
class ClientKey:
    """Represents the key file of a client on another host, with everything that it needs to reach a coordinator."""

    name: str
    public: str
    secret: str = field(repr=False)
    server_public: str
    address: str
    feed: str = ""
    metrics: str = ""
    run: str = ""
    """The uuid of the run; empty in the key files of earlier versions."""

    @classmethod
    def load(cls, path: Path | str) -> ClientKey:
        """Read a key file. Raises ConfigError if other users can read it.

        A group may read a file of root, because that is how a Kubernetes secret reaches a container that is not root.
        """
        key = _load(Path(path), cls)
        for half in (key.public, key.secret, key.server_public):
            _check_z85(half, Path(path))
        return key

    def save(self, path: Path | str) -> None:
        """Write a key file with mode 0600."""
        _save(Path(path), self)


def new_keypair() -> KeyPair:
    """A new random pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def load_server_keys(path: Path) -> ServerKeys:
    """The coordinator's pair; the first call creates it."""
    if not path.exists():
        _save(path, new_keypair())
    keys = _load(path, KeyPair)
    for half in (keys.public, keys.secret):
        _check_z85(half, path)
    return keys


def public_from_wire(key: bytes) -> str:
    """Converts the 32 bytes of a public key in the handshake to the form in key files."""
    return bytes(z85.encode(key)).decode()


def _check_z85(text: str, path: Path) -> None:
    try:
        valid = len(text) == 40 and len(z85.decode(text.encode("ascii"))) == 32
    except (UnicodeEncodeError, KeyError, ValueError):
        valid = False
    if not valid:
        raise ConfigError(f"{path} is not a key file: a key is 40 characters of Z85.", hint="agentrl keys new NAME")


def _load(path: Path, kind: type[T]) -> T:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            body = file.read(65536)
    except OSError as broken:
        raise ConfigError(f"The key file {path} cannot be read: {broken.strerror}.") from broken
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o037 if found.st_uid == 0 != os.geteuid() else 0o077):
        raise ConfigError(
            f"The key file {path} can be read by others (mode {mode:04o}), so it is not used.",
            hint=f"chmod 600 {path}",
        )
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise ConfigError(f"{path} is not a key file: {broken}.", hint="agentrl keys new NAME") from broken


def _save(path: Path, keys: KeyPair | ClientKey) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates the file with mode 0600, so other users can never read the secret.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
