"""Defines the events that a supervisor handles: facts about processes, and the wishes of operators.

An event about a process names its incarnation. An event about another incarnation than the present one changes only the
list of ghosts.
"""

from __future__ import annotations

import msgspec

from agentrl.protocol.messages import PROTOCOL_MINOR, DeviceUse, ExitStatus, HostFacts, ProcessInfo, UnitOnHost
from agentrl.protocol.specs import GroupSpec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    dice: float = 0.5
    """A number in [0, 1) drawn by the caller, for jitter."""
    stimulus: str = ""
    """The id of this event. All instructions, units and processes that follow from it name it."""


class UnitEvent(Event, frozen=True):
    """An event about one unit. `unit_events` has the table of what it does in which state."""

    unit: str


class IncarnationEvent(UnitEvent, frozen=True):
    """It counts only if this is the present incarnation of the unit."""

    incarnation: int


# ---- from operators ----


class OperatorEvent(Event, frozen=True):
    by: str
    """The operation."""


class Applied(OperatorEvent, frozen=True):
    """The run consists of these groups from now on."""

    specs: tuple[GroupSpec, ...]
    reading: bool = False
    """Start only the groups that are needed to read the run. The others keep their desired state and their files."""


class Scaled(OperatorEvent, frozen=True):
    group: str
    count: int
    idle: frozenset[str] = frozenset()
    """Units without work, which a scale-down stops first."""


class StopWanted(OperatorEvent, frozen=True):
    """Stop the unit and keep it stopped; `patient` waits for its work without a limit."""

    unit: str
    because: str
    now: bool = False
    patient: bool = False


class DrainCancelled(OperatorEvent, frozen=True):
    unit: str


class RestartWanted(OperatorEvent, frozen=True):
    units: tuple[str, ...]
    at_once: bool = False


class HostDrained(OperatorEvent, frozen=True):
    """Drain the host, or allow units on it after a drain. Without an operation (`by`), the drain carries out an earlier
    `up` that no longer names the host, so the units keep the aims of the operations that wait for them."""

    host: str
    draining: bool = True


class Paused(OperatorEvent, frozen=True):
    """`target` is `run`, a group or a unit."""

    target: str
    paused: bool


class DownWanted(OperatorEvent, frozen=True):
    at_once: bool = False


class DeathConfirmed(IncarnationEvent, frozen=True):
    """An operator confirms that this incarnation of a lost unit is dead."""

    by: str
    """The operation."""


# ---- from host agents ----


class HostEvent(IncarnationEvent, frozen=True):
    """What a host reports of an incarnation counts only if that host holds it."""

    host: str


class HostConnected(Event, frozen=True):
    host: str
    facts: HostFacts
    inventory: tuple[UnitOnHost, ...]
    age_s: float = 0.0
    """The age of the host agent."""
    devices: tuple[DeviceUse, ...] = ()
    minor: int = PROTOCOL_MINOR
    """The minor version of the protocol that the host agent speaks."""


class DevicesHeld(Event, frozen=True):
    """A host reports which processes compute on its devices."""

    host: str
    devices: tuple[DeviceUse, ...]


class HostSilent(Event, frozen=True):
    host: str
    for_s: float
    reporting: frozenset[str] = frozenset()
    """The units on it whose own heartbeats still arrive."""


class HostLeaving(Event, frozen=True):
    """The agent of the host reports that it ends at `until`. Its next hello cancels this."""

    host: str
    until: float
    why: str


class HostAwaited(Event, frozen=True):
    """A host of the run file that a placement starts has not arrived yet, or is gone."""

    host: str
    why: str
    """Why it is not there; empty if no placement starts it any more."""
    in_vain: bool = False
    """Its start failed repeatedly. The tries go on, but no command waits for them."""


class HostForgotten(Event, frozen=True):
    """A silent host that holds no unit is no longer a host of the run."""

    host: str
    by: str = ""
    """The operation by which a person declares that all processes there are dead."""
    gone: str = ""
    """Why its placement is certain that all processes there are dead: the job was preempted, the pod evicted."""


class Spawned(HostEvent, frozen=True):
    pid: int
    start_ticks: int


class SpawnFailed(HostEvent, frozen=True):
    reason: str
    final: bool


class Exited(HostEvent, frozen=True):
    exit: ExitStatus


class TreeGone(HostEvent, frozen=True):
    """No process of the incarnation is left on this host."""

    swept: tuple[ProcessInfo, ...] = ()


class ProbeChanged(HostEvent, frozen=True):
    kind: str
    ok: bool
    detail: str = ""


class ProcessStopped(HostEvent, frozen=True):
    """The leader was stopped by a signal (state T), or runs again."""

    stopped: bool


# ---- from units, and from checks of their heartbeats ----


class UnitReady(IncarnationEvent, frozen=True):
    ready: bool = True


class UnitBye(IncarnationEvent, frozen=True):
    code: int
    reason: str = ""


class StopExtended(IncarnationEvent, frozen=True):
    """A draining unit needs more time."""

    by_s: float


class StartExtended(IncarnationEvent, frozen=True):
    """A starting unit is inside an announced phase that ends at `until`."""

    until: float


class PhaseAnnounced(IncarnationEvent, frozen=True):
    """A unit may be silent until then. It is persisted, because the next coordinator needs it too."""

    until: float


class UnitSuspect(IncarnationEvent, frozen=True):
    """The unit is silent or past its phase deadline. This is shown and has no other effect."""

    because: str


class UnitReports(IncarnationEvent, frozen=True):
    """Heartbeats of a unit arrive again."""


class UnitHung(IncarnationEvent, frozen=True):
    """The unit is silent for too long outside any announced phase, or too long past its phase deadline."""

    because: str


# ---- time ----


class DeathsAged(UnitEvent, frozen=True):
    """A death of that unit has left the restart window and no longer counts."""


class RetiredAged(Event, frozen=True):
    """Only the newest `keep` of the slots that were scaled away are still of interest."""

    keep: int


class TimerFired(UnitEvent, frozen=True):
    at: float
    """The deadline that the timer was started for."""
