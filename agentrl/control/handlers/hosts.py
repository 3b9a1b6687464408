"""Handles the messages of host agents.

Invariants:
- A report about a process counts only for the incarnation that it names, and only if it comes from its host.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from agentrl.control.context import Context
from agentrl.control.host_admission import HostAdmission
from agentrl.control.host_departures import HostDepartures
from agentrl.control.host_tunnels import HostTunnels
from agentrl.control.incidents import Incidents
from agentrl.control.messaging.peers import Kind, Known
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.observed_state import ObservedHost
from agentrl.protocol import messages
from agentrl.protocol.messages import Welcome
from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.transport.connecting_socket import UNANSWERED_S
from agentrl.transport.hub import Peer
from agentrl.transport.log_limiter import LogLimiter

log = logging.getLogger(__name__)
limited_log = LogLimiter(log)

_EVENTS: dict[type[Any], type[Any]] = {
    messages.Spawned: events.Spawned,
    messages.SpawnFailed: events.SpawnFailed,
    messages.Probed: events.ProbeChanged,
    messages.ProcessState: events.ProcessStopped,
}
"""Messages with the same fields as the event of the supervisor."""


class HostHandler:
    def __init__(
        self,
        context: Context,
        requests: PendingRequests,
        incidents: Incidents,
        admission: HostAdmission,
        tunnels: HostTunnels,
        departures: HostDepartures,
    ) -> None:
        self._context = context
        self._admission = admission
        self._tunnels = tunnels
        self._departures = departures
        self._requests = requests
        self._incidents = incidents

    def hello(self, peer: Peer, hello: messages.HostHello) -> None:
        context = self._context
        refusal = self._admission.refusal(peer, hello)
        if refusal is not None:
            limited_log.warning(peer, "%r is refused as host %s: %s", peer, hello.host[:64], refusal.message)
            context.peers.send(peer, refusal)
            return
        self._admission.admitted(peer, hello)
        context.peers.welcome(peer, Known(Kind.HOST, hello.host))
        context.lease_host(hello.host)
        context.observed.hosts[hello.host] = ObservedHost(
            agent_pid=hello.agent_pid, agent_start_ticks=hello.agent_start_ticks
        )
        context.peers.send(peer, self._welcome())
        self._tunnels.connected(hello.host)
        for entry in hello.inventory:
            if not context.supervisor.holds(hello.host, entry.unit, entry.incarnation):
                continue
            if entry.tail:
                self._incidents.keep_tail(entry.unit, entry.incarnation, entry.tail)
            elif entry.exit is None and context.supervisor.is_present(entry.unit, entry.incarnation):
                self._lease_if_it_speaks(entry.unit, far=not peer.local)
        context.happened(
            events.HostConnected(
                host=hello.host,
                facts=hello.facts,
                inventory=hello.inventory,
                age_s=hello.agent_age_s,
                devices=hello.devices,
                minor=hello.minor,
            )
        )
        log.info("host %s is connected with %d ledger entries", hello.host, len(hello.inventory))

    def send_times(self) -> None:
        """Sends the configured times, which have changed. A host agent often connects before there is a
        configuration."""
        for host in self._context.peers.hosts():
            self._context.peers.send_to_host(host, self._welcome())

    def _welcome(self) -> Welcome:
        times = self._context.supervisor.times
        return self._context.welcome(
            heartbeat_s=times.heartbeat_s,
            stats_every_s=times.stats_every_s,
            coordinator_silent_s=times.coordinator_silent_s,
        )

    def _lease_if_it_speaks(self, unit: str, *, far: bool) -> None:
        """Starts a lease for a living unit that speaks: from now on it must send heartbeats."""
        slot = self._context.state.slots[unit]
        if slot.spec is not None and slot.spec.speaks and slot.came_up:
            self._context.lease_unit(unit)
            if far and slot.state is UnitState.LOST:
                # After an outage the connections of a host come back after a while, and not all at the same moment.
                self._context.leases.connects_again(unit, self._context.clock.now(), UNANSWERED_S)

    def message(self, known: Known, message: messages.FromHost) -> None:
        context = self._context
        context.process_spans.reported(message, context.clock.now())
        match message:
            case messages.Spawned() | messages.SpawnFailed() | messages.Probed() | messages.ProcessState():
                context.happened(_EVENTS[type(message)](host=known.name, **msgspec.structs.asdict(message)))
            case messages.Exited():
                self._exited(known.name, message)
            case messages.GroupEmpty(unit, incarnation, swept):
                context.happened(events.TreeGone(host=known.name, unit=unit, incarnation=incarnation, swept=swept))
            case messages.CoordinatorTrouble() if known.name == context.host:
                self._incidents.coordinator_ended(known.name, message)
            case messages.HostLeaving():
                self._departures.announced(known.name, message)
            case messages.TunnelOpened():
                self._tunnels.opened(known.name, message)
            case messages.HostStats():
                self._stats(known.name, message)
            case messages.Scraped(unit, incarnation, values) if context.supervisor.holds(known.name, unit, incarnation):
                context.metrics_reported(unit, incarnation, values)
            case messages.Answer():
                self._requests.answered(known, message.ask, message)

    def _exited(self, host: str, exited: messages.Exited) -> None:
        context, unit, incarnation = self._context, exited.unit, exited.incarnation
        if context.supervisor.holds(host, unit, incarnation):
            self._incidents.keep_tail(unit, incarnation, exited.tail)
            if context.supervisor.is_present(unit, incarnation):
                context.leases.end(unit)
        context.happened(events.Exited(host=host, unit=unit, incarnation=incarnation, exit=exited.exit))
        if exited.group_empty:
            context.happened(events.TreeGone(host=host, unit=unit, incarnation=incarnation))

    def _stats(self, host: str, stats: messages.HostStats) -> None:
        context, now = self._context, self._context.clock.now()
        observed = context.observed.hosts.setdefault(host, ObservedHost())
        observed.stats = stats
        if stats.wall_at:
            observed.clock_off_s = stats.wall_at - time.time()
        if stats.devices:
            context.happened(events.DevicesHeld(host=host, devices=stats.devices))
        context.disks.add(host, stats.disk_free_bytes, now)
        for each in stats.units:
            if not context.supervisor.holds(host, each.unit, each.incarnation):
                continue
            slot = context.state.slots[each.unit]
            context.metrics.memory(each.unit, each.incarnation, each.rss_bytes, now)
            if context.observed.measured(slot, each):
                context.observed.facts(slot).memory = context.metrics.memory_history(each.unit)
                context.show_unit(each.unit, urgent=False)
        context.show_host(host)
