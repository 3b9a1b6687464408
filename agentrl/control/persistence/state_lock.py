"""Who may be the coordinator of a run: a lock on the state directory, and a sign in the run directory.

Invariants: the lock is a flock, so the kernel gives it back however its holder dies; it is never taken on a network
file system, where a flock may mean nothing; the sign in the run directory is only advice to other hosts, and losing it
(a full disk) never stops a coordinator.
"""

from __future__ import annotations

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
SIGN = "coordinator.json"


class Holder(msgspec.Struct, frozen=True):
    """What stands in the lock file: who took the lock."""

    pid: int
    host: str
    since_at: float


class Sign(msgspec.Struct, frozen=True):
    """`run_dir/coordinator.json`: this run is coordinated on that host."""

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
        """Take the lock. ConflictError names the holder; ConfigError says that the place is not fit for a lock."""
        refuse_network_file_system(state_dir)
        path = state_dir / "lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failed:
            raise DiskError(f"{path} cannot be opened: {failed.strerror}.") from failed
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            os.close(handle)
            raise ConflictError(
                f"The state directory {state_dir} is held by {_who(path)}.",
                hint="Only one coordinator may run; `agentrl status` asks the one that does.",
            ) from held
        lock = cls(path, handle)
        lock._write(Holder(os.getpid(), host, at))
        return lock

    def release(self) -> None:
        os.close(self._handle)

    def _write(self, holder: Holder) -> None:
        # The lock itself holds on a full disk too; then the file merely does not name its holder.
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, msgspec.json.encode(holder), 0)
        except OSError:
            return


@dataclass(frozen=True)
class RunDirMarker:
    """Keeps `run_dir/coordinator.json` fresh, so that `up` on another host sees that the run is taken."""

    run_dir: Path
    host: str
    boot_id: str
    name: str
    uuid: str

    def refresh(self, at: float) -> str:
        """Write the sign; call it every few seconds. Answers a sentence if it could not be written."""
        sign = Sign(self.host, self.boot_id, self.name, self.uuid, at)
        try:
            replace_file(self.run_dir / SIGN, msgspec.json.encode(sign), mode=0o644, durable=False)
        except DiskError as full:
            return full.message
        return ""

    def remove(self) -> None:
        """Take the sign away at the end, unless somebody else has put theirs there."""
        found = read_marker(self.run_dir)
        if found is not None and (found.uuid, found.boot_id) == (self.uuid, self.boot_id):
            try:
                (self.run_dir / SIGN).unlink(missing_ok=True)
            except OSError:
                return  # it grows stale by itself


def read_marker(run_dir: Path) -> Sign | None:
    """The sign in a run directory; None if there is none that can be read."""
    try:
        return msgspec.json.decode((run_dir / SIGN).read_bytes(), type=Sign)
    except (OSError, msgspec.DecodeError):
        return None


def refuse_network_file_system(directory: Path) -> None:
    """ConfigError if locks and fsync cannot be trusted there."""
    kind = file_system_of(directory.resolve(), Path("/proc/self/mountinfo").read_text())
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"The state directory {directory} is on a network file system ({kind}), where locks cannot be trusted.",
            hint="Set AGENTRL_HOME to a directory on a local disk.",
        )


def file_system_of(path: Path, mountinfo: str) -> str:
    """The type of the file system that a path is on, by the text of /proc/PID/mountinfo."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        mount = Path(fields[4].encode().decode("unicode_escape"))
        # A later line covers an earlier one at the same place, hence >=.
        if (path == mount or mount in path.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), right.split(" ", 1)[0]
    return kind


def _who(path: Path) -> str:
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return "another coordinator"
    return f"the coordinator with pid {holder.pid} on host {holder.host}"
