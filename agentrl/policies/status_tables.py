"""The state machines of the data plane as tables. A move that is not listed raises an error.

Invariants: these tables alone define which status follows which and who may change it; a conditional update of the
store takes its source statuses from a table (`Table.sources`) or has its move checked.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import RefusedError

NEW = ""
"""The status of an object that does not exist yet."""


class Actor(enum.StrEnum):
    STEWARD = "steward"
    SAMPLER = "sampler"
    SCORER = "scorer"
    TRAINER = "trainer"
    EVALUATOR = "evaluator"
    ENGINE = "engine"
    TOOLBOX = "toolbox"
    GATEWAY = "gateway"
    OPERATOR = "operator"


class TaskStatus(enum.StrEnum):
    QUEUED = "queued"
    ADMITTED = "admitted"
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    FILTERED = "filtered"
    DONE = "done"
    DEAD = "dead"


class RecordStatus(enum.StrEnum):
    OPEN = "open"
    RUNNING = "running"
    FINISHED = "finished"
    UNSCORED = "unscored"
    SCORED = "scored"
    FAILED = "failed"
    ABANDONED = "abandoned"
    UNSCORABLE = "unscorable"
    EXCLUDED = "excluded"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


class CallStatus(enum.StrEnum):
    SENT = "sent"
    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"


class ToolCallStatus(enum.StrEnum):
    REQUESTED = "requested"
    REFUSED = "refused"
    RUNNING = "running"
    OK = "ok"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"


class StepStatus(enum.StrEnum):
    LEASED = "leased"
    COMMITTED = "committed"
    RELEASED = "released"
    ROLLED_BACK = "rolled_back"


class CheckpointStatus(enum.StrEnum):
    WRITING = "writing"
    COMPLETE = "complete"
    DELETED = "deleted"
    ABANDONED = "abandoned"


class PublicationStatus(enum.StrEnum):
    WRITING = "writing"
    ANNOUNCED = "announced"
    CURRENT = "current"
    RETAINED = "retained"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    DELETED = "deleted"


class ReplayStatus(enum.StrEnum):
    QUEUED = "queued"
    PREPARING = "preparing"
    REPLAYING = "replaying"
    JUDGED = "judged"
    KEPT = "kept"
    EXCLUDED = "excluded"
    FORKED = "forked"
    FAILED = "failed"


class BreakerStatus(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


HOLDS_SEAT = frozenset(
    {
        RecordStatus.OPEN,
        RecordStatus.RUNNING,
        RecordStatus.FINISHED,
        RecordStatus.UNSCORED,
        RecordStatus.SCORED,
    }
)
"""At most one record of a seat is in one of these."""

IN_FLIGHT = HOLDS_SEAT - {RecordStatus.SCORED}
"""Admission counts these as under way."""


class IllegalMoveError(RefusedError):
    """The move does not exist, or another actor makes it."""


@dataclass(frozen=True, slots=True)
class Move:
    source: str
    target: str
    actors: frozenset[Actor]
    when: str


@dataclass(frozen=True, slots=True)
class Table:
    """One state machine. Several moves may join the same two statuses, by other actors for other reasons."""

    name: str
    statuses: type[enum.StrEnum]
    moves: tuple[Move, ...]

    def targets(self, source: str) -> frozenset[str]:
        return frozenset(move.target for move in self.moves if move.source == source)

    def sources(self, target: str, actor: Actor) -> tuple[str, ...]:
        """The statuses from which this actor may move to `target`, for the condition of an update."""
        found = dict.fromkeys(
            move.source for move in self.moves if move.target == target and actor in move.actors and move.source
        )
        return tuple(found)

    def ends(self) -> frozenset[str]:
        """Statuses that no move leaves."""
        return frozenset(status.value for status in self.statuses if not self.targets(status))


def check(table: Table, source: str, target: str, actor: Actor, story: str = "") -> Move:
    """Returns the move. Raises IllegalMoveError if the table has none for this actor."""
    between = [move for move in table.moves if move.source == source and move.target == target]
    for move in between:
        if actor in move.actors:
            return move
    raise IllegalMoveError(_complaint(table, source, target, actor, between, story))


def _complaint(table: Table, source: str, target: str, actor: Actor, between: list[Move], story: str) -> str:
    known = {status.value for status in table.statuses}
    strange = next((status for status in (source, target) if status and status not in known), None)
    if strange is not None:
        sentence = f"{table.name} has no status {strange!r}"
    elif between:
        allowed = sorted({actor.value for move in between for actor in move.actors})
        sentence = (
            f"{table.name}: {_shown(source)} → {target} is made by {' or '.join(allowed)}, never by {actor.value}"
        )
    else:
        onward = sorted(table.targets(source))
        instead = f"leads to {', '.join(onward)}" if onward else "is an end"
        sentence = f"{table.name}: {_shown(source)} → {target} does not exist; {_shown(source)} {instead}"
    return f"{sentence}. Story: {story}" if story else sentence


def _shown(status: str) -> str:
    return status or "–"


def _moves(sources: Iterable[str] | str, targets: Iterable[str] | str, actors: str, when: str) -> list[Move]:
    """All moves of one row of a table; `actors` are names separated by spaces."""
    who = frozenset(Actor(word) for word in actors.split())
    return [Move(str(source), str(target), who, when) for source in _each(sources) for target in _each(targets)]


def _each(statuses: Iterable[str] | str) -> Iterable[str]:
    return (statuses,) if isinstance(statuses, str) else sorted(statuses)


_T, _R, _C, _U = TaskStatus, RecordStatus, CallStatus, ToolCallStatus
_S, _K, _P, _B = StepStatus, CheckpointStatus, PublicationStatus, BreakerStatus
_Y = ReplayStatus

TASK = Table(
    "Task",
    TaskStatus,
    (
        *_moves(NEW, _T.QUEUED, "steward operator", "a row of an epoch, tasks added by hand, a branch"),
        *_moves(_T.QUEUED, _T.ADMITTED, "steward", "there is capacity for the whole group"),
        *_moves(_T.ADMITTED, _T.READY, "sampler steward", "every seat is settled and enough of them are valid"),
        *_moves(_T.ADMITTED, _T.QUEUED, "steward", "too few valid: next round"),
        *_moves(_T.ADMITTED, _T.DEAD, "steward", "too few valid, and no rounds are left"),
        *_moves(_T.READY, _T.LEASED, "trainer", "the batch was cut"),
        *_moves(_T.READY, _T.QUEUED, "trainer", "no trainable record is left: next round"),
        *_moves(_T.READY, _T.DEAD, "trainer", "no trainable record and no rounds are left, or named by bisection"),
        *_moves(_T.LEASED, _T.READY, "trainer", "its Step was released or rolled back"),
        *_moves(_T.LEASED, (_T.TRAINED, _T.FILTERED), "trainer", "its Step was committed"),
        *_moves((_T.TRAINED, _T.FILTERED), _T.READY, "trainer", "its Step was rolled back"),
        *_moves(_T.READY, (_T.TRAINED, _T.FILTERED), "trainer", "its Step counts again after another rollback"),
        *_moves(_T.TRAINED, _T.READY, "steward", "it may train once more, its interval is over and it is fresh"),
        *_moves(_T.READY, _T.DONE, "evaluator steward", "purpose is eval or probe"),
        *_moves((_T.QUEUED, _T.ADMITTED, _T.READY, _T.DEAD), _T.QUEUED, "operator", "requeued: next round"),
    ),
)

RECORD = Table(
    "Record",
    RecordStatus,
    (
        *_moves(
            NEW,
            _R.OPEN,
            "steward operator",
            "its Task was admitted, or the attempt before failed or was requeued",
        ),
        *_moves(_R.OPEN, _R.RUNNING, "sampler", "claimed"),
        *_moves(_R.RUNNING, _R.FINISHED, "sampler", "policy result or limit; its tokens are durable"),
        *_moves(_R.RUNNING, _R.FAILED, "sampler", "infrastructure"),
        *_moves(_R.RUNNING, _R.OPEN, "sampler steward", "a resumable loop is handed over: drained, or owner expired"),
        *_moves(_R.RUNNING, _R.ABANDONED, "steward sampler", "not resumable, and its owner expired or drained"),
        *_moves(_R.FINISHED, (_R.SCORED, _R.UNSCORED), "sampler scorer", "scored, or the judge cannot answer"),
        *_moves(_R.UNSCORED, (_R.SCORED, _R.UNSCORABLE), "scorer", "asked again, or past its deadline"),
        *_moves((_R.FAILED, _R.ABANDONED), _R.EXCLUDED, "operator", "repaired while its Task is admitted"),
        *_moves(_R.SCORED, _R.EXCLUDED, "operator", "its Task is admitted or ready"),
        *_moves(IN_FLIGHT, _R.CANCELLED, "operator", "cancelled; its seat stays empty unless it is requeued"),
        *_moves(HOLDS_SEAT, _R.SUPERSEDED, "steward trainer operator", "its round is over, or a repair has its seat"),
        *_moves(_R.SCORED, _R.SCORED, "operator", "rescored; the old score is kept"),
    ),
)

DISPATCHED_SAMPLING_TASK = Table(
    "DispatchedSamplingTask",
    CallStatus,
    (
        *_moves(NEW, _C.SENT, "sampler gateway", "sent to an engine"),
        *_moves(_C.SENT, _C.DONE, "sampler gateway", "stop, length or parse"),
        *_moves(_C.SENT, _C.PARTIAL, "sampler gateway", "aborted; its tokens are kept and the next call continues it"),
        *_moves(_C.SENT, _C.FAILED, "sampler gateway", "the engine failed"),
        *_moves(_C.SENT, _C.FAILED, "steward", "lost with the sampler that waited for it"),
    ),
)

TOOL_CALL = Table(
    "ToolCall",
    ToolCallStatus,
    (
        *_moves(NEW, _U.REQUESTED, "sampler gateway", "durable before it is sent"),
        *_moves(_U.REQUESTED, _U.REFUSED, "sampler gateway", "malformed, blocked or over its quota"),
        *_moves(_U.REQUESTED, _U.RUNNING, "sampler gateway", "the toolbox acknowledged it"),
        *_moves(
            _U.RUNNING,
            (_U.OK, _U.TOOL_ERROR, _U.TIMEOUT, _U.CANCELLED),
            "sampler gateway",
            "the toolbox answered",
        ),
        *_moves((_U.REQUESTED, _U.RUNNING), _U.LOST, "sampler gateway steward", "toolbox, server or sampler is gone"),
    ),
)

REPLAY = Table(
    "Replay",
    ReplayStatus,
    (
        *_moves(NEW, _Y.QUEUED, "operator", "requested by a command"),
        *_moves(_Y.QUEUED, _Y.PREPARING, "steward", "claimed; its session is rebuilt"),
        *_moves(_Y.PREPARING, _Y.REPLAYING, "steward", "the session is rebuilt"),
        *_moves((_Y.PREPARING, _Y.REPLAYING), _Y.JUDGED, "steward", "it has a verdict"),
        *_moves((_Y.PREPARING, _Y.REPLAYING), _Y.QUEUED, "steward", "interrupted, and nothing ran that may not again"),
        *_moves((_Y.PREPARING, _Y.REPLAYING), _Y.FAILED, "steward", "interrupted for good"),
        *_moves(_Y.JUDGED, (_Y.KEPT, _Y.EXCLUDED, _Y.FORKED), "operator", "decided"),
    ),
)

STEP = Table(
    "Step",
    StepStatus,
    (
        *_moves(NEW, _S.LEASED, "trainer", "before the optimizer runs"),
        *_moves(_S.LEASED, _S.COMMITTED, "trainer", "the optimizer ran"),
        *_moves(_S.LEASED, _S.RELEASED, "trainer", "on a hold, or by the next trainer at its start"),
        *_moves(_S.LEASED, _S.RELEASED, "steward", "its owner expired"),
        *_moves(_S.COMMITTED, _S.ROLLED_BACK, "trainer", "later than the checkpoint that the next lineage starts from"),
        *_moves(_S.ROLLED_BACK, _S.COMMITTED, "trainer", "the next lineage starts from a checkpoint that covers it"),
    ),
)

CHECKPOINT = Table(
    "Checkpoint",
    CheckpointStatus,
    (
        *_moves(NEW, _K.WRITING, "trainer", "before its files are"),
        *_moves(_K.WRITING, _K.COMPLETE, "trainer", "its files are durable and renamed"),
        *_moves(_K.WRITING, _K.ABANDONED, "trainer", "by the next lineage"),
        *_moves(_K.COMPLETE, _K.DELETED, "trainer", "retention; never a pinned one"),
    ),
)

PUBLICATION = Table(
    "Publication",
    PublicationStatus,
    (
        *_moves(NEW, _P.WRITING, "trainer", "its number is taken"),
        *_moves(_P.WRITING, _P.ANNOUNCED, "trainer", "manifest and weights are complete"),
        *_moves(_P.ANNOUNCED, _P.CURRENT, "engine", "the first engine serves it"),
        *_moves(_P.CURRENT, _P.RETAINED, "engine", "a newer one became current"),
        *_moves(_P.ANNOUNCED, _P.REJECTED, "trainer steward", "no engine accepted it before its deadline"),
        *_moves((_P.WRITING, _P.ANNOUNCED), _P.SKIPPED, "trainer engine", "a newer one is announced"),
        *_moves(_P.RETAINED, _P.DELETED, "trainer steward", "nobody loads it, no checkpoint or evaluation needs it"),
    ),
)

BREAKER = Table(
    "Breaker",
    BreakerStatus,
    (
        *_moves(NEW, _B.CLOSED, "toolbox", "first used"),
        *_moves(_B.CLOSED, _B.OPEN, "toolbox", "too many infrastructure failures"),
        *_moves(_B.OPEN, _B.HALF_OPEN, "toolbox", "time for a probe"),
        *_moves(_B.HALF_OPEN, (_B.CLOSED, _B.OPEN), "toolbox", "the probes' answer"),
    ),
)

TABLES = {
    table.name: table
    for table in (
        TASK,
        RECORD,
        DISPATCHED_SAMPLING_TASK,
        TOOL_CALL,
        REPLAY,
        STEP,
        CHECKPOINT,
        PUBLICATION,
        BREAKER,
    )
}
