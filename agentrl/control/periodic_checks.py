"""Does the regular work of the coordinator: checks leases, operations and alerts, publishes the feed and its metrics.

Invariants:
- If the coordinator itself was late (stopped, or without processor time), all leases are extended by the delay before
  any is judged.
- One turn is short for any number of units.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from agentrl.control.context import Context
from agentrl.errors import DiskError
from agentrl.protocol.feed import MetricBatch
from agentrl.protocol.rows import UnitState
from agentrl.protocol.wire import encode
from agentrl.supervision import events, restarts
from agentrl.supervision.liveness import Finding, Health
from agentrl.telemetry.control_plane_metrics import FEED_ROWS, JOURNAL_COMMIT, LOOP_LAG, PEERS

log = logging.getLogger(__name__)

TURN_S = 0.1
AGE_EVERY_S = 2.0
PRUNE_EVERY_S = 60.0
METRICS_EVERY_S = 1.0
KEEP_EVENTS = 100_000
KEEP_RETIRED = 100
"""How many units that were scaled away are kept for inspection."""
KEEP_EVENTS_S = 90 * 86_400.0


class PeriodicChecks:
    def __init__(self, context: Context, each_turn: Iterable[Callable[[float], None]]) -> None:
        self._context = context
        self._metrics = OwnMetrics(context)
        self._each_turn = tuple(each_turn)
        self._last = context.clock.now()
        self._age_at = self._prune_at = 0.0

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._pace())
            try:
                self._turn(self._context.clock.now())
            except Exception:
                # An error ends only this turn: supervision must continue.
                log.exception("a turn failed")

    def _pace(self) -> float:
        return min(TURN_S, self._context.supervisor.times.suspect_after_s / 5)

    def _turn(self, now: float) -> None:
        late = now - self._last - self._pace()
        self._last = now
        self._metrics.turned(now, max(0.0, late))
        if late > self._context.supervisor.times.late_after_s:
            log.warning("the coordinator was late by %.1f s; all leases are extended by that", late)
            self._context.leases.extend_all(late, now)
            self._context.host_leases.extend_all(late, now)
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
                silent = now - lease.last_received if lease is not None else 0.0
                reporting = frozenset(
                    unit
                    for unit, slot in self._context.state.slots.items()
                    if slot.host == finding.name and self._context.leases.is_reporting(unit, now)
                )
                self._context.happened(events.HostSilent(host=finding.name, for_s=silent, reporting=reporting))

    def _judge_units(self, now: float) -> None:
        for finding in list(self._context.leases.scan(now, self._unseen())):
            slot = self._context.state.slots.get(finding.name)
            if slot is None:
                continue
            # A starting unit has its own deadline, unless its host is silent.
            if slot.state is not UnitState.STARTING or self._context.state.is_silent(slot.host):
                self._context.happened(_event_of(finding, slot.incarnation))

    def _unseen(self) -> frozenset[str]:
        """Units on hosts that are silent themselves."""
        state = self._context.state
        silent = {host.host for host in state.hosts.values() if not host.connected}
        if not silent:
            return frozenset()
        return frozenset(slot.unit for slot in state.slots.values() if slot.host in silent)

    def _keep_house(self, now: float) -> None:
        if now >= self._age_at:
            self._age_at = now + AGE_EVERY_S
            self._age_deaths(now)
        if now >= self._prune_at and not self._context.executor.full:
            self._prune_at = now + PRUNE_EVERY_S
            self._context.happened(events.RetiredAged(keep=KEEP_RETIRED))
            try:
                self._context.journal.prune(before_at=now - KEEP_EVENTS_S, keep_newest=KEEP_EVENTS)
            except DiskError as full:
                log.warning("%s", full)

    def _age_deaths(self, now: float) -> None:
        """Remove old deaths, because a healthy unit causes no event that would remove them."""
        times = self._context.supervisor.times
        for slot in list(self._context.state.slots.values()):
            if restarts.some_aged(slot, times, now):
                self._context.happened(events.DeathsAged(unit=slot.unit))


class OwnMetrics:
    """Metrics of the coordinator itself, published once a second like those of any unit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._since = context.clock.now()
        self._worst_lag_s = 0.0
        self._seq = 0

    def turned(self, now: float, late_s: float) -> None:
        """Called in each turn of the loop with its delay."""
        self._worst_lag_s = max(self._worst_lag_s, late_s)
        if now - self._since < METRICS_EVERY_S:
            return
        self._context.show_bottleneck()
        feed = self._context.feed
        values = {
            LOOP_LAG.name: 1000 * self._worst_lag_s,
            FEED_ROWS.name: (feed.seq - self._seq) / (now - self._since),
            JOURNAL_COMMIT.name: 1000 * self._context.executor.slowest_commit_s(),
            PEERS.name: float(len(self._context.peers)),
        }
        self._since, self._seq, self._worst_lag_s = now, feed.seq, 0.0
        self._context.metrics.update("coordinator", 1, values, now)  # the coordinator has no incarnations
        self._context.publish_metrics(encode(MetricBatch("coordinator", now, values)))


def _event_of(finding: Finding, incarnation: int) -> events.Event:
    match finding.health:
        case Health.SUSPECT:
            return events.UnitSuspect(unit=finding.name, incarnation=incarnation, because=finding.because)
        case Health.HUNG:
            return events.UnitHung(unit=finding.name, incarnation=incarnation, because=finding.because)
        case _:
            return events.UnitReports(unit=finding.name, incarnation=incarnation)
