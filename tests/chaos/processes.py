"""The processes of a run by role, read from /proc, and signals to them.

Invariants: a process is identified by pid and start time, so no other process is ever signalled; the list does not
depend on coordinator and host agent, because both are killed too.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.host import procfs


class Role(enum.StrEnum):
    SAMPLER = "sampler"
    ENGINE = "engine"
    TOOLBOX = "toolbox"
    TOOL_SERVER = "tool server"
    TRAINER = "trainer"
    STEWARD = "steward"
    MONGOD = "mongod"
    COORDINATOR = "coordinator"
    AGENT = "host agent"


_MODULES = {
    b"daemons.sampler": Role.SAMPLER,
    b"daemons.engine": Role.ENGINE,
    b"daemons.toolbox": Role.TOOLBOX,
    b"assets.shop_server": Role.TOOL_SERVER,
    b"daemons.trainer": Role.TRAINER,
    b"daemons.steward": Role.STEWARD,
    b"daemons.coordinator": Role.COORDINATOR,
    b"daemons.host": Role.AGENT,
}


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    started: int
    """The start time in ticks since the boot."""
    role: Role
    incarnation: str
    """Such as `sampler-0.3`. A child has the incarnation of its unit; coordinator and host agent have none."""

    @property
    def unit(self) -> str:
        return self.incarnation.rpartition(".")[0]

    @property
    def number(self) -> int:
        return int(self.incarnation.rpartition(".")[2] or 0)

    @property
    def alive(self) -> bool:
        return _standing(self.pid) == (self.started, False)

    def kill(self) -> bool:
        return self._signal(signal.SIGKILL)

    def freeze(self) -> bool:
        return self._signal(signal.SIGSTOP)

    def thaw(self) -> bool:
        return self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> bool:
        """Returns False if the process is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
                return True
            return False
        finally:
            os.close(descriptor)

    def __str__(self) -> str:
        return f"{self.role} {self.incarnation or ''} (pid {self.pid})".replace("  ", " ")


@contextlib.contextmanager
def frozen(victim: Process) -> Iterator[None]:
    """Stops the process while the body runs."""
    victim.freeze()
    try:
        yield
    finally:
        victim.thaw()


def processes_of(run: str) -> list[Process]:
    """All processes with the mark of the run and a known role, the oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            marks = dict(pair.split(b"=", 1) for pair in (entry / "environ").read_bytes().split(b"\0") if b"=" in pair)
            if not procfs.is_of_run(marks, run):
                continue
            role = _role((entry / "cmdline").read_bytes().split(b"\0"))
        except OSError:
            continue
        committed_steps = _standing(int(entry.name))
        if role is None or committed_steps is None or committed_steps[1]:
            continue
        incarnation = marks.get(b"AGENTRL_INCARNATION", b"").decode()
        found.append(Process(int(entry.name), committed_steps[0], role, incarnation))
    return sorted(found, key=lambda process: process.started)


def _role(command: list[bytes]) -> Role | None:
    if command and command[0].endswith(b"/mongod") and b"--dbpath" in command:
        return Role.MONGOD
    return next((_MODULES[word] for word in command[1:] if word in _MODULES), None)


def _standing(pid: int) -> tuple[int, bool] | None:
    """Start time, and whether it is a zombie; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19]), fields[0] in "ZX"
