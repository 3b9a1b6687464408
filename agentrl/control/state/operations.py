"""Tracks operations: accepted commands and their progress. Accepted is not done.

Invariants:
- An id is accepted once.
- A command is durable before it is accepted, and the next coordinator begins it if the last one died before.
- An operation ends when its goal is reached or unreachable, when a later command supersedes it, or at its deadline.
- When a unit reports that it works on an operation, the deadline of the operation moves.
- A unit that was ready for an earlier coordinator counts as ready only after the report of its host: after a power loss
  the journal has it as ready, and its process is dead.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import msgspec

from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.rows import OperationRow, OperationState, UnitState, short
from agentrl.supervision import scheduling
from agentrl.supervision.unit_slots import Slot, State
from agentrl.tracing import trace_context
from agentrl.tracing.trace_context import TraceContext

WAITING_SHOWN = 200
REASON_CHARS = 4000
"""Limits the row of an operation on thousands of units."""
KEEP_ENDED = 200
"""How many ended operations are kept, to recognise repeated ids."""


class Want(enum.StrEnum):
    UP = "up"
    """Ready (or a job that is done), in an incarnation later than `than`."""
    ENDED = "ended"
    """No process of incarnation `than` and earlier ones is left."""


class Goal(msgspec.Struct, frozen=True):
    """The state that one unit has to reach."""

    want: Want
    than: int = 0
    shared: bool = False
    """True if the unit was already moving to the goal when the operation was accepted, so several operations may share
    it.
    """


class Operation(msgspec.Struct):
    """One accepted command, as it is kept in the journal."""

    id: str
    command: str
    args: bytes
    summary: str
    who: str
    state: OperationState
    accepted_at: float
    deadline: float
    ended_at: float = 0.0
    reason: str = ""
    goals: dict[str, Goal] = {}
    waiting_for: tuple[str, ...] = ()
    result: dict[str, KnobValue] = {}
    lines: list[str] = []
    superseded_by: str = ""
    effect: Effect = Effect()
    """The effect at acceptance."""
    by_itself: bool = False
    """Whether it ends by a call of `finish`, not by its goals."""

    def row(self) -> OperationRow:
        return OperationRow(
            id=self.id,
            command=self.command,
            summary=self.summary,
            who=self.who,
            state=self.state,
            accepted_at=self.accepted_at,
            ended_at=self.ended_at,
            reason=self.reason[:REASON_CHARS],
            waiting_for=self.waiting_for[:WAITING_SHOWN],
            result=self.result,
            lines=tuple(self.lines),
            superseded_by=self.superseded_by,
        )


class _Progress:
    """How far the units of one operation are."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        self.broken: dict[str, str] = {}


