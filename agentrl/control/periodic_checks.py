"""What happens by the clock: leases, alerts, the feed, the sign in the run directory.

Invariants: if the coordinator itself was late (stopped, starved), all leases are extended by as much before anybody is
judged; one turn is short, whatever the number of units.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from agentrl.control.context import Context
from agentrl.control.own_metrics import OwnMetrics
from agentrl.control.persistence.state_lock import RunDirMarker
from agentrl.errors import DiskError
from agentrl.protocol.rows import UnitState
from agentrl.supervision import events, restarts
from agentrl.supervision.liveness import Finding, Health

log = logging.getLogger(__name__)

TURN_S = 0.1
MARKER_EVERY_S = 2.0
PRUNE_EVERY_S = 60.0
KEEP_EVENTS = 100_000
KEEP_EVENTS_S = 90 * 86_400.0


class PeriodicChecks:
    def __init__(
        self, context: Context, marker: RunDirMarker, metrics: OwnMetrics, each_turn: Iterable[Callable[[float], None]]
    ) -> None:
        self._context = context
        self._marker = marker
        self._metrics = metrics
        self._each_turn = tuple(each_turn)
        self._last = context.clock.now()
        self._marker_at = self._prune_at = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._pace())
            try:
                self._turn(self._context.clock.now())
            except Exception:
                # The boundary of a turn: the next one may be luckier, and supervision must not end.
                log.exception("a turn failed")

    def _pace(self) -> float:
        return min(TURN_S, self._context.supervisor.times.suspect_after_s / 5)

    def _turn(self, now: float) -> None:
        late = now - self._last - self._pace()
        self._last = now
        self._metrics.turned(now, max(0.0, late))
        if late > self._context.supervisor.times.late_after_s:
            log.warning("the coordinator was late by %.1f s; all leases are extended by that", late)
            self._context.leases.extend_all(late)
            self._context.host_leases.extend_all(late)
        self._judge_hosts(now)
        self._judge_units(now)
        self._context.operations.review(now)
        for look in self._each_turn:
            look(now)
        self._context.feed.tick(now, now)
        self._keep_house(now)

    def _judge_hosts(self, now: float) -> None:
        for finding in list(self._context.host_leases.scan(now)):
            host = self._context.state.hosts.get(finding.name)
            if finding.health is not Health.WELL and (host is None or host.connected):
                lease = self._context.host_leases.get(finding.name)
                silent = now - lease.heard if lease is not None else 0.0
                self._context.happened(events.HostSilent(host=finding.name, for_s=silent))

    def _judge_units(self, now: float) -> None:
        for finding in list(self._context.leases.scan(now, self._unseen())):
            slot = self._context.state.slots.get(finding.name)
            if slot is not None and slot.state is not UnitState.STARTING:
                self._context.happened(_event_of(finding, slot.incarnation))

    def _unseen(self) -> frozenset[str]:
        """Units of hosts that are silent themselves."""
        state = self._context.state
        silent = {host.host for host in state.hosts.values() if not host.connected}
        if not silent:
            return frozenset()
        return frozenset(slot.unit for slot in state.slots.values() if slot.host in silent)

    def _keep_house(self, now: float) -> None:
        if now >= self._marker_at:
            self._marker_at = now + MARKER_EVERY_S
            self._marker.refresh(now)
            self._age_deaths(now)
        if now >= self._prune_at and not self._context.executor.full:
            self._prune_at = now + PRUNE_EVERY_S
            try:
                self._context.journal.prune(before_at=now - KEEP_EVENTS_S, keep_newest=KEEP_EVENTS)
            except DiskError as full:
                log.warning("%s", full)

    def _age_deaths(self, now: float) -> None:
        """Nothing else may happen to a unit that lives well again."""
        times = self._context.supervisor.times
        for slot in list(self._context.state.slots.values()):
            if restarts.some_aged(slot, times, now):
                self._context.happened(events.DeathsAged(unit=slot.unit))


def _event_of(finding: Finding, incarnation: int) -> events.Event:
    match finding.health:
        case Health.SUSPECT:
            return events.UnitSuspect(unit=finding.name, incarnation=incarnation, because=finding.because)
        case Health.HUNG:
            return events.UnitHung(unit=finding.name, incarnation=incarnation, because=finding.because)
        case _:
            return events.UnitHeard(unit=finding.name, incarnation=incarnation)
