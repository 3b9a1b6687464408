"""Ensures that a run has one coordinator: a lock on the state directory, and a marker in the run directory.

Invariants:
- The lock is a flock, so the kernel releases it at any kind of death of its holder.
- The lock is never taken on a network file system, where a flock may not work.
- If two coordinators run on hosts that share the run directory, one of them ends, because it finds the marker of the
  other. A coordinator that cannot write its marker (on a full disk) goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentrl.config.run_marker import MARKER, Marker, read_marker
from agentrl.control.persistence.atomic_file import replace_file
from agentrl.errors import ConfigError, ConflictError, DiskError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2"}
    | {"gfs2", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
)


class Holder(msgspec.Struct, frozen=True):
    """The content of the lock file: the process that took the lock."""

    pid: int
    host: str
    since_at: float


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


class RunDirMarker:
    """Keeps `run_dir/coordinator.json` fresh, so that no other host that shares the directory also coordinates the
    run."""

    def __init__(self, run_dir: Path, host: str, boot_id: str, name: str, uuid: str) -> None:
        self._run_dir, self._host, self._boot_id, self._name, self._uuid = run_dir, host, boot_id, name, uuid
        self._written = False

    def refresh(self, at: float) -> str:
        """Write the marker; the first call must come before any file of the run is changed. Returns a sentence if it
        cannot be written.

        Raises ConflictError if another coordinator has the directory: one that came earlier, or one that wrote its
        marker after this coordinator had written its own. So if two claim it at once, the one that wrote last goes on.
        """
        found = self._of_another()
        if found is not None and (self._written or found.is_fresh(at)):
            raise ConflictError(
                f"The run {found.name} is up on host {found.host}, which has the directory {self._run_dir}.",
                hint="Only one host may coordinate a run: `agentrl down` there first.",
            )
        marker = Marker(self._host, self._boot_id, self._name, self._uuid, at)
        try:
            replace_file(self._run_dir / MARKER, msgspec.json.encode(marker), mode=0o644, durable=False)
        except DiskError as full:
            return full.message
        self._written = True
        return ""

    def remove(self) -> None:
        """Remove the marker, unless another coordinator wrote it."""
        if self._of_another() is None:
            # If the removal fails, the marker becomes stale by itself.
            with contextlib.suppress(OSError):
                (self._run_dir / MARKER).unlink(missing_ok=True)

    def _of_another(self) -> Marker | None:
        found = read_marker(self._run_dir)
        return None if found is None or (found.uuid, found.boot_id) == (self._uuid, self._boot_id) else found


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
