"""What several messages and rows say of processes, hosts, waits and knobs."""

from __future__ import annotations

import msgspec


class ExitStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a process ended. Neither code nor signal: it ended and nobody saw how (`unknown` says why)."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    unknown: str = ""

    def __str__(self) -> str:
        if self.oom:
            return "killed for memory"
        if self.signal is not None:
            return f"signal {self.signal}"
        if self.code is not None:
            return f"exit {self.code}"
        return f"ended, status unknown ({self.unknown})"


class ProcessInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process as a person needs to see it. Secrets never stand in argv, so the command line may be shown."""

    pid: int
    command: str
    start_ticks: int = 0
    incarnation: str = ""
    why: str = ""
    """Why it belongs to the run: mark, descent, cgroup."""


class UnitOnHost(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a host agent's ledger."""

    unit: str
    incarnation: int
    token: str
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    exit: ExitStatus | None = None
    """Set once it ended; the entry is kept until the coordinator acknowledged it."""
    tail: tuple[str, ...] = ()
    """The last log lines of one that ended."""
    ready: bool | None = None
    """What the readiness probe last said; None if there is none."""
    group_empty: bool = False
    """True once nothing of the incarnation's process tree is left."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something a unit waits for right now."""

    on: str
    """A unit (`judge-0`), or a resource in words (`batch`, `task g17`)."""
    what: str = ""
    age_s: float = 0.0
    at_most_s: float | None = None
    who: str = ""
    """Who waits, where that is not the unit that tells it: `batch`, `task g17`. `what` is then said of `on`."""


class UnitStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the host agent measured of one unit's process tree."""

    unit: str
    incarnation: int
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    processes: int = 1
    state: str = "S"
    """The leader's state letter in /proc; T is a stopped process."""


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a host offers."""

    cpus: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    cgroup_kill: bool = False
    cgroup_memory: bool = False
    boot_id: str = ""
    agent_version: str = ""
