"""What host agents say.

Invariant: a host's word about a process is taken for the incarnation that it names and for no other.
"""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Iterable

from agentrl import __version__
from agentrl.control.context import Context
from agentrl.control.messaging.peers import Kind, Known
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.observed_state import ObservedHost
from agentrl.errors import ExitCode
from agentrl.protocol import feed, messages
from agentrl.protocol.messages import PROTOCOL_MAJOR, Refused, Welcome
from agentrl.protocol.rows import IncidentRow
from agentrl.protocol.wire import encode
from agentrl.supervision import events
from agentrl.supervision import instructions as do
from agentrl.transport.hub import Peer
from agentrl.transport.publisher import Publisher

INCIDENTS_SHOWN = 50
"""Incidents in the feed; the journal has them all."""
log = logging.getLogger(__name__)

_WRITES_STACKS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals at which faulthandler writes the stacks to the log."""


class HostHandler:
    def __init__(self, context: Context, asks: PendingRequests, metrics_out: Publisher) -> None:
        self._context = context
        self._asks = asks
        self._metrics_out = metrics_out
        self._shown: deque[str] = deque()
        self._tails: dict[tuple[str, int], tuple[str, ...]] = {}
        """Last log lines of incarnations that ended, until they are forgotten."""

    def hello(self, peer: Peer, hello: messages.HostHello) -> None:
        context = self._context
        if refusal := self._refusal(hello):
            context.peers.send(peer, refusal)
            return
        context.peers.welcome(peer, Known(Kind.HOST, hello.host))
        context.lease_host(hello.host)
        context.observed.hosts[hello.host] = ObservedHost(
            agent_pid=hello.agent_pid, agent_start_ticks=hello.agent_start_ticks
        )
        context.peers.send(peer, self._welcome())
        for entry in hello.inventory:
            if entry.tail:
                self._tails[entry.unit, entry.incarnation] = entry.tail
            elif entry.exit is None and context.supervisor.is_present(entry.unit, entry.incarnation):
                self._lease_if_it_speaks(entry.unit)
        context.happened(
            events.HostConnected(host=hello.host, facts=hello.facts, inventory=hello.inventory, age_s=hello.agent_age_s)
        )
        log.info("host %s is here with %d ledger entries", hello.host, len(hello.inventory))

    def tell_times(self) -> None:
        """The times by which host agents go are others now: an agent is often here before its first configuration."""
        for host in self._context.peers.hosts():
            self._context.peers.tell_host(host, self._welcome())

    def _welcome(self) -> Welcome:
        context, times = self._context, self._context.supervisor.times
        return Welcome(
            epoch=context.epoch,
            run=context.run.uuid,
            run_name=context.run.name,
            now_ct=context.clock.now(),
            heartbeat_s=times.heartbeat_s,
            stats_every_s=times.stats_every_s,
            coordinator_silent_s=times.coordinator_silent_s,
            server_version=__version__,
        )

    def _refusal(self, hello: messages.HostHello) -> Refused | None:
        run = self._context.run
        if hello.major != PROTOCOL_MAJOR:
            return Refused(
                ExitCode.VERSION,
                f"The agent speaks protocol {hello.major} (agentrl {hello.facts.agent_version}), "
                f"the coordinator {PROTOCOL_MAJOR} (agentrl {__version__}).",
                "Use the same version on both sides.",
            )
        if hello.run != run.uuid:
            return Refused(ExitCode.VERSION, f"This is run {run.name} ({run.uuid}), not {hello.run}.", final=True)
        return None

    def _lease_if_it_speaks(self, unit: str) -> None:
        """It lives: from now on it has to say so itself."""
        slot = self._context.state.slots[unit]
        if slot.spec is not None and slot.spec.speaks and slot.came_up:
            self._context.lease_unit(unit)

    def message(self, known: Known, message: messages.FromHost) -> None:
        context = self._context
        match message:
            case messages.Spawned(unit, incarnation, pid, ticks):
                context.happened(events.Spawned(unit=unit, incarnation=incarnation, pid=pid, start_ticks=ticks))
            case messages.SpawnFailed(unit, incarnation, reason, final):
                context.happened(events.SpawnFailed(unit=unit, incarnation=incarnation, reason=reason, final=final))
            case messages.Exited(unit, incarnation, exit, tail, group_empty):
                self._tails[unit, incarnation] = tail
                if context.supervisor.is_present(unit, incarnation):
                    context.leases.end(unit)
                context.happened(events.Exited(unit=unit, incarnation=incarnation, exit=exit))
                if group_empty:
                    context.happened(events.TreeGone(host=known.name, unit=unit, incarnation=incarnation))
            case messages.GroupEmpty(unit, incarnation, swept):
                context.happened(events.TreeGone(host=known.name, unit=unit, incarnation=incarnation, swept=swept))
            case messages.Probed(unit, incarnation, kind, ok, detail):
                context.happened(
                    events.ProbeChanged(unit=unit, incarnation=incarnation, kind=kind, ok=ok, detail=detail)
                )
            case messages.ProcessState(unit, incarnation, stopped):
                context.happened(events.ProcessStopped(unit=unit, incarnation=incarnation, stopped=stopped))
            case messages.CoordinatorTrouble():
                self._coordinator_trouble(known.name, message)
            case messages.HostStats():
                self._stats(known.name, message)
            case messages.Scraped(unit, incarnation, values):
                self._scraped(unit, incarnation, values)
            case messages.Answer():
                self._asks.answered(message.ask, message)

    def _stats(self, host: str, stats: messages.HostStats) -> None:
        context, now = self._context, self._context.clock.now()
        facts = context.observed.hosts.setdefault(host, ObservedHost())
        facts.stats = stats
        context.disks.add(host, stats.disk_free_bytes, now)
        for each in stats.units:
            slot = context.state.slots.get(each.unit)
            if slot is None or slot.incarnation != each.incarnation:
                continue
            context.metrics.memory(each.unit, each.incarnation, each.rss_bytes, now)
            if context.observed.measured(slot, each):
                context.observed.facts(slot).memory = context.metrics.memory_story(each.unit)
                context.show_unit(each.unit, urgent=False)
        context.show_host(host)

    def _scraped(self, unit: str, incarnation: int, values: dict[str, float]) -> None:
        context, now = self._context, self._context.clock.now()
        slot = context.state.slots.get(unit)
        if slot is None or slot.incarnation != incarnation:
            return
        context.metrics.update(unit, incarnation, values, now)
        context.observed.facts(slot).metrics = context.metrics.shown(unit)
        self._metrics_out.publish(encode(feed.MetricBatch(unit, now, values)))
        context.show_unit(unit, urgent=False)

    def incident(self, report: do.Report) -> None:
        """Write down an unplanned end with all evidence there is."""
        context, now = self._context, self._context.clock.now()
        last = context.observed.last_report(report.unit, report.incarnation)
        row = IncidentRow(
            id=f"{report.unit}.{report.incarnation}",
            unit=report.unit,
            incarnation=report.incarnation,
            at=now,
            what=f"{report.unit}.{report.incarnation} {report.what}",
            exit=report.exit,
            host=report.host,
            phase=last.phase,
            status=last.status,
            tail=self._tails.get((report.unit, report.incarnation), ()),
            versions={"agentrl": __version__},
            done=report.done,
            stacks=self._stacks_of(report),
            swept=report.swept,
        )
        self._write(row)

    def was_stopped(self, host: str, unit: str, incarnation: int) -> None:
        """Somebody stopped a unit by a signal, and it is continued: no end, but nothing that goes unsaid."""
        now = self._context.clock.now()
        self._write(
            IncidentRow(
                id=f"{unit}.{incarnation}-stopped-{now:.0f}",
                unit=unit,
                incarnation=incarnation,
                at=now,
                what=f"{unit}.{incarnation} was stopped by a signal",
                host=host,
                done="it was continued (SIGCONT)",
            )
        )

    def agent_died(self, host: str, pid: int, done: str) -> None:
        """The agent of the coordinator's own host."""
        now = self._context.clock.now()
        self._write(
            IncidentRow(
                id=f"agent-{host}-{pid}-{now:.0f}",
                unit="host agent",
                incarnation=0,
                at=now,
                what=f"the host agent of {host} (process {pid}) ended",
                host=host,
                done=done,
                versions={"agentrl": __version__},
            )
        )

    def _coordinator_trouble(self, host: str, trouble: messages.CoordinatorTrouble) -> None:
        at = self._context.clock.now() - trouble.age_s
        aborted = trouble.exit is not None and trouble.exit.signal in _WRITES_STACKS
        self._write(
            IncidentRow(
                id=f"coordinator-{trouble.pid}-{at:.0f}",
                unit="coordinator",
                incarnation=0,
                at=at,
                what=f"the coordinator (process {trouble.pid}) {trouble.what}",
                exit=trouble.exit,
                host=host,
                tail=trouble.tail,
                versions={"agentrl": __version__},
                done=trouble.done,
                stacks=trouble.log if aborted else "",
            )
        )

    def restore(self, incidents: Iterable[IncidentRow]) -> None:
        """Show what the coordinators before this one wrote down, the oldest first."""
        for row in incidents:
            self._show(row)

    def _write(self, row: IncidentRow) -> None:
        log.warning("%s; %s", row.what, row.done)
        self._context.executor.event("incident", row.id, row.at, encode(row))
        self._show(row)

    def _show(self, row: IncidentRow) -> None:
        context = self._context
        context.feed.set(f"incident/{row.id}", row, urgent=True)
        self._shown.append(row.id)
        if len(self._shown) > INCIDENTS_SHOWN:
            context.feed.remove(f"incident/{self._shown.popleft()}")

    def forgotten(self, unit: str, incarnation: int) -> None:
        """Everything about the end of this incarnation is written down."""
        self._tails.pop((unit, incarnation), None)

    def _stacks_of(self, report: do.Report) -> str:
        """The file with the stacks of a life that speaks, if it ended by a signal that makes it write them."""
        spec = self._context.state.slots[report.unit].spec
        if spec is None or not spec.speaks or report.exit is None or report.exit.signal not in _WRITES_STACKS:
            return ""
        return f"{self._context.run.run_dir}/logs/{report.unit}/{report.incarnation}.log"
