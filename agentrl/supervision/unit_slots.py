"""What the supervisor knows: the run, its groups, its slots and hosts. All of it can be written down and read again.

Invariants: an incarnation number is used once; `story` holds the last moves and why, so that an illegal move can be
explained; a slot has at most one timer, and a timer that does not carry the slot's present deadline is stale.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentrl.protocol.messages import ExitStatus, HostFacts
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import READ_FROM, GroupSpec
from agentrl.supervision.transitions import STATE_MOVES, IllegalMoveError

STORY_LENGTH = 12


class RunState(msgspec.Struct):
    """Desired state of the run as a whole."""

    up: bool = False
    up_since_at: float = 0.0
    paused: bool = False
    draining_hosts: set[str] = set()
    desired_by: str = ""
    stop_now: bool = False
    reading: bool = False
    """Up only to be read from: whoever has no part in that is left alone until an `up` of the whole."""


class GroupState(msgspec.Struct):
    """Desired state of one group."""

    spec: GroupSpec
    file_count: int
    """The count that the run file says; a count set by `scale` survives `up` until this changes."""
    counted_by: str = ""
    """The operation that set the present count."""
    paused: bool = False
    gang_epoch: int = 0
    """Raised by each death in a gang: members started under an older epoch have to go."""
    removed: bool = False
    """No longer in the run file; forgotten once its last unit ended."""


class Ghost(msgspec.Struct, frozen=True):
    """A former incarnation that may still be alive somewhere."""

    host: str
    incarnation: int


class Slot(msgspec.Struct):
    """One supervised place and the life in it."""

    unit: str
    group: str
    number: int
    state: UnitState = UnitState.PENDING
    reason: str = ""
    since: float = 0.0
    story: list[str] = []

    # what is wanted
    wanted: bool = True
    """Part of its group's count. A slot that is not wanted is retired: kept only for its incarnation counter."""
    held: str = ""
    """Stopped by an operator until `restart` or `up`; the sentence says by what."""
    generation: int = 0
    """Raised by `restart`: a life started under a lower one has to go."""
    desired_by: str = ""
    """The operation that last changed what is wanted of this slot."""
    paused: bool = False
    stop_now: bool = False
    """Stop without draining."""
    patient: bool = False
    """Drain without a limit (`drain`), rather than for the group's grace."""

    # the present (or last) life
    incarnation: int = 0
    host: str = ""
    pid: int = 0
    start_ticks: int = 0
    spec: GroupSpec | None = None
    """What the present incarnation was started from."""
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
    """Why its liveness probe says no."""
    silent: str = ""
    """Why its heartbeat is not believed."""
    stopping_because: str = ""
    """Non-empty for a stop that nobody asked for (hung, never came up): it counts as a death."""
    phase_until: float = 0.0
    """Until when, at the latest, an announced phase may keep it silent: for a coordinator that did not hear of it."""
    bye_code: int | None = None
    bye_reason: str = ""
    """What it said of its end."""
    """The exit code that the unit itself announced."""
    last_exit: ExitStatus | None = None
    timer: float = 0.0
    ghosts: list[Ghost] = []

    # how its lives ended
    deaths: list[float] = []
    """Deaths while ready, inside the restart window."""
    failed_starts: int = 0
    """Deaths before it ever was ready, one after another."""
    refused_starts: int = 0
    """Starts that its host could not even make, one after another."""
    oom_deaths: list[float] = []
    asked: list[float] = []
    """When it asked to be started again (exit 75), of late."""
    restarts: int = 0
    """Unplanned ends since it was begun anew."""
    attempts: int = 0
    """Starts since it was last ready, or begun anew."""
    done: bool = False
    """A job that ended well; `generation` must rise before it runs again."""

    def move(self, to: UnitState, reason: str, now: float) -> None:
        """The only way a state changes."""
        if to not in STATE_MOVES[self.state]:
            raise IllegalMoveError(
                f"{self.unit} cannot go from {self.state} to {to} ({reason}); {'; '.join(self.story)}"
            )
        self.story = [*self.story[-STORY_LENGTH:], f"{self.unit}.{self.incarnation} {self.state}->{to}: {reason}"]
        self.state, self.reason, self.since = to, reason, now
        self.timer = 0.0

    def begin_anew(self) -> None:
        """A person wants it, or wants another program here: earlier failures neither count against it any more nor
        are told of it."""
        self.deaths, self.oom_deaths = [], []
        self.failed_starts = self.refused_starts = self.restarts = self.attempts = 0

    @property
    def name(self) -> str:
        return f"{self.unit}.{self.incarnation}"


class HostState(msgspec.Struct):
    """One host as the supervisor sees it. Not written down: agents come back and say everything again."""

    host: str
    facts: HostFacts = HostFacts()
    connected: bool = True
    since: float = 0.0


class State(msgspec.Struct):
    """Everything."""

    run: RunState
    groups: dict[str, GroupState] = {}
    slots: dict[str, Slot] = {}
    hosts: dict[str, HostState] = {}
    _members: dict[str, list[Slot]] = {}
    """Slots by group. Slots are added and never removed, so it is out of date exactly if the counts differ."""
    _indexed: int = 0

    def of_group(self, group: str) -> Sequence[Slot]:
        if self._indexed != len(self.slots):
            self._members, self._indexed = {}, len(self.slots)
            for slot in self.slots.values():
                self._members.setdefault(slot.group, []).append(slot)
        return self._members.get(group, ())

    def left_alone(self, group: str) -> bool:
        """Whether the run is up only to be read from, and this group has no part in that."""
        known = self.groups.get(group)
        return self.run.reading and known is not None and known.spec.role not in READ_FROM
