"""Defines the state of the supervisor: the run, its groups, slots and hosts. It can be persisted and loaded.

Invariants:
- A slot makes only the moves of `STATE_MOVES`. Any other move raises, with the history of the unit.
- An incarnation number of a unit is used once.
- `story` contains the last transitions with their reasons, to explain an illegal one.
- A slot has at most one timer; a timer without the slot's present deadline is stale.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentrl.protocol.messages import PROTOCOL_MINOR, ExitStatus, HostFacts
from agentrl.protocol.rows import UnitState as S
from agentrl.protocol.specs import READ_FROM, GroupSpec, Rank

STORY_LENGTH = 12

STATE_MOVES: dict[S, frozenset[S]] = {
    S.PENDING: frozenset({S.STARTING, S.STOPPED, S.FATAL}),
    S.STARTING: frozenset({S.READY, S.STOPPING, S.DRAINING, S.PENDING, S.BACKOFF, S.STOPPED, S.LOST, S.FATAL}),
    S.READY: frozenset({S.SUSPECT, S.DRAINING, S.STOPPING, S.PENDING, S.BACKOFF, S.STOPPED, S.LOST, S.FATAL}),
    S.SUSPECT: frozenset({S.READY, S.DRAINING, S.STOPPING, S.PENDING, S.BACKOFF, S.STOPPED, S.LOST, S.FATAL}),
    S.LOST: frozenset({S.READY, S.STARTING, S.PENDING, S.STOPPED, S.BACKOFF, S.FATAL}),
    S.DRAINING: frozenset({S.READY, S.STOPPING, S.PENDING, S.BACKOFF, S.LOST, S.FATAL}),
    S.STOPPING: frozenset({S.STOPPED, S.PENDING, S.BACKOFF, S.LOST, S.FATAL}),
    S.BACKOFF: frozenset({S.STARTING, S.PENDING, S.STOPPED, S.FATAL}),
    S.STOPPED: frozenset({S.PENDING}),
    S.FATAL: frozenset({S.PENDING, S.STOPPED}),
}

WITH_PROCESS = frozenset({S.STARTING, S.READY, S.SUSPECT, S.DRAINING, S.STOPPING, S.LOST})
"""States in which a process of the current incarnation may be alive."""

IN_SERVICE = frozenset({S.STARTING, S.READY, S.SUSPECT})
"""States in which a unit can be stopped."""

MAY_STAY = IN_SERVICE | {S.DRAINING, S.LOST}
"""States in which the incarnation can continue: a drain is cancelled, or a lost unit returns."""


class IllegalMoveError(Exception):
    """A transition that the table does not have, so a bug in the supervisor. The message contains the history of the
    unit.
    """


class RunState(msgspec.Struct):
    """Desired state of the run as a whole."""

    up: bool = False
    up_since_at: float = 0.0
    paused: bool = False
    draining_hosts: set[str] = set()
    desired_by: str = ""
    stop_now: bool = False
    hosts: set[str] = set()
    """The hosts that were part of the run since its last `up`. `down` needs a report from each of them."""
    retired: dict[str, int] = {}
    """By group: the highest incarnation number of its forgotten slots. Later slots continue the numbers."""
    epochs: dict[str, int] = {}
    """The last epoch of each forgotten gang. A later gang of that name continues the numbers."""
    reading: bool = False
    """Only the groups that are needed to read the run are up. The others do not change until an `up` of the whole
    run.
    """


class GroupState(msgspec.Struct):
    spec: GroupSpec
    file_count: int
    """The count in the run file; a count set by `scale` survives `up` until this changes."""
    counted_by: str = ""
    """The operation that set the present count."""
    paused: bool = False
    gang_epoch: int = 0
    """For a gang: members of an older epoch are replaced. No two starts of the gang have the same epoch."""
    gang_started: int = 0
    """The epoch of its last start. If `gang_epoch` is greater, it belongs to the next start."""
    gang_why: str = ""
    """Why its last epoch ends or has ended."""
    gang_died: bool = False
    """True if it ended because a rank died, so that collective operations of the others cannot complete."""
    removed: bool = False
    """No longer in the run file; removed when its last unit has ended."""


class Ghost(msgspec.Struct, frozen=True):
    """A former incarnation that may still be alive somewhere."""

    host: str
    incarnation: int
    devices: tuple[str, ...] = ()
    share: float = 1.0
    """The share of each of these devices."""


class Slot(msgspec.Struct):
    """One supervised unit and its incarnations."""

    unit: str
    group: str
    number: int
    state: S = S.PENDING
    reason: str = ""
    since: float = 0.0
    story: list[str] = []
    """The last moves: from, to, the reason, and the stimulus."""
    stimulus: str = ""
    """The id of the event that caused the last move."""

    # desired state
    wanted: bool = True
    """Part of the group's count. Otherwise the slot is kept only for its incarnation counter."""
    held: str = ""
    """Why an operator stopped it; it stays stopped until `restart` or `up`."""
    generation: int = 0
    """Increased by `restart`: an incarnation of a lower generation is replaced."""
    desired_by: str = ""
    """The operation that last changed the desired state of this slot."""
    paused: bool = False
    stop_now: bool = False
    """Stop without draining."""
    patient: bool = False
    """Drain without a limit (`drain`), rather than for the group's grace."""

    # the present (or last) incarnation
    incarnation: int = 0
    host: str = ""
    pid: int = 0
    start_ticks: int = 0
    spec: GroupSpec | None = None
    """The spec of the present incarnation."""
    devices: tuple[str, ...] = ()
    """Its devices, from its start until no process of it is left."""
    rank: Rank | None = None
    """Its place in its gang."""
    started_generation: int = 0
    started_epoch: int = 0
    came_up: bool = False
    ready_since: float = 0.0
    leader_gone: bool = True
    tree_gone: bool = True
    spawned: bool = False
    stopped_process: bool = False
    continued_at: float = 0.0
    unhealthy: str = ""
    """Why its liveness probe fails."""
    silent: str = ""
    """Why its heartbeats do not count."""
    stopping_because: str = ""
    """Non-empty if the supervisor stops it by itself (hung, never came up): the end counts as a death."""
    phase_until: float = 0.0
    """The time until which an announced phase may keep it silent, for a coordinator that did not receive the report."""
    bye_code: int | None = None
    """The exit code that the unit itself announced."""
    bye_reason: str = ""
    """The reason in its Bye."""
    last_exit: ExitStatus | None = None
    timer: float = 0.0
    ghosts: list[Ghost] = []

    # how its incarnations ended
    deaths: list[float] = []
    """Deaths while ready, inside the restart window."""
    failed_starts: int = 0
    """Consecutive deaths before it was ready."""
    refused_starts: int = 0
    """Consecutive starts that its host could not execute."""
    oom_deaths: list[float] = []
    asked: list[float] = []
    """The times at which it recently requested a restart (exit 75)."""
    restarts: int = 0
    """Unplanned ends since its history was reset."""
    attempts: int = 0
    """Starts since it was last ready or its history was reset."""
    done: bool = False
    """A job that ended successfully; it runs again only in a higher generation."""

    def move(self, to: S, reason: str, now: float, stimulus: str = "") -> None:
        """Change the state. No other code does."""
        if to not in STATE_MOVES[self.state]:
            raise IllegalMoveError(
                f"{self.unit} cannot go from {self.state} to {to} ({reason}); {'; '.join(self.story)}"
            )
        cause = f" [{stimulus}]" if stimulus else ""
        self.story = [*self.story[-STORY_LENGTH:], f"{self.name} {self.state}->{to}: {reason}{cause}"]
        self.state, self.reason, self.since, self.stimulus = to, reason, now, stimulus
        self.timer = 0.0

    def shift_times(self, by_s: float) -> None:
        """Move all times, because the clock from which they were taken was changed."""
        for name in ("since", "ready_since", "continued_at", "phase_until", "timer"):
            if at := getattr(self, name):
                setattr(self, name, at + by_s)
        for name in ("deaths", "oom_deaths", "asked"):
            setattr(self, name, [at + by_s for at in getattr(self, name)])

    def reset_history(self) -> None:
        """Forget earlier failures, because an operator starts the unit or gives it another program."""
        self.deaths, self.oom_deaths = [], []
        self.failed_starts = self.refused_starts = self.restarts = self.attempts = 0

    @property
    def name(self) -> str:
        return f"{self.unit}.{self.incarnation}"

    @property
    def unidentified(self) -> bool:
        """A process of it may be alive, but its journal entry could not tell which and where."""
        return self.state is S.LOST and not self.host


