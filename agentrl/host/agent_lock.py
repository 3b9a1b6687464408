"""The lock that allows one host agent per host of a run, and `agent.json`, which identifies the agent's process.

The lock ends with its holder. Other programs read `agent.json` to see whether the agent lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import msgspec

from agentrl import __version__
from agentrl.errors import ConflictError, DiskError
from agentrl.host import procfs


class AgentFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of agent.json."""

    pid: int
    start_ticks: int
    boot_id: str
    host: str
    run: str
    started_at: float = 0.0
    version: str = ""
    coordinator: str = ""
    """The reason why this agent no longer starts coordinators; empty if it does."""

    @property
    def identity(self) -> procfs.Identity:
        return procfs.Identity(self.pid, self.start_ticks, self.boot_id)


class AgentLock:
    """Held by the agent while it lives."""

    def __init__(self, folder: Path, run: str, host: str) -> None:
        self._path = folder / "agent.json"
        stat = procfs.read_stat(os.getpid())
        self._file = AgentFile(
            pid=os.getpid(),
            start_ticks=stat.start_ticks if stat else 0,
            boot_id=procfs.boot_id(),
            host=host,
            run=run,
            started_at=time.time(),
            version=__version__,
        )
        self._lock = _take(folder, host)
        self._write()

    @property
    def identity(self) -> procfs.Identity:
        return self._file.identity

    def note_coordinator(self, sentence: str) -> None:
        self._file = msgspec.structs.replace(self._file, coordinator=sentence)
        self._write()

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._lock)

    def restore_file(self) -> None:
        """Write agent.json again if it is missing or does not name this agent: the coordinator admits only the process
        that the file names."""
        body = self._body()
        try:
            if self._path.read_bytes().rstrip() == body:
                return
        except OSError:
            pass
        self._write()

    def _body(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self._file))

    def _write(self) -> None:
        fresh, body = self._path.with_suffix(".new"), self._body()
        try:
            fresh.write_bytes(body)
            fresh.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):  # `restore_file` tries again
                fresh.unlink(missing_ok=True)
                # On a full disk the previous agent's file can still be overwritten in place.
                with self._path.open("r+b") as former:
                    former.write(body.ljust(os.fstat(former.fileno()).st_size))


def read_agent_file(state_dir: Path, host: str) -> AgentFile | None:
    """The process of a host's agent, living or not."""
    try:
        return msgspec.json.decode((state_dir / "hosts" / host / "agent.json").read_bytes(), type=AgentFile)
    except (OSError, msgspec.DecodeError):
        return None


def _take(folder: Path, host: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        raise DiskError(f"The lock in {folder} cannot be made: {failed.strerror}.") from failed
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConflictError(f"A host agent of {host} lives already; it holds {folder / 'lock'}.") from None
    return fd
