"""The embedded MongoDB server: one mongod as a replica set of one.

Invariants: it listens on loopback only and serves no client without the password; it counts as up when it is a writable
primary and the login works; every step of its start may be repeated after a crash. It is always a replica set, because
a standalone server refuses transactions and change streams. A server whose disk is full dies, but everything that it
acknowledged is on disk; it is not started again before there is room.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure

from agentrl.errors import AgentrlError, ConfigError, DiskError
from agentrl.store.database_identity import lost
from agentrl.store.mongod_files import REPLICA_SET, USER, MongoFiles, lock_holder, port_is_free

POLL_S = 0.05
MOST_OF_AN_ERROR = 80
LOG_MAX_BYTES = 32 << 20
TAIL_LINES = 8
MOST_OF_A_LINE = 300
"""Backtraces have tens of thousands of characters in one line."""
LEAST_FREE_BYTES = 48 << 20
"""What a server writes before it serves clients: its journal, its log, a checkpoint."""

_ALREADY_INITIALIZED = 23
_UNAUTHORIZED = 13
_AUTHENTICATION_FAILED = 18
_NOT_WRITABLE = {10107, 13435, 13436, 11602, 189, 91, 94}
"""Error codes of a server that is not yet, or no longer, a primary."""

KeepTrying = Callable[[float], bool]
"""Sleeps so many seconds and answers whether to go on; False ends the waiting without an error."""


class ServerDiedError(AgentrlError):
    """The mongod process ended unplanned."""


def command(binary: Path, files: MongoFiles) -> list[str]:
    """How mongod is started. The key file implies that every connection must log in."""
    return [
        str(binary),
        *("--dbpath", str(files.data)),
        *("--port", str(files.port)),
        *("--bind_ip", "127.0.0.1"),
        "--nounixsocket",
        *("--replSet", REPLICA_SET),
        *("--oplogSize", "64"),
        *("--wiredTigerCacheSizeGB", "0.25"),
        # Without this an empty database takes 300 MB of disk.
        *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=8MB)"),
        *("--setParameter", "ttlMonitorSleepSecs=2"),
        *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        # No snapshot of the past is ever read. With the server's default of five minutes of history, every query for
        # open or running documents would have to skip all entries of that time.
        *("--setParameter", "minSnapshotHistoryWindowInSeconds=0"),
        *("--enableFreeMonitoring", "off"),
        # No query of ours has code, and a read-only user could make the server run any.
        "--noscripting",
        *("--keyFile", str(files.key_file)),
        *("--logpath", str(files.log)),
        "--logappend",
        *("--logRotate", "reopen"),
    ]


def wait_until_data_is_free(files: MongoFiles, *, within_s: float, keep_trying: KeepTrying) -> bool:
    """Wait until no other server holds the data or the port: the server of a former incarnation may still be ending."""
    deadline = time.monotonic() + within_s
    while True:
        holder = lock_holder(files.data)
        if holder is None and port_is_free(files.port):
            return True
        if time.monotonic() >= deadline:
            if holder is not None:
                raise AgentrlError(
                    f"Another mongod (pid {holder or 'unknown'}) has held {files.data} for {within_s:g} s.",
                    hint="End that process; its data stays.",
                )
            raise ConfigError(
                f"Another process listens on port {files.port}, which MongoDB of this run has kept.",
                hint=f"Free the port, or delete {files.root / 'port'} so that another one is chosen.",
            )
        if not keep_trying(POLL_S):
            return False


def missing_space(files: MongoFiles) -> str:
    """Empty, or why no server can live on that disk now."""
    free = shutil.disk_usage(files.root).free
    if free >= LEAST_FREE_BYTES:
        return ""
    return f"the disk of {files.root} has {free >> 20} MiB left, and MongoDB needs {LEAST_FREE_BYTES >> 20}"


class Mongod:
    """The server process. Its starter also stops it."""

    def __init__(self, binary: Path, files: MongoFiles, *, may_create: bool = True) -> None:
        self._binary = binary
        self._files = files
        self._may_create = may_create
        """False if the database of the run exists: then empty data is an error."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        self.rotate_log()
        # The environment is inherited, because a scan finds the process by the mark of the run in it.
        with (self._files.root / "mongod.out").open("wb") as output:
            self._process = subprocess.Popen(
                command(self._binary, self._files),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._files.root,
            )

    def check(self) -> None:
        """Raises ServerDiedError, with the last lines of the log, if the server ended; DiskError if its disk is
        full."""
        code = self._process.poll() if self._process else None
        if code is not None:
            if lack := missing_space(self._files):
                raise DiskError(
                    f"mongod ended: {lack}.", hint="Make room, and it starts by itself; what it acknowledged is there."
                )
            how = f"by signal {-code}" if code < 0 else f"with status {code}"
            raise ServerDiedError(
                f"mongod ended {how}: {' | '.join(last_log_lines(self._files)) or 'it left no log lines'}"
            )

    def unanswered(self) -> str:
        """Empty if the server answers, otherwise why not. A server that a signal stopped is continued, like a unit."""
        try:
            with _client(self._files) as anyone:
                anyone.admin.command("ping")
        except ConnectionFailure as silent:
            if not self._is_stopped():
                return f"it does not answer ({str(silent)[:MOST_OF_AN_ERROR]})"
            self._process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            return "it was stopped by a signal and is continued"
        return ""

    def _is_stopped(self) -> bool:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] in ("T", "t")
        return False

    def bring_up(self, *, keep_trying: KeepTrying) -> bool:
        """Initiate the set, make the user, and wait for a writable primary. Returns False if `keep_trying` returned
        False."""
        while True:
            self.check()
            with contextlib.suppress(ConnectionFailure):
                if _advance(self._files, self._may_create):
                    self._files.publish_url()
                    return True
            if not keep_trying(POLL_S):
                return False

    def stop(self, *, within_s: float) -> bool:
        """Shut down cleanly. Returns False if the server had to be killed: data is safe, but the next start takes
        longer."""
        if self._process is None or self._process.poll() is not None:
            return True
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def rotate_log(self) -> None:
        """Start a new log when the present one is full, and keep one older log."""
        log = self._files.log
        if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
            if self._process is not None:
                self._process.send_signal(signal.SIGUSR1)


