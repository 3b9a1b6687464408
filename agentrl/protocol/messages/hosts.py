"""Between a host agent and the coordinator, in both directions."""

from __future__ import annotations

import msgspec

from agentrl.protocol.message_base import Message
from agentrl.protocol.messages.shared_parts import DeviceUse, ExitStatus, HostFacts, ProcessInfo, UnitOnHost, UnitStats
from agentrl.protocol.specs import GroupSpec, Rank

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
    agent_age_s: float = 0.0
    """How long ago this agent started, because a restarted coordinator did not see its start."""
    key: str = ""
    """Proves that it is the machine that joined as this host. Sent only to a coordinator that has proved itself."""
    machine_id: str = ""
    units_key: str = ""
    """The public half of the key that its units connect with, on another host than the coordinator's."""
    devices: tuple[DeviceUse, ...] = ()
    """The first measurement, so that the coordinator knows which devices are in use before it assigns one."""


class TunnelOpened(Message, tag="tunnel_opened", frozen=True):
    """The tunnel of this host listens, or its certificate has reached half of its lifetime."""

    request: str
    """A certificate request (PEM) for the key of the tunnel, which the coordinator's authority signs."""
    port: int
    address: str = ""
    """The address at which other hosts reach this one, if it knows; the run file may name another."""


class HostLeaving(Message, tag="host_leaving", frozen=True):
    """The agent ends soon, whatever happens: its pod is evicted, or its job reaches its time limit. The coordinator
    lets the units there finish, and answers with AgentExit when none is left."""

    within_s: float
    why: str = ""


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
    """Processes with the mark of the run that belong to no living incarnation."""
    devices: tuple[DeviceUse, ...] = ()
    wall_at: float = 0.0
    """What the clock of the host shows, to compare it with the coordinator's; 0 from an earlier version."""


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
    """True if another try cannot help, because the program does not exist."""


class Exited(Message, tag="exited", frozen=True):
    unit: str
    incarnation: int
    exit: ExitStatus
    tail: tuple[str, ...] = ()
    """Its last log lines."""
    group_empty: bool = False
    """True if the rest of its process tree has ended too, so no GroupEmpty follows. With one message instead of two the
    coordinator can decide, persist and order the replacement in one turn."""


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
    """What happened to the coordinator that a host agent guards, sent to the next coordinator."""

    pid: int
    what: str
    done: str
    age_s: float = 0.0
    exit: ExitStatus | None = None
    tail: tuple[str, ...] = ()
    """The last lines of its log."""
    log: str = ""


class Scraped(Message, tag="scraped", frozen=True):
    """Metrics of a foreign process."""

    unit: str
    incarnation: int
    values: dict[str, float]


class Answer(Message, tag="answer", frozen=True):
    """The answer of a host agent to the Ask with the same `ask`; `body` is msgpack of the type that it names."""

    ask: str
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    code: int = 0
    """The exit code of the kind of error."""


# ---- coordinator -> host agent ----


class Spawn(Message, tag="spawn", frozen=True):
    """Start this incarnation. Idempotent: an incarnation in the ledger is never started again."""

    unit: str
    incarnation: int
    token: str
    spec: GroupSpec
    coordinator: str
    """The address that the unit connects to; empty for the address that the host agent uses."""
    devices: tuple[str, ...] = ()
    """The devices of the unit."""
    traceparent: str = ""
    """The trace of the operation that waits for it, in the form of W3C Trace Context; empty if none waits."""
    rank: Rank | None = None
    """Its place in its gang."""
    stimulus: str = ""
    """The id of the event that caused it, for the logs of host and unit."""


class OpenTunnel(Message, tag="open_tunnel", frozen=True):
    """Open the tunnel of this host and listen for the other hosts of the run. Answered by TunnelOpened."""

    bind: str = ""
    """Empty: the address from which the host reaches the coordinator."""
    port: int = 0
    """0: any free port."""
    cache_bytes: int = 0
    """The limit of what the host keeps of other hosts' files; 0: the default."""


class TunnelPeers(Message, tag="tunnel_peers", frozen=True):
    """The hosts of the run that have tunnels. Sent to each of these hosts at every change."""

    certificate: str
    authority: str
    peers: dict[str, str]
    """HOST:PORT by the name of the host. An entry without HOST is on the host of the coordinator."""


class RunSecrets(Message, tag="run_secrets", frozen=True):
    """What units on another host than the coordinator's need to call services. Sent before they are started."""

    http_token: str
    mongo_url: str = ""
    """The URL of the embedded server, as used on its own host; empty if the run file has a URL."""
    mongo_host: str = ""
    outside_url: str = ""
    """`mongo.url` of the run file, as the coordinator read it; empty for an embedded server."""
    outside_files: dict[str, str] = msgspec.field(default_factory=dict)
    """The text of the files that this URL names, by the option of the URL."""


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
    """The end of these incarnations is durable in the journal, so their ledger entries may be removed."""

    incarnations: tuple[str, ...]


class Ask(Message, tag="ask", frozen=True):
    """A request to a host agent."""

    ask: str
    what: ReadLog | ScanRun | DumpStacks


class ReadLog(msgspec.Struct, frozen=True, tag="read_log", omit_defaults=True):
    """A range of the log of a unit. The answer is a LogChunk. A negative offset counts from the end."""

    unit: str
    incarnation: int
    """0 means the newest one with a log."""
    offset: int = -65536
    limit: int = 65536


class LogChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    unit: str
    incarnation: int
    offset: int
    data: bytes
    size: int
    """The present size of the whole log; offset + len(data) == size at its end."""
    rotation: int = 0
    """How often this log was cut; a follower that sees it change starts again at 0."""


class ScanRun(msgspec.Struct, frozen=True, tag="scan_run", omit_defaults=True):
    """Find the processes of the run on the host; with `kill`, end them first. The answer is a ScanReport."""

    kill: bool = False


NONE_LEFT = "none of the run is left"
"""The end of the line of `down` about a host on which everything ended."""


class ScanReport(msgspec.Struct, frozen=True, omit_defaults=True):
    host: str
    examined: int
    found: tuple[ProcessInfo, ...] = ()
    killed: tuple[ProcessInfo, ...] = ()
    unproven: str = ""
    """What could not be proven, and why (no cgroup, or unreadable environments of other users)."""


class DumpStacks(msgspec.Struct, frozen=True, tag="dump_stacks", omit_defaults=True):
    """Collect the stacks of the units on the host. The answer is a StackReport."""

    units: tuple[str, ...] = ()
    """Empty means all."""


class StackReport(msgspec.Struct, frozen=True, omit_defaults=True):
    host: str
    stacks: dict[str, str]
    """By incarnation; for a process that cannot write its stacks, its kernel state in words."""


class AgentExit(Message, tag="agent_exit", frozen=True):
    """The host agent has to end, because `down` has ended everything on its host, or because it wanted to leave."""
