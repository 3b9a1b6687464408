"""The files of the embedded server: data, key, password, port, URL.

Invariants: a file with a secret has mode 0600, and is complete or does not exist; port and password are chosen once and
kept; no second server starts while the lock of the data is held.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError, DiskError
from agentrl.http.free_ports import free_port

USER = "agentrl"
REPLICA_SET = "rs0"


@dataclass(frozen=True, slots=True)
class MongoFiles:
    """The directory `mongo/` of a run's state directory."""

    root: Path
    password: str
    port: int

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def key_file(self) -> Path:
        return self.root / "keyfile"

    @property
    def log(self) -> Path:
        return self.root / "mongod.log"

    @property
    def url_file(self) -> Path:
        return self.root / "url"

    @property
    def url(self) -> str:
        return f"mongodb://{USER}:{self.password}@127.0.0.1:{self.port}/?authSource=admin&replicaSet={REPLICA_SET}"

    def publish_url(self) -> None:
        """Call it once the server answers at this URL."""
        write_secret(self.url_file, self.url)


def prepare(root: Path) -> MongoFiles:
    """Make what is missing; keep what exists."""
    try:
        for directory in (root, root / "data"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        _kept(root / "keyfile", secrets.token_hex(256))
        password = _kept(root / "password", secrets.token_urlsafe(24))
        port = _kept(root / "port", str(free_port()))
    except OSError as broken:
        raise DiskError(f"{root} cannot be prepared for MongoDB: {broken.strerror}.") from broken
    if not port.isdecimal():
        raise ConfigError(
            f"{root / 'port'} holds {port!r}, which is no port.", hint="Delete the file to get a new one."
        )
    return MongoFiles(root, password, int(port))


def write_secret(path: Path, text: str) -> None:
    """Replace a 0600 file atomically, and durably."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def lock_holder(data: Path) -> int | None:
    """The pid of the server that holds the data; 0 if the server wrote no pid, None if there is no server.

    The kernel releases the lock when its holder dies, so a file that a killed server left behind is not a lock.
    """
    try:
        with (data / "mongod.lock").open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                written = file.read().strip()
                return int(written) if written.isdecimal() else 0
    except FileNotFoundError:
        pass
    return None


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _kept(path: Path, fresh: str) -> str:
    if not path.exists():
        write_secret(path, fresh)
    return path.read_text().strip()