def last_log_lines(files: MongoFiles) -> list[str]:
    """The last lines of what mongod wrote, as sentences."""
    words: list[str] = []
    for path in (files.log, files.root / "mongod.out"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            words += [_sentence(line) for line in file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]]
    return [word for word in words if word][-TAIL_LINES:]


def _sentence(line: str) -> str:
    try:
        entry = json.loads(line)
        error = entry.get("attr", {}).get("error", "")
        text = f"{entry['msg']} {error if isinstance(error, str) else json.dumps(error)}".strip()
    except (ValueError, TypeError, KeyError, AttributeError):
        text = line.strip()
    return text if len(text) <= MOST_OF_A_LINE else f"{text[:MOST_OF_A_LINE]} ..."


def _advance(files: MongoFiles, may_create: bool) -> bool:
    """Make the next step of the start. Returns True once the server is a writable primary and the login works."""
    with _client(files, USER, files.password) as known:
        try:
            known.admin.command("ping")
            # A ping needs no rights, but this command does.
            config = known.admin.command("replSetGetConfig")["config"]
            return _is_writable(known) or _follow_the_port(known, config, files)
        except OperationFailure as refused:
            if refused.code not in (_AUTHENTICATION_FAILED, _UNAUTHORIZED):
                raise
    # No user can log in yet: the localhost exception admits the first user, and the initiation before it.
    with _client(files) as stranger:
        return _introduce(stranger, files, may_create)


def _introduce(stranger: MongoClient[dict[str, Any]], files: MongoFiles, may_create: bool) -> bool:
    member = {"_id": 0, "host": f"127.0.0.1:{files.port}"}
    try:
        if not stranger.admin.command("hello").get("setName"):
            if not may_create:
                raise lost(files, "is empty")
            stranger.admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": [member]})
        if _is_writable(stranger):
            stranger.admin.command("createUser", USER, pwd=files.password, roles=["root"])
    except OperationFailure as refused:
        if refused.code == _UNAUTHORIZED:
            raise ConfigError(
                f"The password in {files.root / 'password'} is not the one that the data in {files.data} knows.",
                hint="Put the former password file back.",
            ) from refused
        if refused.code != _ALREADY_INITIALIZED and refused.code not in _NOT_WRITABLE:
            raise
    return False  # The next step logs in, which proves it.


def _follow_the_port(known: MongoClient[dict[str, Any]], config: dict[str, Any], files: MongoFiles) -> bool:
    """Tell the replica set its new address, after a new port was chosen."""
    host = f"127.0.0.1:{files.port}"
    if config["members"][0]["host"] != host:
        config["members"][0]["host"] = host
        known.admin.command("replSetReconfig", {**config, "version": config["version"] + 1}, force=True)
    return False


def _is_writable(client: MongoClient[dict[str, Any]]) -> bool:
    return bool(client.admin.command("hello").get("isWritablePrimary"))


def _client(files: MongoFiles, user: str | None = None, password: str | None = None) -> MongoClient[dict[str, Any]]:
    return MongoClient(
        "127.0.0.1",
        files.port,
        username=user,
        password=password,
        directConnection=True,
        serverSelectionTimeoutMS=2000,
        connectTimeoutMS=2000,
        socketTimeoutMS=10_000,
    )
