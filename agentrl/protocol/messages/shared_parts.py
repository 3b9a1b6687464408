"""Facts about processes, hosts and waits that several messages and rows contain."""

from __future__ import annotations

import msgspec

from agentrl.protocol.specs import Rank


class ExitStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a process ended. Without code and signal its end was not observed; `unknown` says why."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    unknown: str = ""
    with_host: bool = False
    """It ended because its host rebooted, or its host lost its entry in the ledger. The unit is not at fault."""

    def __str__(self) -> str:
        if self.oom:
            return "killed for memory"
        if self.signal is not None:
            return f"signal {self.signal}"
        if self.code is not None:
            return f"exit {self.code}"
        return f"ended, status unknown ({self.unknown})"


class UnitPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process or connection that a unit keeps alive by itself, such as a tool server of a toolbox."""

    name: str
    state: str
    """starting, serving, down."""
    status: str = ""
    """A sentence for a person, such as why it does not serve."""
    died: int = 0
    """Unplanned ends in this incarnation of the unit."""
    last_death: str = ""
    died_lately: int = 0
    """How many of these ends were within five minutes."""
    unhealthy: str = ""
    """What its health check found."""
    memory_share: float = 0.0
    """The memory of its fullest sandbox as a share of the limit; 0 below half of it."""
    fullest: str = ""
    """The id of that sandbox."""


class ProcessInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process, for a person. Command lines never contain secrets, so they may be shown."""

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
    """Set after its end. The entry is kept until the coordinator acknowledges it."""
    tail: tuple[str, ...] = ()
    """Its last log lines, if it ended."""
    ready: bool | None = None
    """The last result of the readiness probe; None without a probe."""
    group_empty: bool = False
    """True if nothing of the process tree of the incarnation is left."""
    devices: tuple[str, ...] = ()
    """The devices that it was started with."""
    rank: Rank | None = None
    """Its place in its gang."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a unit waits for now."""

    on: str
    """A unit (`judge-0`), or a resource in words (`batch`, `task g17`)."""
    what: str = ""
    age_s: float = 0.0
    at_most_s: float | None = None
    who: str = ""
    """What waits, if it is not the reporting unit: `batch`, `task g17`. `what` then describes `on`."""


class RepeatedError(msgspec.Struct, frozen=True):
    """An error that a unit writes to its log again and again."""

    text: str
    """The text of its first occurrence."""
    count: int
    first_at: float
    last_at: float


class UnitStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements of the process tree of one unit."""

    unit: str
    incarnation: int
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    processes: int = 1
    state: str = "S"
    """The state letter of the leader in /proc; T is a stopped process."""
    repeated_errors: tuple[RepeatedError, ...] = ()


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """An accelerator of a host, or a slice of one."""

    id: str
    """Unique on its host, and the same after a restart."""
    visible: str
    """The value that makes a program use it: for CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES."""
    kind: str
    """cuda, mig (a slice), rocm, declared."""
    name: str = ""
    """The model."""
    memory_bytes: int = 0
    island: str = ""
    """Devices with the same one have fast links between them. Empty: not linked to any."""


class DeviceUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement of a device."""

    id: str
    memory_used_bytes: int = 0
    busy_percent: float = 0.0
    temperature_c: float = 0.0
    processes: tuple[ProcessInfo, ...] = ()
    """The processes that compute on it. `incarnation` is empty if the process belongs to no unit of the run."""
    not_measured: str = ""
    """Why there are no numbers."""


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The capacity of a host."""

    cpus: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    """The number of devices. An agent that sends no list of devices sends only this number."""
    cgroup_kill: bool = False
    cgroup_memory: bool = False
    boot_id: str = ""
    agent_version: str = ""
    devices: tuple[Device, ...] = ()
    without_devices: str = ""
    """Why devices of the host may be missing in the list: a sentence."""
