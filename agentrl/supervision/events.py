"""What can happen to a supervisor. Facts, never wishes of the supervisor itself.

Invariant: an event that speaks of a process names its incarnation; one about an incarnation that is not the present
one changes nothing but the list of ghosts.
"""

from __future__ import annotations

import msgspec

from agentrl.protocol.messages import ExitStatus, HostFacts, ProcessInfo, UnitOnHost
from agentrl.protocol.specs import GroupSpec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    dice: float = 0.5
    """A number in [0, 1) drawn by the caller, for jitter."""


# ---- what people want ----


class Applied(Event, frozen=True):
    """The run is to consist of these groups. `by` is the operation."""

    specs: tuple[GroupSpec, ...]
    by: str
    reading: bool = False
    """Only what it is read from is to be up; the others stay as they are, in the plan and on disk."""


class Scaled(Event, frozen=True):
    group: str
    count: int
    by: str
    idle: frozenset[str] = frozenset()
    """Units that have nothing under way: they are stopped first."""


class StopWanted(Event, frozen=True):
    """The unit is to stop and stay stopped; `patient` waits for its work without a limit."""

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
    """Nothing is to run on the host (or may again)."""

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
    """A person says that this incarnation of a lost unit is dead."""

    unit: str
    incarnation: int
    by: str


# ---- what host agents say ----


class HostConnected(Event, frozen=True):
    host: str
    facts: HostFacts
    inventory: tuple[UnitOnHost, ...]
    age_s: float = 0.0
    """How long its agent lives."""


class HostSilent(Event, frozen=True):
    host: str
    for_s: float


class Spawned(Event, frozen=True):
    unit: str
    incarnation: int
    pid: int
    start_ticks: int


class SpawnFailed(Event, frozen=True):
    unit: str
    incarnation: int
    reason: str
    final: bool


class Exited(Event, frozen=True):
    unit: str
    incarnation: int
    exit: ExitStatus


class TreeGone(Event, frozen=True):
    """Nothing of the incarnation is left on this host."""

    host: str
    unit: str
    incarnation: int
    swept: tuple[ProcessInfo, ...] = ()


class ProbeChanged(Event, frozen=True):
    unit: str
    incarnation: int
    kind: str
    ok: bool
    detail: str = ""


class ProcessStopped(Event, frozen=True):
    """The leader was stopped by a signal (state T), or runs again."""

    unit: str
    incarnation: int
    stopped: bool


# ---- what units say, and what their silence says ----


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
    """A unit may be silent until then; whoever coordinates after a crash has to know that too."""

    unit: str
    incarnation: int
    until: float


class UnitSuspect(Event, frozen=True):
    """Silent, or past its phase deadline: shown, not acted on."""

    unit: str
    incarnation: int
    because: str


class UnitHeard(Event, frozen=True):
    unit: str
    incarnation: int


class UnitHung(Event, frozen=True):
    """Silent for too long outside any announced phase, or standing beyond its phase deadline."""

    unit: str
    incarnation: int
    because: str


# ---- time ----


class DeathsAged(Event, frozen=True):
    """A death of that unit has left the restart window, so it counts no more."""

    unit: str


class TimerFired(Event, frozen=True):
    unit: str
    at: float
    """The deadline that the timer was started for."""
