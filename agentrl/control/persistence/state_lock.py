"""Ensures that a run has one coordinator: a lock on the state directory, and a marker in the run directory.

Invariants:
- The lock is a flock, so the kernel releases it at any kind of death of its holder.
- The lock is never taken on a network file system, where a flock may not work.
- The marker only informs other hosts, and a coordinator goes on if it cannot be written (a full disk).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentrl.control.persistence.atomic_file import replace_file
from agentrl.errors import ConfigError, ConflictError, DiskError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2"}
    | {"gfs2", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
)
MARKER = "coordinator.json"


class Holder(msgspec.Struct, frozen=True):
    """The content of the lock file: the process that took the lock."""

    pid: int
    host: str
    since_at: float


class Marker(msgspec.Struct, frozen=True):
    """The content of `run_dir/coordinator.json`: the host that coordinates the run."""

    host: str
    boot_id: str
    name: str
    uuid: str
    heartbeat_at: float


@dataclass
class StateLock:
    """The lock on a state directory, held until `release` or the end of the process."""

    path: Path
    _handle: int

    @classmethod
    def acquire(cls, state_dir: Path, *, host: str, at: float) -> StateLock:
        """Take the lock. Raises ConflictError, which names the holder, or ConfigError on a network file system."""
        refuse_network_file_system(state_dir)
        path = state_dir / "lock"
        lock = cls(path, _locked(path))
        lock._write(Holder(os.getpid(), host, at))
        return lock

    def restore(self, *, host: str, at: float) -> bool:
        """Lock the file again if it was removed, because the lock on a removed file stops no other coordinator.

        Returns whether this was needed. Raises like `acquire`.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._handle), os.stat(self.path)):
                return False
        removed, self._handle = self._handle, _locked(self.path)
        os.close(removed)
        self._write(Holder(os.getpid(), host, at))
        return True

    def release(self) -> None:
        os.close(self._handle)

    def _write(self, holder: Holder) -> None:
        # On a full disk the lock works as well, but the file does not name its holder.
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, msgspec.json.encode(holder), 0)
        except OSError:
            return


@dataclass(frozen=True)
class RunDirMarker:
    """Keeps `run_dir/coordinator.json` fresh, so that `up` on another host refuses to start the run."""

    run_dir: Path
    host: str
    boot_id: str
    name: str
    uuid: str

    def refresh(self, at: float) -> str:
        """Write the marker; call it every few seconds. Returns a sentence if it could not be written."""
        marker = Marker(self.host, self.boot_id, self.name, self.uuid, at)
        try:
            replace_file(self.run_dir / MARKER, msgspec.json.encode(marker), mode=0o644, durable=False)
        except DiskError as full:
            return full.message
        return ""

    def remove(self) -> None:
        """Remove the marker, unless another coordinator wrote it."""
        found = read_marker(self.run_dir)
        if found is not None and (found.uuid, found.boot_id) == (self.uuid, self.boot_id):
            try:
                (self.run_dir / MARKER).unlink(missing_ok=True)
            except OSError:
                return  # it becomes stale by itself


def read_marker(run_dir: Path) -> Marker | None:
    """The marker in a run directory; None if it is missing or unreadable."""
    try:
        return msgspec.json.decode((run_dir / MARKER).read_bytes(), type=Marker)
    except (OSError, msgspec.DecodeError):
        return None


def refuse_network_file_system(directory: Path) -> None:
    """Raises ConfigError if the directory is on a network file system."""
    kind = file_system_of(directory.resolve(), Path("/proc/self/mountinfo").read_text())
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"The state directory {directory} is on a network file system ({kind}), where locks cannot be trusted.",
            hint="Set AGENTRL_HOME to a directory on a local disk.",
        )


def file_system_of(path: Path, mountinfo: str) -> str:
    """The type of the file system that holds a path, according to the text of /proc/PID/mountinfo."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        mount = Path(fields[4].encode().decode("unicode_escape"))
        # A later line hides an earlier one at the same place, hence >=.
        if (path == mount or mount in path.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), right.split(" ", 1)[0]
    return kind


def _locked(path: Path) -> int:
    """The handle of the locked file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        raise DiskError(f"{path} cannot be opened: {failed.strerror}.") from failed
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as held:
        os.close(handle)
        raise ConflictError(
            f"The state directory {path.parent} is held by {_who(path)}.",
            hint="Only one coordinator may run; `agentrl status` asks the one that does.",
        ) from held
    return handle


def _who(path: Path) -> str:
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return "another coordinator"
    return f"the coordinator with pid {holder.pid} on host {holder.host}"
