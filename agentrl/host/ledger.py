"""The ledger: what this host knows about every incarnation that it was asked to start and not yet ordered to forget.

Invariants: an intent is on disk before a process is started, so no process is started twice, whatever dies in between;
a file appears whole and then grows by whole lines, and the last whole line counts, so a half-written line is never
used; a full disk is reported, its entries stay in memory and are written later, and it never ends the agent. Nothing is
synced: after a power loss the boot id differs and every process is dead anyway.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import msgspec

from agentrl.errors import DiskError
from agentrl.host import procfs
from agentrl.protocol.messages import ExitStatus, UnitOnHost
from agentrl.protocol.specs import GroupSpec, Rank, incarnation_name

log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    unit: str
    incarnation: int
    token: str
    spec: GroupSpec
    """The complete spec, so that the next agent can continue the probes and limits."""
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    exit: ExitStatus | None = None
    tail: tuple[str, ...] = ()
    group_empty: bool = False
    cgroup_tree: str = ""
    cgroup_memory: str = ""
    devices: tuple[str, ...] = ()
    rank: Rank | None = None

    @property
    def name(self) -> str:
        return incarnation_name(self.unit, self.incarnation)

    @property
    def identity(self) -> procfs.Identity:
        return procfs.Identity(self.pid, self.start_ticks, self.boot_id)

    def on_wire(self, ready: bool | None = None) -> UnitOnHost:
        return UnitOnHost(
            unit=self.unit,
            incarnation=self.incarnation,
            token=self.token,
            pid=self.pid,
            start_ticks=self.start_ticks,
            boot_id=self.boot_id,
            exit=self.exit,
            tail=self.tail,
            ready=ready,
            group_empty=self.group_empty,
            devices=self.devices,
            rank=self.rank,
        )


class Ledger:
    """The entries of one host, in memory and on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[str, Entry] = {}
        self._on_disk: set[str] = set()
        self._unwritten: set[str] = set()
        self.trouble = ""
        """A sentence while the disk cannot be written; else empty."""

    def load(self) -> None:
        """Read the entries of an earlier agent. A file that cannot be read is set aside."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        decoder = msgspec.json.Decoder(Entry)
        for path in sorted(self._folder.glob("*.json")):
            try:
                entry = _last_entry(decoder, path.read_bytes())
            except (msgspec.DecodeError, OSError) as broken:
                log.error("The ledger entry %s cannot be read and is set aside: %s.", path, broken)
                path.rename(path.with_suffix(".broken"))
                continue
            # The entry does not count as on disk, so the next record replaces the file, including any incomplete last
            # line.
            self._entries[entry.name] = entry
        for path in self._folder.glob("*.status"):
            if path.stem not in self._entries:
                path.unlink(missing_ok=True)

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def intend(self, entry: Entry) -> None:
        """Write the intent to start. After a DiskError the process must not be started."""
        try:
            self._write(entry)
        except OSError as failed:
            self.trouble = f"The ledger in {self._folder} cannot be written: {failed.strerror}."
            raise DiskError(self.trouble, hint="Free some space on that disk.") from failed
        self._entries[entry.name] = entry

    def record(self, entry: Entry) -> None:
        """Record a change. If the disk is full, it stays in memory and is written later."""
        self._entries[entry.name] = entry
        self._unwritten.add(entry.name)
        self.flush()

    def forget(self, name: str) -> Entry | None:
        entry = self._entries.pop(name, None)
        self._unwritten.discard(name)
        self._on_disk.discard(name)
        if entry is not None:
            self._path(name).unlink(missing_ok=True)
            self.status_file(name).unlink(missing_ok=True)
        return entry

    def flush(self) -> None:
        """Write the entries that could not be written before."""
        if not self._unwritten and self.trouble:
            self._try_again_small()
        for name in tuple(self._unwritten):
            try:
                self._write(self._entries[name])
            except OSError as failed:
                self.trouble = f"The ledger in {self._folder} cannot be written: {failed.strerror}."
                return
            self._unwritten.discard(name)
            self.trouble = ""

    def _try_again_small(self) -> None:
        """Test whether the disk can be written again, because after a refused intent no entry waits to be written."""
        trial = self._folder / ".trial"
        try:
            trial.write_bytes(b"x" * 4096)
        except OSError:
            return
        finally:
            trial.unlink(missing_ok=True)
        self.trouble = ""

    def status_file(self, name: str) -> Path:
        """The file in which the spawn helper writes the exit status of an incarnation."""
        return self._folder / f"{name}.status"

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, entry: Entry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        path = self._path(entry.name)
        if entry.name in self._on_disk:
            # Appending is much cheaper than replacing: some file systems flush a file that replaces another.
            _append(path, line)
            return
        fresh = path.with_suffix(".new")
        try:
            fresh.unlink(missing_ok=True)
            _append(fresh, line)
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._on_disk.add(entry.name)


def _append(path: Path, line: bytes) -> None:
    """Append the whole line or nothing."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(fd, line)
        if written != len(line):
            os.ftruncate(fd, os.fstat(fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _last_entry(decoder: msgspec.json.Decoder[Entry], body: bytes) -> Entry:
    """Decode the last complete line. Raises DecodeError if there is none."""
    whole, _, _ = body.rpartition(b"\n")
    return decoder.decode(whole.rpartition(b"\n")[2])


def find_by_mark(run: str, entry: Entry) -> procfs.Identity | None:
    """The process of an intent without a pid: the agent died between writing the intent and writing the pid.

    The oldest process with the mark that leads its own session is the one that was spawned.
    """
    wanted = entry.name.encode()
    candidates = []
    for pid in procfs.all_pids():
        found = procfs.marks(pid)
        if not found or found.get(procfs.MARK_RUN) != run.encode() or found.get(procfs.MARK_INCARNATION) != wanted:
            continue
        stat = procfs.read_stat(pid)
        if stat is not None and stat.session == pid and stat.state not in "ZX":
            candidates.append((stat.start_ticks, pid))
    if not candidates:
        return None
    start_ticks, pid = min(candidates)
    return procfs.Identity(pid, start_ticks, procfs.boot_id())
