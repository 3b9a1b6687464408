"""Defines the states of a unit and the table of allowed transitions. Any other transition raises, with the unit's
history.
"""

from __future__ import annotations

from agentrl.protocol.rows import UnitState as S

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
