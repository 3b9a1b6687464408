"""Every message between a coordinator and its peers: clients, units and host agents.

Invariants: one frame is one tagged struct; unknown fields are ignored and new fields have defaults, so minor versions
talk to each other; an unknown tag is an error. Times that cross a process border are durations, or seconds on the
coordinator's own monotonic clock (`*_ct`); wall-clock times (`*_at`) are for people only.
"""

from __future__ import annotations

import enum

import msgspec

from agentrl.protocol.base import Message
from agentrl.protocol.serving import ToServingUnit, UnitAnswer
from agentrl.protocol.specs import GroupSpec

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0
MAX_MESSAGE_BYTES = 4 << 20


class Permission(enum.StrEnum):
    """What a key may do. `unit` is apart: it may only register and report."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    UNIT = "unit"

    def allows(self, needed: Permission) -> bool:
        if self is Permission.UNIT or needed is Permission.UNIT:
            return self is needed
        return _RANK[self] >= _RANK[needed]


_RANK = {Permission.VIEWER: 0, Permission.OPERATOR: 1, Permission.ADMIN: 2}


# ---- facts shared by several messages ----


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
    log_bytes: int = 0


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a host offers."""

    cpus: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    cgroup_kill: bool = False
    cgroup_memory: bool = False
    boot_id: str = ""
    agent_version: str = ""


class KnobDeclaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A knob that a unit owns: it applies the value and previews it."""

    name: str
    kind: str
    """float, int, bool, str, choice."""
    default: float | int | str | bool | None
    help: str = ""
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    boundary: str = "now"
    scientific: bool = False


# ---- unit -> coordinator ----


class UnitHello(Message, tag="unit_hello", frozen=True):
    """First message of a unit on every (re)connection."""

    major: int
    minor: int
    run: str
    unit: str
    incarnation: int
    token: str
    pid: int
    ready: bool = False
    version: str = ""
    declared: tuple[KnobDeclaration, ...] = ()
    """Knobs that this unit owns: it answers `PreviewKnob` for them and applies `SetKnob`."""
    hears_deaths: bool = False
    """It wants a `UnitDied` for every life that ends."""


class Beat(Message, tag="beat", frozen=True):
    """Sent every `heartbeat_s` by the thread that owns the socket, with what the work loop last wrote."""

    seq: int
    progress: int = 0
    loop_lag_s: float = 0.0
    """How long ago an asyncio main loop last turned; 0 for blocking loops."""
    ack: bool = False
    """Asks for a BeatAck, by which a unit knows that the coordinator is still there."""


class UnitReport(Message, tag="unit_report", frozen=True):
    """The unit's own account of itself; sent when it changes, at most twice a second."""

    ready: bool = False
    status: str = ""
    phase: str = ""
    phase_age_s: float = 0.0
    at_most_s: float | None = None
    """The phase's deadline, counted from its begin or its last progress."""
    waits: tuple[Wait, ...] = ()
    weights: int | None = None
    """The version of the weights it works with, where it has any."""
    serving: str = ""
    """What an engine does about versions: `loading(v3→v4)`, `serving(v4)`."""
    paused: bool = False
    draining: bool = False
    knobs: dict[str, float | int | str | bool | None] = msgspec.field(default_factory=dict)
    """Knob values in force in this unit, with the boundary already passed."""
    extend_stop_s: float | None = None
    """More time wanted for a drain that is under way."""


class UnitMetrics(Message, tag="unit_metrics", frozen=True):
    values: dict[str, float]


class Bye(Message, tag="bye", frozen=True):
    """The unit is about to exit by itself. Makes the status known even when nobody is its parent."""

    code: int
    reason: str = ""


class KnobPreviewed(Message, tag="knob_previewed", frozen=True):
    ask: str
    sentence: str
    exact_undo: bool = True
    loses: int = 0
    error: str = ""


# ---- coordinator -> unit ----


class Welcome(Message, tag="welcome", frozen=True):
    """Answer to every hello that is accepted."""

    epoch: str
    run: str
    run_name: str
    now_ct: float
    heartbeat_s: float = 2.0
    stats_every_s: float = 0.0
    """How often a host agent measures its units; 0 leaves it to the agent."""
    coordinator_silent_s: float = 0.0
    """Silence after which a host agent replaces a coordinator of its own; 0 leaves it to the agent."""
    orphan_lease_s: float = 600.0
    permission: Permission = Permission.UNIT
    server_version: str = ""
    knobs: dict[str, float | int | str | bool | None] = msgspec.field(default_factory=dict)
    paused: bool = False


