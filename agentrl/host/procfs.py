"""Reads processes from /proc.

* Pid, start time and boot id together identify a process, because a pid may belong to another process later.
* A process that disappears during the read gives None or an empty value, never an error.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

MARK_RUN = b"AGENTRL_RUN"
MARK_INCARNATION = b"AGENTRL_INCARNATION"
MARK_HOST = b"AGENTRL_HOST"
MARK_TOOL = b"AGENTRL_MARK"
"""Marks a tool server, which must not know the uuid of the run: `mark_of` derives the mark from the uuid, and the uuid
cannot be derived from the mark."""

MARKS = (
    "AGENTRL_RUN",
    "AGENTRL_MARK",
    "AGENTRL_HOST",
    "AGENTRL_INCARNATION",
    "AGENTRL_UNIT",
    "AGENTRL_SLOT",
    "AGENTRL_GROUP",
    "AGENTRL_RUN_DIR",
    "AGENTRL_STATE_DIR",
    "AGENTRL_COORDINATOR",
    "AGENTRL_TOKEN",
    "AGENTRL_HEARTBEAT_S",
    "AGENTRL_ORPHAN_LEASE_S",
    "AGENTRL_STIMULUS",
    "AGENTRL_KEY",
    "AGENTRL_TUNNEL",
)
"""All variables that identify a process of a run. A process must not pass its own marks on to a process that it
starts."""

_LOOKS, _LOOK_S = 1000, 0.001
"""How often and how long to wait for an exec. It takes microseconds, but a busy machine may interrupt it."""


class Stat(msgspec.Struct, frozen=True):
    """The fields of /proc/PID/stat that the agent needs."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    cpu_ticks: int
    start_ticks: int
    rss_bytes: int


class Identity(msgspec.Struct, frozen=True):
    """Identifies a process uniquely, across all boots."""

    pid: int
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        """Whether this process runs now; a zombie has ended."""
        if self.boot_id != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state not in "ZX"


_boot_id = ""


def boot_id() -> str:
    global _boot_id
    if not _boot_id:
        _boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return _boot_id


def read_stat(pid: int) -> Stat | None:
    text = read_bytes(f"/proc/{pid}/stat")
    # The name is in parentheses and may itself contain spaces and parentheses: fields count from the last one.
    _, _, rest = text.rpartition(b")")
    fields = rest.split()
    if len(fields) < 22:
        return None
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
    )


def age_s(start_ticks: int) -> float:
    """The age of a process with this start time."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS_PER_S)


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def all_stats() -> dict[int, Stat]:
    """One pass over all processes of the host: the slowest function here."""
    return {stat.pid: stat for pid in all_pids() if (stat := read_stat(pid)) is not None}


def marks(pid: int) -> dict[bytes, bytes] | None:
    """The variables of the run in the environment of a process; None if access is denied."""
    try:
        body = _environment(pid)
        for _ in range(_LOOKS):
            if body or not _becomes_another_program(pid):
                break
            time.sleep(_LOOK_S)
            body = _environment(pid)
    except PermissionError:
        return None
    except OSError:
        return {}
    if b"AGENTRL_" not in body:
        return {}
    found = {}
    for item in body.split(b"\0"):
        if item.startswith(b"AGENTRL_"):
            name, _, value = item.partition(b"=")
            found[name] = value
    return found


@functools.cache
def mark_of(run: str) -> str:
    """The mark of the tool servers of a run."""
    return hashlib.blake2b(run.encode(), digest_size=16, person=b"agentrl mark").hexdigest()


def incarnation_of(pid: int, run: str, host: str) -> str:
    """The incarnation of this host whose mark the process has; empty if it has none."""
    found = marks(pid) or {}
    ours = is_of_run(found, run) and found.get(MARK_HOST) == host.encode()
    return found.get(MARK_INCARNATION, b"").decode(errors="replace") if ours else ""


def is_of_run(marks: Mapping[bytes, bytes], run: str) -> bool:
    """Whether a process with these marks belongs to the run."""
    return marks.get(MARK_RUN) == run.encode() or marks.get(MARK_TOOL) == mark_of(run).encode()


def _environment(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
        return file.readall()


def _becomes_another_program(pid: int) -> bool:
    """Whether the process is in an exec: it already has a program, but no arguments and no environment yet."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False  # a process of the kernel, or already gone
    return not read_bytes(f"/proc/{pid}/cmdline")


def command(pid: int, most: int = 300) -> str:
    """The command line for people; the name in brackets if there is none."""
    argv = read_bytes(f"/proc/{pid}/cmdline").rstrip(b"\0")
    if argv:
        shown = argv.replace(b"\0", b" ").decode(errors="replace")
        shown = "".join(c if c.isprintable() else " " for c in shown)
        return shown if len(shown) <= most else shown[: most - 1] + "…"
    name = read_bytes(f"/proc/{pid}/comm").decode(errors="replace").strip()
    return f"[{name}]" if name else ""


def cgroup_paths(pid: int) -> tuple[str, ...]:
    """The paths of the process in all cgroup hierarchies."""
    lines = read_bytes(f"/proc/{pid}/cgroup").decode(errors="replace").splitlines()
    return tuple(line.split(":", 2)[2] for line in lines if line.count(":") >= 2)


def read_bytes(path: str) -> bytes:
    """The content of a small kernel file; empty if it is gone or access is denied."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def without_marks(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in MARKS}


def kill_exactly(pid: int, start_ticks: int, number: int = signal.SIGKILL) -> bool:
    """Signal a process, unless its pid belongs to another process by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = read_stat(pid)
        if stat is None or stat.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)
    return True
