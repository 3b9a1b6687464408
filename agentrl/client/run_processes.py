"""Finds the coordinator and the host agents of a run on this host from the files of its state directory.

Invariants:
- A process is identified by pid, start time and boot, so a reused pid is not mistaken for it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class RunProcess:
    """A process that is named in a file of the run."""

    what: str
    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        ticks = start_ticks(self.pid)
        return ticks is not None and self.start_ticks in (0, ticks)

    @property
    def condition(self) -> str:
        """The state of the process, for messages."""
        return "is stopped by a signal" if _state(self.pid) in (b"T", b"t") else "lives"


def start_ticks(pid: int) -> int | None:
    """The start time of a process in ticks since boot; None if there is no such process, or it is a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def _state(pid: int) -> bytes:
    return next(iter(_stat(pid)), b"")


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """A small file of the state directory; empty if it is missing or half written."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def coordinator_of(state_dir: Path) -> RunProcess | None:
    """The coordinator, if its process lives."""
    return _living("coordinator", state_dir / "coordinator.json")


def left_up(state_dir: Path) -> bool:
    """Whether a run was brought up and has not been taken down since, even if all its processes are dead."""
    return (state_dir / "coordinator.json").exists()


def keepers_of(state_dir: Path) -> list[RunProcess]:
    """The living coordinator and host agents of this host."""
    coordinator = coordinator_of(state_dir)
    return [*([coordinator] if coordinator is not None else []), *agents_of(state_dir)]


def agents_of(state_dir: Path) -> list[RunProcess]:
    """The living host agents of this host."""
    found = (_living(f"host agent {file.parent.name}", file) for file in _agent_files(state_dir))
    return [living for living in found if living is not None]


def given_up(state_dir: Path) -> str:
    """The reason why a living host agent no longer restarts the coordinator; empty if it does."""
    reasons = (read_json(file).get("coordinator") for file in _agent_files(state_dir) if _living("", file) is not None)
    return next((str(why) for why in reasons if why), "")


def _agent_files(state_dir: Path) -> list[Path]:
    return sorted(state_dir.glob("hosts/*/agent.json"))


def _living(what: str, path: Path) -> RunProcess | None:
    found = read_json(path)
    pid, ticks = found.get("pid"), found.get("start_ticks", 0)
    if not isinstance(pid, int) or not isinstance(ticks, int) or found.get("boot_id", boot_id()) != boot_id():
        return None
    living = RunProcess(what, pid, ticks)
    return living if living.alive else None
