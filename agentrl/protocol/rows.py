"""The rows of the feed: the state of a run for consoles, scripts and recordings.

Invariants: a row is whole (never a delta) and small; its key is `kind/name`; it contains no records and no prompts.
`since_at` and other `*_at` are wall-clock seconds for people; the reader computes ages.
"""

from __future__ import annotations

import enum

import msgspec

from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.messages import DeviceUse, ExitStatus, HostFacts, ProcessInfo, RepeatedError, UnitPart, Wait
from agentrl.protocol.specs import Rank


class UnitState(enum.StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    BACKOFF = "backoff"
    FATAL = "fatal"


KINDS = ("run", "pulse", "group", "unit", "host", "op", "knob", "alert", "incident")
"""The kinds of rows of the feed: the first part of a key."""
ONLY_READ = "only to be read from: nothing is sampled or trained"
"""How messages describe a run that was brought up with `--read-only`."""
COMPLETED = "completed"
"""The state that is shown for a finished job."""
FINISHED = "finished"
"""The state of a run whose training, or whose last job, is complete."""
PAUSED, STANDING = "paused", "standing"
HEALTHY = ("running", PAUSED, FINISHED)
"""States of a run in which no person has to act."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all rows."""


class RunRow(Row, tag="run", frozen=True):
    """Key `run`: the run as a whole."""

    name: str
    uuid: str
    state: str
    """starting, running, paused, standing (processes are well, but no steps are taken), degraded, stopping, stopped,
    finished."""
    reason: str = ""
    desired: str = "up"
    paused: bool = False
    run_dir: str = ""
    started_at: float = 0.0
    """When it was first brought up."""
    up_since_at: float = 0.0
    """When it was last brought up after it was down."""
    coordinator_started_at: float = 0.0
    coordinator_pid: int = 0
    config_source: str = ""
    journal_full: str = ""
    """A sentence while the journal cannot be written and commands are refused; otherwise empty."""
    segment: int = 0
    """Number of the scientific segment; raised by each change of a scientific knob."""
    not_listening: str = ""
    """A sentence while other hosts should reach the coordinator and cannot; otherwise empty."""
    not_recording: str = ""
    """A sentence while the feed should be recorded and is not; otherwise empty."""
    not_exporting: str = ""
    """A sentence while `/metrics` should be served and is not; otherwise empty."""


class GroupRow(Row, tag="group", frozen=True):
    """Key `group/NAME`: desired and actual counts."""

    name: str
    role: str
    desired: int
    ready: int = 0
    other: dict[str, int] = {}
    """The units that are not ready, counted by state; finished jobs are `completed`."""
    paused: bool = False
    command: str = ""
    epoch: int = 0
    """For a gang: the number of its present start, or of its next start while ranks of the last one are still
    ending."""
    epoch_why: str = ""
    """Why the one before it ended."""

    @property
    def done(self) -> bool:
        """Whether all its jobs are finished."""
        return not self.ready and self.other.keys() == {COMPLETED}


class UnitRow(Row, tag="unit", frozen=True):
    """Key `unit/NAME`."""

    unit: str
    group: str
    role: str
    state: UnitState
    reason: str = ""
    """Why it is in this state, in words."""
    since_at: float = 0.0
    desired: bool = True
    incarnation: int = 0
    host: str = ""
    devices: tuple[str, ...] = ()
    """The devices that were given to it."""
    rank: Rank | None = None
    """Its place in its gang."""
    pid: int = 0
    ready_at: float = 0.0
    next_at: float = 0.0
    """When the supervisor acts next (a restart, a deadline)."""
    next_what: str = ""
    restarts: int = 0
    """Unplanned deaths since it was brought up, restarted by a person, or changed."""
    deaths_in_window: int = 0
    attempts: int = 0
    """Starts since then, or since it was last ready, whichever is later."""
    last_exit: ExitStatus | None = None
    done: bool = False
    """A finished job."""
    status: str = ""
    """A sentence from the unit."""
    phase: str = ""
    phase_since_at: float = 0.0
    phase_deadline_at: float = 0.0
    progress: int = 0
    progress_at: float = 0.0
    heard_at: float = 0.0
    waits: tuple[Wait, ...] = ()
    weights: int | None = None
    serving: str = ""
    """What an engine does about versions of the weights: `loading(v3→v4)`, `serving(v4)`."""
    problems: dict[str, str] = {}
    """What keeps the unit from its work: the thing at fault, and a sentence."""
    incomplete: str = ""
    """What a ready unit does not do yet, such as serving a first version."""
    paused: bool = False
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    rss_slope_bytes_per_h: float = 0.0
    rss_over_time: tuple[int, ...] = ()
    """Memory of this incarnation at equal intervals: at most a few dozen values, the newest last."""
    rss_over_s: float = 0.0
    """The time between the first and the last of them."""
    processes: int = 0
    metrics: dict[str, float] = {}
    """The newest values of the metrics that alert rules read."""
    parts: tuple[UnitPart, ...] = ()
    """Its tool servers, in a toolbox."""
    repeated_errors: tuple[RepeatedError, ...] = ()
    """Errors that its log repeats, the most frequent first."""

    @property
    def leads(self) -> bool:
        """Whether it is the rank that represents its gang, or is in no gang."""
        return self.rank is None or self.rank.rank == 0

    @property
    def could_not_start(self) -> bool:
        """Whether its newest incarnation never became a process (no program, no memory), so it has no log."""
        return self.state in (UnitState.FATAL, UnitState.BACKOFF) and self.last_exit is None

    stimulus: str = ""
    """The id of the event that brought it into this state: an operation, or an event that the logs name."""


class HostRow(Row, tag="host", frozen=True):
    """Key `host/NAME`."""

    host: str
    state: str
    """up, starting, silent, lost, draining."""
    since_at: float = 0.0
    facts: HostFacts = HostFacts()
    agent_pid: int = 0
    units: int = 0
    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    disk_free_bytes: int = 0
    disk_full: str = ""
    disk_full_in_s: float | None = None
    """Time until the disk is full at the present rate, from the last measurement; None if it does not fill up."""
    draining: bool = False
    strays: tuple[ProcessInfo, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    """The newest measurement of each device in `facts`."""
    holders: dict[str, tuple[str, ...]] = {}
    """By device: the incarnations that it was given to."""
    occupied: dict[str, str] = {}
    """By device: the process that keeps it from being given to a unit."""
    reason: str = ""
    """Why the host is away, or will soon be."""
    clock_off_s: float = 0.0
    """How far its clock is ahead of the coordinator's; negative if it is behind. 0 if they differ by only a few
    seconds."""


class ToolLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool in the last minute."""

    name: str
    p95_s: float = 0.0
    calls_per_s: float = 0.0
    failures: float = 0.0
    """Share of its calls that failed for infrastructure."""
    before_s: float = 0.0
    """The earlier value of p95_s, if it changed."""
    changed_at: float = 0.0


class BottleneckRow(Row, tag="pulse", frozen=True):
    """Key `pulse`: how busy the parts of the data plane are, and which of them is the bottleneck."""

    sentence: str
    bottleneck: str = ""
    """trainer, engines, tools, admission; empty if nothing waits."""
    since_at: float = 0.0
    window_s: float = 60.0
    busy: dict[str, float] = {}
    """By role: the share of its capacity in use, in slot-seconds."""
    units: dict[str, float] = {}
    """The same for each unit."""
    in_tools: float = 0.0
    """The share of their time that episodes spend in tool calls ..."""
    in_model: float = 0.0
    """... and in model calls."""
    tools: tuple[ToolLoad, ...] = ()
    """The tools that take the most time come first."""


class OperationState(enum.StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        return self not in (OperationState.ACCEPTED, OperationState.RUNNING)


def short(id: str) -> str:
    """The beginning of the id of an operation, as it is shown to people."""
    return id[:8]


class OperationRow(Row, tag="operation", frozen=True):
    """Key `op/ID`: an accepted command and its progress."""

    id: str
    command: str
    summary: str
    who: str
    state: OperationState
    accepted_at: float
    ended_at: float = 0.0
    reason: str = ""
    waiting_for: tuple[str, ...] = ()
    """Units that have not reached their goal, with their state."""
    result: dict[str, KnobValue] = {}
    lines: tuple[str, ...] = ()
    """What was done, in sentences; for `down`, what was found and removed."""
    superseded_by: str = ""
    """The later command for the whole run that replaced it: `down` or `apply`."""


class KnobRow(Row, Knob, tag="knob", frozen=True, kw_only=True):
    """Key `knob/NAME`: the declaration, the value and its last change."""

    value: KnobValue
    revision: int
    in_force: KnobValue = None
    """The value that the owner last reported; it differs from `value` until the boundary."""
    changed_at: float = 0.0
    changed_by: str = ""
    note: str = ""
    before: KnobValue = None
    """The value before the last change; None if it was never changed, or not known."""


class AlertState(enum.StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class Severity(enum.StrEnum):
    INFO = "info"
    WARNING = "warning"
    PAGE = "page"


class AlertRow(Row, tag="alert", frozen=True):
    """Key `alert/ID`. The id is rule and subject: `unit-fatal:web-0`."""

    id: str
    rule: str
    subject: str
    severity: Severity
    state: AlertState
    sentence: str
    since_at: float
    evidence: tuple[str, ...] = ()
    suggest: str = ""
    """A command that repairs the cause, or shows more."""
    acknowledged_by: str = ""
    silenced_until_at: float = 0.0
    silenced_by: str = ""
    silence_why: str = ""
    resolved_at: float = 0.0
    passed: bool = False
    """It ended while it was pending; it is shown for a while, because people saw it."""
    cause: str = ""
    """Id of the active alert that explains this one."""


class IncidentRow(Row, tag="incident", frozen=True):
    """Key `incident/ID`: the unplanned end of a unit, the coordinator or a host agent, with its evidence."""

    id: str
    unit: str
    """The unit, `coordinator` or `host agent`."""
    incarnation: int
    """0 for coordinator and host agent."""
    at: float
    what: str
    """What happened and what was done, in one sentence."""
    exit: ExitStatus | None = None
    host: str = ""
    phase: str = ""
    status: str = ""
    tail: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    done: str = ""
    stacks: str = ""
    swept: tuple[ProcessInfo, ...] = ()
    stimulus: str = ""
    """The id of the event that caused it; empty if the supervisor had none."""


class AuditRow(Row, tag="audit", frozen=True):
    """Who changed what."""

    seq: int
    at: float
    who: str
    command: str
    what: str
    operation: str = ""
    note: str = ""


AnyRow = (
    RunRow | GroupRow | UnitRow | HostRow | BottleneckRow | OperationRow | KnobRow | AlertRow | IncidentRow | AuditRow
)