class Refused(Message, tag="refused", frozen=True):
    """Answer to a hello that is not accepted. `final` tells a unit to stop: it has been replaced or is unknown."""

    code: int
    message: str
    hint: str = ""
    final: bool = False


class WhoAreYou(Message, tag="who_are_you", frozen=True):
    """The coordinator got a message from a peer it does not know (it was restarted): say hello again."""


class BeatAck(Message, tag="beat_ack", frozen=True):
    seq: int
    now_ct: float


class Drain(Message, tag="drain", frozen=True):
    """Finish what is under way, then exit 0. After `grace_s` comes SIGTERM."""

    grace_s: float


class CancelDrain(Message, tag="cancel_drain", frozen=True):
    pass


class SetPaused(Message, tag="set_paused", frozen=True):
    paused: bool


class SetKnob(Message, tag="set_knob", frozen=True):
    name: str
    value: float | int | str | bool | None
    revision: int


class PreviewKnob(Message, tag="preview_knob", frozen=True):
    ask: str
    name: str
    value: float | int | str | bool | None


# ---- host agent -> coordinator ----


class HostHello(Message, tag="host_hello", frozen=True):
    """First message of a host agent on every (re)connection, with its whole ledger."""

    major: int
    minor: int
    run: str
    host: str
    agent_pid: int
    agent_start_ticks: int
    facts: HostFacts
    inventory: tuple[UnitOnHost, ...] = ()
    state_dir: str = ""


class HostBeat(Message, tag="host_beat", frozen=True):
    seq: int


class HostStats(Message, tag="host_stats", frozen=True):
    units: tuple[UnitStats, ...]
    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    disk_free_bytes: int = 0
    disk_full: str = ""
    """A sentence if the agent could not write (logs, ledger)."""
    strays: tuple[ProcessInfo, ...] = ()
    """Processes with the run's mark that belong to no living incarnation."""


class Spawned(Message, tag="spawned", frozen=True):
    unit: str
    incarnation: int
    pid: int
    start_ticks: int


class SpawnFailed(Message, tag="spawn_failed", frozen=True):
    """The process could not be started at all (no such program, no permission, no memory)."""

    unit: str
    incarnation: int
    reason: str
    final: bool = False
    """True if trying again cannot help (the program does not exist)."""


class Exited(Message, tag="exited", frozen=True):
    unit: str
    incarnation: int
    exit: ExitStatus
    tail: tuple[str, ...] = ()
    """Its last log lines."""


class GroupEmpty(Message, tag="group_empty", frozen=True):
    """Nothing of the incarnation's process tree is left."""

    unit: str
    incarnation: int
    swept: tuple[ProcessInfo, ...] = ()
    """Processes that outlived their leader and were killed."""


class Probed(Message, tag="probed", frozen=True):
    """The readiness or liveness of a foreign process changed."""

    unit: str
    incarnation: int
    kind: str
    """`ready` or `live`."""
    ok: bool
    detail: str = ""


class ProcessState(Message, tag="process_state", frozen=True):
    """The leader was stopped (T) or runs again."""

    unit: str
    incarnation: int
    stopped: bool


class CoordinatorTrouble(Message, tag="coordinator_trouble", frozen=True):
    """What a host agent saw happen to the coordinator that it guards; told to whoever is the coordinator then."""

    pid: int
    what: str
    done: str
    age_s: float = 0.0
    exit: ExitStatus | None = None
    tail: tuple[str, ...] = ()
    """The last lines of its log."""
    log: str = ""


class Scraped(Message, tag="scraped", frozen=True):
    """Numbers that a foreign process shows."""

    unit: str
    incarnation: int
    values: dict[str, float]


class Answer(Message, tag="answer", frozen=True):
    """Answer of a host agent to an Ask of the same id; `body` is msgpack of the type that the Ask promises."""

    ask: str
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    code: int = 0
    """The exit code of the error's kind."""


# ---- coordinator -> host agent ----


class Spawn(Message, tag="spawn", frozen=True):
    """Start this incarnation. Idempotent: an incarnation that is in the ledger is never started a second time."""

    unit: str
    incarnation: int
    token: str
    spec: GroupSpec
    coordinator: str
    """Address that the unit connects to; empty for the one at which its host agent found the coordinator."""


class SignalUnit(Message, tag="signal_unit", frozen=True):
    """Send a signal to the leader's process group (or only to the leader)."""

    unit: str
    incarnation: int
    signal: int
    leader_only: bool = False