class Operations:
    """All live operations, and the last ones that ended."""

    def __init__(self, state: State, changed: Callable[[Operation], None]) -> None:
        self._state = state
        self._changed = changed
        self._by_id: dict[str, Operation] = {}
        self._progress: dict[str, _Progress] = {}
        """The progress of running operations. An operation without an entry compares all of its units."""
        self._changed_units: set[str] = set()
        self.forgotten: list[str] = []
        """Ids of dropped operations, to be removed from journal and feed."""

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def get(self, id: str) -> Operation | None:
        return self._by_id.get(id)

    def all(self) -> Iterable[Operation]:
        return self._by_id.values()

    def live(self) -> list[Operation]:
        return [op for op in self._by_id.values() if not op.state.ended]

    def trace_of(self, unit: str) -> TraceContext | None:
        """The trace of the newest operation that waits for this unit."""
        waiting = [op for op in self.live() if unit in op.goals]
        return trace_context.of_operation(waiting[-1].id) if waiting else None

    def restore(self, operations: Iterable[Operation]) -> None:
        self._by_id = {op.id: op for op in sorted(operations, key=lambda op: op.accepted_at)}

    def add(self, operation: Operation) -> None:
        self._by_id[operation.id] = operation
        ended = [op.id for op in self._by_id.values() if op.state.ended]
        for id in ended[: max(0, len(ended) - KEEP_ENDED)]:
            del self._by_id[id]
            self.forgotten.append(id)
        self._changed(operation)

    def begin(self, operation: Operation, goals: dict[str, Goal]) -> None:
        operation.goals = goals
        operation.state = OperationState.RUNNING
        # A command may change the desired state of any unit.
        self._progress.clear()
        self._changed(operation)

    def waits_for(self, operation: Operation, what: str) -> None:
        """Record what an operation without goals waits for now."""
        if not operation.state.ended and operation.waiting_for != (what,):
            operation.waiting_for = (what,)
            self._changed(operation)

    def extend(self, operation: Operation, *, now: float, for_s: float) -> None:
        """Move the deadline to `for_s` from now, if less than half of that is left: each change is written to disk."""
        if not operation.state.ended and operation.deadline < now + for_s / 2:
            operation.deadline = now + for_s
            self._changed(operation)

    def finish(self, operation: Operation, state: OperationState, now: float, reason: str = "") -> None:
        if operation.state.ended:
            return
        operation.state, operation.reason, operation.ended_at = state, reason, now
        operation.waiting_for = ()
        self._progress.pop(operation.id, None)
        self._changed(operation)

    def supersede(self, command: str, by: Operation, reason: str, now: float) -> None:
        """End all operations of that command, because a later command for the whole run replaces them."""
        for other in self.live():
            if other.command == command and other is not by:
                other.superseded_by = by.command
                self.finish(other, OperationState.SUPERSEDED, now, f"{by.who} {reason} ({short(by.id)})")

    def unit_changed(self, unit: str) -> None:
        """The next review compares this unit with the goals again."""
        self._changed_units.add(unit)

    def hosts_changed(self) -> None:
        """The next review compares all units again, because hosts that may take them have become available or
        unavailable."""
        self._progress.clear()

    def review(self, now: float) -> None:
        """Compare running operations with the units that changed since the last review."""
        changed, self._changed_units = self._changed_units, set()
        for operation in self.live():
            if operation.state is not OperationState.RUNNING:
                continue
            if not operation.by_itself:
                self._review_goals(operation, changed, now)
            if not operation.state.ended and now > operation.deadline:
                waiting = "; ".join(operation.waiting_for) or "its end"
                late = now - operation.accepted_at
                self.finish(operation, OperationState.FAILED, now, f"not done after {late:.0f} s: waits for {waiting}")

    def _review_goals(self, operation: Operation, changed: set[str], now: float) -> None:
        progress = self._progress.get(operation.id)
        first = progress is None
        if progress is None:
            progress = self._progress[operation.id] = _Progress()
            units = list(operation.goals)
        elif changed:
            units = sorted(unit for unit in changed if unit in operation.goals)
        else:
            return
        for unit in units:
            slot, goal = self._state.slots.get(unit), operation.goals[unit]
            if slot is not None and _superseded(operation.id, slot, goal):
                reason = f"{unit} was given another aim by operation {short(slot.desired_by)}"
                self.finish(operation, OperationState.SUPERSEDED, now, reason)
                return
            self._compare(progress, slot, goal, unit)
        # An operation without goals has reached them at its first review. The units that a fatal one blocks may have
        # changed without being a goal themselves.
        if first or units or (progress.broken and progress.waiting):
            self._conclude(operation, progress, now)

    def _conclude(self, operation: Operation, progress: _Progress, now: float) -> None:
        waiting, broken = progress.waiting, progress.broken
        # A unit that waits behind a fatal one would wait until the deadline, and hide the cause until then.
        if waiting and not (broken and waiting.keys() <= self._behind_the_fatal()):
            waiting_for = tuple(waiting[unit] for unit in operation.goals if unit in waiting)
            if waiting_for != operation.waiting_for:
                operation.waiting_for = waiting_for
                self._changed(operation)
        elif broken:
            reasons = (broken[unit] for unit in operation.goals if unit in broken)
            self.finish(operation, OperationState.FAILED, now, "; ".join(reasons))
        else:
            self.finish(operation, OperationState.SUCCEEDED, now)

    def _compare(self, progress: _Progress, slot: Slot | None, goal: Goal, unit: str) -> None:
        """Note whether the operation still waits for the unit, or the unit can no longer reach its goal."""
        progress.waiting.pop(unit, None)
        progress.broken.pop(unit, None)
        if slot is None:
            return
        unseen = goal.want is Want.UP and not slot.tree_gone and slot.host not in self._state.hosts
        if unseen:
            progress.waiting[unit] = f"host {slot.host} has not reported about {unit} yet"
        elif _is_reached(slot, goal):
            return
        elif goal.want is Want.UP and slot.state is UnitState.FATAL:
            progress.broken[unit] = f"{unit} is fatal: {slot.reason}"
        elif goal.want is Want.UP and self._has_no_host(slot):
            progress.broken[unit] = f"{unit} cannot start: {slot.reason}"
        else:
            progress.waiting[unit] = f"{unit} is {slot.state.value} ({slot.reason})"

    def _has_no_host(self, slot: Slot) -> bool:
        """Whether every host that may take the unit fails to start."""
        if slot.state is not UnitState.PENDING or not self._state.in_vain:
            return False
        spec = self._state.groups[slot.group].spec
        return scheduling.cannot_be_placed(spec, self._state.data_host, self._state.in_vain)

    def _behind_the_fatal(self) -> set[str]:
        """Units that start only after a unit that is fatal or has no host, directly or through others, unless a command
        restarts the fatal one."""
        slots = [slot for slot in self._state.slots.values() if slot.wanted]
        fatal = [slot for slot in slots if slot.state is UnitState.FATAL and slot.generation == slot.started_generation]
        pending = [slot for slot in slots if slot.state is UnitState.PENDING]
        blocked = {slot.group for slot in (*fatal, *filter(self._has_no_host, pending))}
        behind: set[str] = set()
        while more := [
            slot
            for slot in pending
            if slot.unit not in behind and blocked.intersection(self._state.groups[slot.group].spec.after)
        ]:
            behind.update(slot.unit for slot in more)
            blocked.update(slot.group for slot in more)
        return behind


def _superseded(operation: str, slot: Slot, goal: Goal) -> bool:
    """Whether a later command has changed the desired state of the unit."""
    if slot.desired_by == operation:
        return False
    return not goal.shared or (goal.want is Want.UP and (not slot.wanted or bool(slot.held)))


def _is_reached(slot: Slot, goal: Goal) -> bool:
    later = slot.incarnation > goal.than
    if goal.want is Want.ENDED:
        return later or slot.tree_gone
    return later and (slot.state is UnitState.READY or slot.done)
