"""The departure of a host: its machine goes away, and its units finish before that.

When a pod is evicted, a job reaches its time limit or a machine shuts down, processes get SIGTERM, and the rest is
killed some time later.

Invariants:
- The coordinator lets the units finish; the agent ends when the coordinator orders it.
- Without a coordinator, or if that takes too long, units get SIGTERM and then SIGKILL, and the agent ends in time.
- A second signal changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Mapping

from agentrl.host.incarnation import Incarnation
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import HostLeaving

log = logging.getLogger(__name__)

_TERM_SHARE, _TERM_AT_MOST_S = 0.25, 10.0
"""The part of the time that is kept for SIGTERM."""
_KILL_SHARE, _KILL_AT_MOST_S = 0.05, 2.0


class Departure:
    """`over` ends the agent."""

    def __init__(
        self,
        incarnations: Mapping[str, Incarnation],
        send: Callable[[Message], bool],
        over: Callable[[], None],
    ) -> None:
        self._incarnations = incarnations
        self._send = send
        self._over = over
        self._until = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self.why = ""
        """Why the agent ends; empty if it does not."""

    def begin(self, within_s: float, why: str, *, joined: bool) -> None:
        """Begin the departure: the agent must end within that time. `joined`: whether a coordinator is connected."""
        if self.why:
            return
        loop = asyncio.get_running_loop()
        self.why, self._until = why, loop.time() + within_s
        log.info("This host leaves within %.0f s: %s.", within_s, why)
        if not joined and not self._living():
            self._over()
            return
        killed_at = self._until - min(within_s * _KILL_SHARE, _KILL_AT_MOST_S)
        asked_at = killed_at - min(within_s * _TERM_SHARE, _TERM_AT_MOST_S)
        self._timers = [
            loop.call_at(asked_at, self._terminate),
            loop.call_at(killed_at, self._kill),
            loop.call_at(self._until, self._over),
        ]
        self.announce()

    def announce(self) -> None:
        """Announce the departure to the coordinator. It is repeated to the next one."""
        if self.why:
            self._send(HostLeaving(max(0.0, self._until - asyncio.get_running_loop().time()), self.why))

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _living(self) -> Collection[Incarnation]:
        return [incarnation for incarnation in self._incarnations.values() if not incarnation.over]

    def _terminate(self) -> None:
        for incarnation in self._living():
            log.warning("%s has not ended yet; it gets SIGTERM.", incarnation.name)
            incarnation.signal(signal.SIGTERM, leader_only=incarnation.entry.spec.speaks)

    def _kill(self) -> None:
        for incarnation in self._living():
            incarnation.kill_tree()