class KillTree(Message, tag="kill_tree", frozen=True):
    """SIGKILL everything of the incarnation until nothing is left; answered by Exited (once) and GroupEmpty."""

    unit: str
    incarnation: int


class Forget(Message, tag="forget", frozen=True):
    """The end of these incarnations is durable in the journal: their ledger entries may go."""

    incarnations: tuple[str, ...]


class Ask(Message, tag="ask", frozen=True):
    """A question to a host agent. Exactly one of the requests is in `what`."""

    ask: str
    what: ReadLog | ScanRun | DumpStacks


class ReadLog(msgspec.Struct, frozen=True, tag="read_log", omit_defaults=True):
    """A range of a unit's log: LogChunk. A negative offset counts from the end."""

    unit: str
    incarnation: int
    """0 means the newest that has a log."""
    offset: int = -65536
    limit: int = 65536


class LogChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    unit: str
    incarnation: int
    offset: int
    data: bytes
    size: int
    """Size of the whole log now; offset + len(data) == size means the end was reached."""
    rotation: int = 0
    """How often this log was cut; a follower that sees it change starts again at 0."""


class ScanRun(msgspec.Struct, frozen=True, tag="scan_run", omit_defaults=True):
    """Which processes on the host belong to the run: ScanReport. With `kill` they are ended first."""

    kill: bool = False


NONE_LEFT = "none of the run is left"
"""How the line ends that `down` has about a host on which everything ended."""


class ScanReport(msgspec.Struct, frozen=True, omit_defaults=True):
    host: str
    examined: int
    found: tuple[ProcessInfo, ...] = ()
    killed: tuple[ProcessInfo, ...] = ()
    unproven: str = ""
    """What could not be proven, and why (no cgroup; environments of other users unreadable)."""


class DumpStacks(msgspec.Struct, frozen=True, tag="dump_stacks", omit_defaults=True):
    """Stacks of all units on the host that can show them: StackReport."""

    units: tuple[str, ...] = ()
    """Empty means all."""


class StackReport(msgspec.Struct, frozen=True, omit_defaults=True):
    host: str
    stacks: dict[str, str]
    """By incarnation name; for a process that cannot be asked, its kernel state in words."""


class AgentExit(Message, tag="agent_exit", frozen=True):
    """`down`: the host agent ends, after everything of its host ended."""


# ---- clients ----


class ClientHello(Message, tag="client_hello", frozen=True):
    major: int
    minor: int
    run: str = ""
    """Empty: whatever run the coordinator has."""
    who: str = ""
    """user@host, for the audit; where keys are used the key's name counts instead."""
    version: str = ""


class Request(Message, tag="request", frozen=True):
    """A command or query. The id is chosen by the caller; a repeated id is answered, never executed again."""

    id: str
    name: str
    args: msgspec.Raw = msgspec.Raw(b"\x80")
    deadline_ct: float | None = None
    """Refused when it arrives later than this on the coordinator's clock."""
    dry_run: bool = False
    """Only compute the effect."""


class Reply(Message, tag="reply", frozen=True):
    id: str
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


class ErrorReply(Message, tag="error", frozen=True):
    id: str
    code: int
    message: str
    hint: str = ""


class SnapshotRow(Message, tag="row", frozen=True):
    """One row of a snapshot, in answer to the query `snapshot`."""

    id: str
    key: str
    value: msgspec.Raw


class SnapshotEnd(Message, tag="snapshot_end", frozen=True):
    """Closes a snapshot: apply the feed from `seq + 1` on."""

    id: str
    epoch: str
    seq: int


FromUnit = UnitHello | Beat | UnitReport | UnitMetrics | Bye | KnobPreviewed | UnitAnswer
ToUnit = (
    Welcome | Refused | WhoAreYou | BeatAck | Drain | CancelDrain | SetPaused | SetKnob | PreviewKnob | ToServingUnit
)
FromHost = (
    HostHello
    | HostBeat
    | HostStats
    | Spawned
    | SpawnFailed
    | Exited
    | GroupEmpty
    | Probed
    | ProcessState
    | CoordinatorTrouble
    | Scraped
    | Answer
)
ToHost = Welcome | Refused | WhoAreYou | BeatAck | Spawn | SignalUnit | KillTree | Forget | Ask | AgentExit
FromClient = ClientHello | Request
ToClient = Welcome | Refused | WhoAreYou | Reply | ErrorReply | SnapshotRow | SnapshotEnd

ToCoordinator = FromUnit | FromHost | FromClient
FromCoordinator = ToUnit | ToHost | ToClient
