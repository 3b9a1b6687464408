"""What the collection of replays holds: recorded tool calls that operators have executed again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from agentrl.policies.status_tables import ReplayStatus
from agentrl.store.documents import Named


class ReplayChange(msgspec.Struct):
    """One difference between two results; None where one of them has nothing."""

    path: str = ""
    then: str | None = None
    now: str | None = None


class ReplayedCall(msgspec.Struct, kw_only=True):
    """A call that a replay made, or that was answered from the record."""

    call: str = ""
    """The recorded call."""
    tool: str = ""
    status: str = ""
    error_class: str = ""
    result: str = ""
    latency_s: float = 0.0
    same: bool = False
    """It returned the recorded result."""
    changes: list[ReplayChange] = []
    changes_left_out: int = 0


class Replay(Named):
    """A recorded tool call that an operator has executed again. The recorded call stays as it is."""

    operation: str = ""
    who: str = ""
    place: int = 0
    """Its place in the operation."""
    call: str = ""
    record: str = ""
    task: str = ""
    turn: int = 0
    server: str = ""
    """Where it runs; `recorded_server` is where the call ran."""
    recorded_server: str = ""
    server_version: str = ""
    tool: str = ""
    effect: str = ""
    """What the server declares of the tool: pure, session or outside."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    edited: bool = False
    """The arguments are not those of the recorded call."""
    times: int = 1
    allowed: list[str] = msgspec.field(default_factory=list)
    """Tools with effects outside of the session that may run, as `server.tool`."""
    despite_differences: bool = False
    """An earlier call that returns something else does not end the replay."""
    note: str = ""
    status: str = ReplayStatus.QUEUED
    stopped: bool = False
    """No steward takes it until an operator continues it."""
    continued_by: str = ""
    """The operation that continued it last, so that an operation does so only once."""
    owner: str = ""
    attempt: int = 0
    session: str = ""
    sent: list[str] = msgspec.field(default_factory=list)
    """Calls with effects outside that may have run, durable before each is sent."""
    then: ReplayedCall | None = None
    """The recorded call."""
    rebuilt: list[ReplayedCall] = msgspec.field(default_factory=list)
    """The earlier calls that rebuilt the session before the first run."""
    runs: list[ReplayedCall] = msgspec.field(default_factory=list)
    verdict: str = ""
    agreed: int = 0
    """For a flaky call: how many runs worked, or returned the recorded result."""
    fault: str = ""
    """Whose fault the recorded failure was, as far as the replay shows."""
    reason: str = ""
    """Why it failed or could not run, or why an earlier attempt was interrupted."""
    error_class: str = ""
    """`infrastructure` if it could not run because a toolbox, a server or a session was lost."""
    forked: str = ""
    """The record or the task that was forked from its result."""
    decision: str = ""
    """Why it was kept, excluded or forked."""
    decided_by: str = ""
    """The operation."""
    created_at: datetime | None = None
    started_at: datetime | None = None
    judged_at: datetime | None = None
    duration_s: float = 0.0
