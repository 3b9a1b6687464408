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


# ---- from operators ----


class Applied(Event, frozen=True):
    """The run consists of these groups from now on. `by` is the operation."""

    specs: tuple[GroupSpec, ...]
    by: str
    reading: bool = False
    """Start only the groups that are needed to read the run. The others keep their desired state and their files."""


class Scaled(Event, frozen=True):
    group: str
    count: int
    by: str
    idle: frozenset[str] = frozenset()
    """Units without work, which a scale-down stops first."""


class StopWanted(Event, frozen=True):
    """Stop the unit and keep it stopped; `patient` waits for its work without a limit."""

    unit: str
    by: str
    because: str
    now: bool = False
    patient: bool = False


class DrainCancelled(Event, frozen=True):
    unit: str
    by: str


class RestartWanted(Event, frozen=True):
    units: tuple[str, ...]
    by: str
    at_once: bool = False


class HostDrained(Event, frozen=True):
    """Drain the host, or allow units on it after a drain."""

    host: str
    by: str
    draining: bool = True


class Paused(Event, frozen=True):
    """`target` is `run`, a group or a unit."""

    target: str
    paused: bool
    by: str


class DownWanted(Event, frozen=True):
    by: str
    at_once: bool = False


class DeathVouched(Event, frozen=True):
    """An operator states that this incarnation of a lost unit is dead."""

    unit: str
    incarnation: int
    by: str


# ---- from host agents ----


class HostEvent(Event, frozen=True):
    """What a host reports of an incarnation counts only if that host holds it."""

    host: str
    unit: str
    incarnation: int


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


class UnitReady(Event, frozen=True):
    unit: str
    incarnation: int
    ready: bool = True


class UnitBye(Event, frozen=True):
    unit: str
    incarnation: int
    code: int
    reason: str = ""


class StopExtended(Event, frozen=True):
    """A draining unit needs more time."""

    unit: str
    incarnation: int
    by_s: float


class StartExtended(Event, frozen=True):
    """A starting unit is inside an announced phase that ends at `until`."""

    unit: str
    incarnation: int
    until: float


class PhaseAnnounced(Event, frozen=True):
    """A unit may be silent until then. It is persisted, because the next coordinator needs it too."""

    unit: str
    incarnation: int
    until: float


class UnitSuspect(Event, frozen=True):
    """The unit is silent or past its phase deadline. This is shown and has no other effect."""

    unit: str
    incarnation: int
    because: str


class UnitReports(Event, frozen=True):
    unit: str
    incarnation: int


class UnitHung(Event, frozen=True):
    """The unit is silent for too long outside any announced phase, or too long past its phase deadline."""

    unit: str
    incarnation: int
    because: str


# ---- time ----


class DeathsAged(Event, frozen=True):
    """A death of that unit has left the restart window and no longer counts."""

    unit: str


class RetiredAged(Event, frozen=True):
    """Only the newest `keep` of the slots that were scaled away are still of interest."""

    keep: int


class TimerFired(Event, frozen=True):
    unit: str
    at: float
    """The deadline that the timer was started for."""
