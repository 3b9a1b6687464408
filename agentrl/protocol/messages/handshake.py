"""Hello, welcome and refusal, and the beats that prove that a peer is alive."""

from __future__ import annotations

import enum

import msgspec

from agentrl.protocol.message_base import Message

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 2
"""Grows when one side must know whether the other understands something new. A field that may be ignored needs no new
number; `RANKS_SINCE` is an example of a field that may not be ignored."""
RANKS_SINCE = 2
"""Host agents of earlier versions ignore the rank in a Spawn, so the ranks of a gang would not find each other."""
MAX_MESSAGE_BYTES = 4 << 20


class Permission(enum.StrEnum):
    """What a key may do. `host` and `unit` are separate: such a key may only register a host agent or units, and
    report.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    HOST = "host"
    UNIT = "unit"

    def allows(self, needed: Permission) -> bool:
        if self not in _RANK or needed not in _RANK:
            return self is needed
        return _RANK[self] >= _RANK[needed]


_RANK = {Permission.VIEWER: 0, Permission.OPERATOR: 1, Permission.ADMIN: 2}


class Welcome(Message, tag="welcome", frozen=True):
    """The answer to an accepted hello."""

    epoch: str
    run: str
    run_name: str
    now_ct: float
    heartbeat_s: float = 2.0
    stats_every_s: float = 0.0
    """How often a host agent measures its units; 0 leaves it to the agent."""
    coordinator_silent_s: float = 0.0
    """After this silence a host agent replaces the coordinator that it started; 0 leaves it to the agent."""
    orphan_lease_s: float = 600.0
    permission: Permission = Permission.UNIT
    server_version: str = ""
    knobs: dict[str, float | int | str | bool | None] = msgspec.field(default_factory=dict)
    paused: bool = False


class Refused(Message, tag="refused", frozen=True):
    """The answer to a refused hello. With `final` a unit has to stop: it was replaced or is unknown."""

    code: int
    message: str
    hint: str = ""
    final: bool = False


class WhoAreYou(Message, tag="who_are_you", frozen=True):
    """The coordinator got a message from a peer it does not know (it was restarted): say hello again."""


class BeatAck(Message, tag="beat_ack", frozen=True):
    seq: int
    now_ct: float
