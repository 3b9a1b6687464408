"""Group specs: the part of desired state that is stored, sent to host agents and compared by plans.

Invariants: a spec is immutable and complete (the start of a unit needs only the spec and an incarnation); secrets are
references in it (`env:NAME`, `file:PATH`), which the host agent resolves at the spawn.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec


class Role(enum.StrEnum):
    """The kinds of process."""

    COORDINATOR = "coordinator"
    HOST = "host"
    STEWARD = "steward"
    TOOLBOX = "toolbox"
    ENGINE = "engine"
    SAMPLER = "sampler"
    TRAINER = "trainer"
    MONGO = "mongo"
    SIDECAR = "sidecar"


READ_FROM = frozenset({Role.MONGO, Role.STEWARD})
"""The roles of a run that is up only for reading: its store, and the steward that answers queries."""


class Life(enum.StrEnum):
    """What exit 0 means: the end of a job, or the death of a service."""

    SERVICE = "service"
    JOB = "job"


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """A check of a process from outside. Exactly one of exec, http and tcp is set."""

    exec: tuple[str, ...] = ()
    http: str = ""
    tcp: str = ""
    interval_s: float = 2.0
    timeout_s: float = 5.0
    failures: int = 3
    """How many failures in a row mean that the probe fails."""


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one unit reserves on its host. Zero reserves nothing."""

    cpus: float = 0.0
    gpus: int | float = 0
    """Whole devices, or a share of one (0.5). A whole number stays one, which earlier agents read too."""
    memory_max_bytes: int = 0
    """Hard limit: enforced by a cgroup where one is writable, otherwise by the host agent's own sampling."""


class Rank(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of one incarnation in its gang. All ranks of one epoch have equal values except their own numbers."""

    epoch: int
    """Grows with every start of the gang."""
    rank: int
    ranks: int
    port: int
    """Where the ranks meet, on the host of rank 0."""
    local_rank: int = 0
    local_ranks: int = 1
    """How many ranks are on the same host; their numbers are consecutive."""
    node: int = 0
    """The number of its host among those of the gang."""
    nodes: int = 1
    address: str = ""
    """The private address of the host of rank 0; empty if all of them are on one host, which then use loopback."""
    own_address: str = ""
    """The private address of its own host."""
    visible: tuple[str, ...] = ()
    """The devices of all ranks on its host, in the order of their local ranks."""


class GroupSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All units of one name: `web` has the units `web-0`, `web-1`, ... up to its count."""

    name: str
    role: Role
    command: tuple[str, ...]
    count: int = 1
    env: dict[str, str] = {}
    cwd: str = ""
    life: Life = Life.SERVICE
    speaks: bool = False
    """True if the process uses the unit runtime, which sends a hello and its readiness."""
    ready: Probe | None = None
    live: Probe | None = None
    metrics: Probe | None = None
    """Where a foreign process serves metrics as `name value` lines (Prometheus text): http or exec."""
    after: tuple[str, ...] = ()
    """Groups that must be ready before a unit of this group starts."""
    hosts: tuple[str, ...] = ()
    """Hosts it may run on; empty means any."""
    spread: str = ""
    """`yes`: on as many hosts as possible; `pack`: on as few; empty: where the fewest units are."""
    near: str = ""
    """A group on whose hosts its units are placed first."""
    resources: Resources = Resources()
    drain_grace_s: float = 5.0
    term_grace_s: float = 5.0
    start_deadline_s: float = 60.0
    orphan_lease_s: float = 600.0
    """How long a unit keeps working without a coordinator before it ends."""
    gang: bool = False
    """True if the units of the group are the ranks of one gang, which start and stop together."""
    ranks_per_host: int = 0
    """How many ranks of a gang a host gets at most; 0 is any number."""
    private: dict[str, str] = {}
    """By host: the address on which the ranks of a gang may talk to those of other hosts, without encryption."""
    fenced: bool = False
    """True if all writes of the unit are fenced, so a lost one may be replaced at once."""
    stop_rank: int = 0
    """Lower ranks are stopped first by `down`."""
    log_max_bytes: int = 32 << 20
    permission: str = "viewer"
    """What the processes of a sidecar may command: the name of a permission; empty means nothing."""

    def fingerprint(self) -> str:
        """Equal for specs that start equal processes. It excludes the count, addresses and placement preferences,
        because adding a host must not restart a gang."""
        alike = msgspec.structs.replace(self, count=0, private={}, spread="", near="")
        body = msgspec.json.encode(alike, order="sorted")
        return hashlib.sha256(body).hexdigest()[:16]


def unit_name(group: str, slot: int) -> str:
    return f"{group}-{slot}"


def split_unit(unit: str) -> tuple[str, int]:
    """`sampler-3` -> (`sampler`, 3). Raises ValueError for any other name."""
    group, _, slot = unit.rpartition("-")
    if not group or not slot.isdecimal():
        raise ValueError(f"{unit!r} is not the name of a unit such as sampler-3")
    return group, int(slot)


def incarnation_name(unit: str, incarnation: int) -> str:
    return f"{unit}.{incarnation}"


def split_incarnation(name: str) -> tuple[str, int]:
    """`sampler-3.7` -> (`sampler-3`, 7)."""
    unit, _, number = name.rpartition(".")
    if not unit or not number.isdecimal():
        raise ValueError(f"{name!r} is not an incarnation such as sampler-3.7")
    return unit, int(number)
