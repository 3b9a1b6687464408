"""The circuit breaker of one tool server: it stops calls to a server that fails too often, then probes it.

Invariants:
- It opens only after enough calls, and counts only infrastructure failures.
- While it is open, no call goes out.
- Half open, it lets a few calls out at a time, and closes after as many good answers in a row.
- A call that began before the last change of state does not count in the new one.

It opens no file and reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from agentrl.policies.status_tables import BREAKER, Actor, BreakerStatus, check


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """When the breaker opens and how it closes."""

    share: float = 0.5
    """It opens above this share of failures."""
    least: int = 20
    """Fewer calls than this are no evidence."""
    window_s: float = 60.0
    """Older calls are forgotten."""
    open_s: float = 5.0
    """How long it stays open the first time; doubled after each failed probe."""
    open_most_s: float = 60.0
    probes: int = 3
    """How many calls a half-open breaker lets out at once, and how many good answers in a row close it."""


@dataclass(frozen=True, slots=True)
class Permit:
    """The permission for one call; it is returned once, by `ended` or `abandoned`."""

    era: int
    """The number of the state in which the call began."""


class Breaker:
    """Counts the calls of one server."""

    def __init__(self, rule: BreakerRule | None = None) -> None:
        self._rule = rule or BreakerRule()
        self._state = BreakerStatus.CLOSED
        self._era = 0
        self._seen: deque[tuple[float, bool]] = deque()
        self._failed = 0
        self._probing = 0
        self._good_probes = 0
        self._open_until = 0.0
        self._next_open_s = self._rule.open_s

    def state(self, now: float) -> BreakerStatus:
        if self._state is BreakerStatus.OPEN and now >= self._open_until:
            self._enter(BreakerStatus.HALF_OPEN)
        return self._state

    def wait_s(self, now: float) -> float:
        """Seconds until a call may try again; 0 if it may go out now."""
        match self.state(now):
            case BreakerStatus.OPEN:
                return self._open_until - now
            case BreakerStatus.HALF_OPEN if self._probing >= self._rule.probes:
                return 1.0
            case _:
                return 0.0

    def admit(self, now: float) -> Permit | None:
        """Permit one call; None if it must wait."""
        if self.wait_s(now) > 0.0:
            return None
        if self._state is BreakerStatus.HALF_OPEN:
            self._probing += 1
        return Permit(self._era)

    def ended(self, permit: Permit, now: float, *, failed: bool) -> None:
        """Count an ended call; `failed` means an infrastructure failure, not a mistake of the policy."""
        state = self.state(now)
        if permit.era != self._era:
            return
        if state is BreakerStatus.CLOSED:
            self._count(now, failed)
        else:
            self._probed(now, failed)

    def abandoned(self, permit: Permit) -> None:
        """The call ended without evidence about the server."""
        if permit.era == self._era and self._state is BreakerStatus.HALF_OPEN:
            self._probing -= 1

    def _count(self, now: float, failed: bool) -> None:
        self._seen.append((now, failed))
        self._failed += failed
        while self._seen and self._seen[0][0] < now - self._rule.window_s:
            self._failed -= self._seen.popleft()[1]
        if len(self._seen) >= self._rule.least and self._failed > self._rule.share * len(self._seen):
            self._open(now)

    def _probed(self, now: float, failed: bool) -> None:
        self._probing -= 1
        if failed:
            self._open(now)
            return
        self._good_probes += 1
        if self._good_probes >= self._rule.probes:
            self._next_open_s = self._rule.open_s
            self._enter(BreakerStatus.CLOSED)

    def _open(self, now: float) -> None:
        self._open_until = now + self._next_open_s
        self._next_open_s = min(self._rule.open_most_s, 2 * self._next_open_s)
        self._enter(BreakerStatus.OPEN)

    def _enter(self, state: BreakerStatus) -> None:
        check(BREAKER, self._state, state, Actor.TOOLBOX)
        self._state = state
        self._era += 1
        self._seen.clear()
        self._failed = self._probing = self._good_probes = 0