class HostState(msgspec.Struct):
    """One host. Not persisted: the hello of its agent contains everything."""

    host: str
    facts: HostFacts = HostFacts()
    connected: bool = True
    since: float = 0.0
    occupied: dict[str, str] = {}
    """By device: a process on it that belongs to none of the units that hold it."""
    leaving: str = ""
    """Why its agent is about to end; empty if it is not."""
    leaves_at: float = 0.0
    minor: int = PROTOCOL_MINOR
    """The minor version of the protocol that its agent speaks."""


class State(msgspec.Struct):
    """The whole state of the supervisor."""

    run: RunState
    groups: dict[str, GroupState] = {}
    slots: dict[str, Slot] = {}
    hosts: dict[str, HostState] = {}
    awaited: dict[str, str] = {}
    """Why a host that a placement starts is absent. Not persisted."""
    in_vain: set[str] = set()
    """The absent hosts whose start failed repeatedly."""
    data_host: str = ""
    """The host of the coordinator, whose state directory has the database. Empty: not known, so any host."""
    run_id: str = ""
    """The uuid of the run. It varies the ports of gangs, so that several runs on one machine use different ports."""
    _members: dict[str, list[Slot]] = {}
    """Slots by group; outdated exactly if the number of slots differs from `_indexed`."""
    _indexed: int = 0

    def of_group(self, group: str) -> Sequence[Slot]:
        if self._indexed != len(self.slots):
            self._members, self._indexed = {}, len(self.slots)
            for slot in self.slots.values():
                self._members.setdefault(slot.group, []).append(slot)
        return self._members.get(group, ())

    def new_slot(self, unit: str, group: str, number: int) -> Slot:
        self.slots[unit] = Slot(unit=unit, group=group, number=number, incarnation=self.run.retired.get(group, 0))
        return self.slots[unit]

    def forget(self, slot: Slot) -> None:
        """Remove a slot that was scaled away. Its incarnations are not used again."""
        del self.slots[slot.unit]
        self._indexed = -1
        self.run.retired[slot.group] = max(slot.incarnation, self.run.retired.get(slot.group, 0))

    def units_on(self, host: str) -> list[str]:
        """Return the units of which an incarnation may live on this host."""
        return [
            slot.unit
            for slot in self.slots.values()
            if (slot.host == host and not slot.tree_gone) or any(ghost.host == host for ghost in slot.ghosts)
        ]

    def leads(self, slot: Slot) -> bool:
        """Return whether a unit represents its gang. A unit outside of a gang represents itself."""
        group = self.groups.get(slot.group)
        return slot.number == 0 or group is None or not group.spec.gang

    def holds_units(self, host: str) -> bool:
        """Return whether an incarnation may live on this host."""
        return bool(self.units_on(host))

    def left_alone(self, group: str) -> bool:
        """Return whether only the groups that are needed to read the run are up, and this group is not one of them."""
        known = self.groups.get(group)
        return self.run.reading and known is not None and known.spec.role not in READ_FROM

    def is_silent(self, host: str) -> bool:
        """Return whether the host is known to be silent. A host that may still connect to a new coordinator is not."""
        known = self.hosts.get(host)
        return known is not None and not known.connected

    def is_leaving(self, host: str) -> bool:
        """Return whether the agent of the host has said that it is about to end."""
        known = self.hosts.get(host)
        return known is not None and known.connected and bool(known.leaving)

    def is_out_of_reach(self, slot: Slot) -> bool:
        """Return whether no order reaches what is left of the present incarnation: it is lost, or its leader has ended
        and its host is silent.
        """
        return slot.state is S.LOST or (slot.state not in WITH_PROCESS and self.is_silent(slot.host))
