"""Handles the messages of units.

Invariants:
- Only the present incarnation with the right token is accepted; any other is refused permanently.
- A heartbeat costs one dictionary lookup and a few assignments.
"""

from __future__ import annotations

import hashlib
import hmac
import logging

from msgspec.structs import replace

from agentrl.control.context import Context
from agentrl.control.incidents import Incidents
from agentrl.control.messaging.peers import Kind, Known
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.errors import ConfigError, ExitCode
from agentrl.protocol import messages
from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.messages import Beat, BeatAck, Refused, Welcome, served_commands
from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.supervision.unit_slots import Slot
from agentrl.transport.hub import Peer
from agentrl.transport.log_limiter import LogLimiter

log = logging.getLogger(__name__)
limited_log = LogLimiter(log)


def token_of(secret: bytes, incarnation: str) -> str:
    """The fencing token of an incarnation; it cannot be computed without the secret of the run."""
    return hmac.new(secret, incarnation.encode(), hashlib.sha256).hexdigest()[:32]


class UnitHandler:
    def __init__(self, context: Context, requests: PendingRequests, incidents: Incidents) -> None:
        self._context = context
        self._requests = requests
        self._incidents = incidents

    def hello(self, peer: Peer, hello: messages.UnitHello) -> None:
        refusal = self._refusal(peer, hello)
        if refusal is not None:
            limited_log.warning(hello.unit, "%s.%s is refused: %s", hello.unit, hello.incarnation, refusal.message)
            self._context.peers.send(peer, refusal)
            return
        known = Known(Kind.UNIT, hello.unit, hello.incarnation, wants_deaths=hello.hears_deaths)
        self._context.peers.welcome(peer, known)
        self._context.lease_unit(hello.unit)
        slot = self._context.state.slots[hello.unit]
        self._declare(slot, hello.declared)
        self._context.peers.send(peer, self._welcome(slot))
        self._context.happened(events.UnitReady(unit=hello.unit, incarnation=hello.incarnation, ready=hello.ready))
        if slot.state is UnitState.DRAINING:
            # The order to the unit may have been lost with the last coordinator.
            self._context.peers.send(peer, messages.Drain(max(0.0, slot.timer - self._context.clock.now())))

    def _refusal(self, peer: Peer, hello: messages.UnitHello) -> Refused | None:
        context = self._context
        if refusal := context.refuse_handshake("unit", hello.major, hello.version, hello.run, final=True):
            return refusal
        name = f"{hello.unit}.{hello.incarnation}"
        if not hmac.compare_digest(token_of(context.secret, name), hello.token):
            return Refused(ExitCode.REFUSED, f"The token of {name} is wrong.", final=True)
        if peer.local and (refusal := context.local_peers.refusal_of_unit(peer, hello)):
            return refusal
        if context.supervisor.is_unidentified(hello.unit):
            return Refused(ExitCode.CONFLICT, f"The host of {name} has not reported about it yet.")
        if not context.supervisor.is_present(hello.unit, hello.incarnation):
            return Refused(ExitCode.CONFLICT, f"{name} was replaced or is not wanted any more.", final=True)
        return None

    def _welcome(self, slot: Slot) -> Welcome:
        context = self._context
        return context.welcome(
            heartbeat_s=context.supervisor.times.heartbeat_s,
            orphan_lease_s=slot.spec.orphan_lease_s if slot.spec else 600.0,
            permission=messages.Permission.UNIT,
            knobs=self._knobs_of(slot.group),
            paused=context.supervisor.paused(slot.unit),
        )

    # ---- knobs of units ----

    def _declare(self, slot: Slot, declared: tuple[Knob, ...]) -> None:
        knobs = self._context.knobs
        known = {name: knobs.declaration(name) for name in knobs.names()} if declared else {}
        for each in declared:
            try:
                knob = replace(each, owner=slot.group).verified()
            except (ConfigError, TypeError) as invalid:
                limited_log.warning(slot.unit, "%s declares an invalid knob %s: %s", slot.unit, each.name, invalid)
                continue
            if known.get(each.name) == knob:
                continue
            if complaint := knobs.declare(knob):
                log.warning("%s", complaint)
            self._context.executor.put("knob", each.name, knobs.persisted(each.name))
            self._context.show_knob(each.name)

    def _knobs_of(self, group: str) -> dict[str, KnobValue]:
        knobs = self._context.knobs
        return {name: knobs.value(name) for name in knobs.names() if knobs.declaration(name).owner == group}

    # ---- accounts ----

    def beat(self, peer: Peer, lease: str, beat: Beat) -> None:
        now = self._context.clock.now()
        self._context.leases.beat(lease, now, progress=beat.progress, loop_lag_s=beat.loop_lag_s)
        if beat.ack:
            self._context.peers.send(peer, BeatAck(beat.seq, now))

    def report(self, known: Known, report: messages.UnitReport) -> None:
        context, now = self._context, self._context.clock.now()
        slot = context.state.slots[known.name]
        facts = context.observed.facts(slot)
        was = facts.report
        facts.report, facts.reported = report, now
        context.leases.phase(known.name, now, phase=report.phase, age_s=report.phase_age_s, at_most_s=report.at_most_s)
        if report.progress_age_s is not None:
            context.leases.progress(known.name, now, progress=report.progress, age_s=report.progress_age_s)
        unit, incarnation = known.name, known.incarnation
        if report.ready and slot.state is UnitState.STARTING:
            context.happened(events.UnitReady(unit=unit, incarnation=incarnation))
        lease = context.leases.get(known.name)
        ends = lease.phase_ends if lease is not None else None
        if ends is not None:
            if slot.state is UnitState.STARTING:
                context.happened(events.StartExtended(unit=unit, incarnation=incarnation, until=ends))
            if ends > max(slot.phase_until, now + context.leases.suspect_after_s):
                context.happened(events.PhaseAnnounced(unit=unit, incarnation=incarnation, until=ends))
        if report.extend_stop_s is not None and report.extend_stop_s != was.extend_stop_s:
            context.happened(events.StopExtended(unit=unit, incarnation=incarnation, by_s=report.extend_stop_s))
        self._incidents.parts_reported(slot, was, report)
        for name, value in report.knobs.items():
            if context.knobs.report(name, value, slot.group):
                context.show_knob(name)
        urgent = (was.problems, was.incomplete) != (report.problems, report.incomplete)
        context.show_unit(known.name, urgent=urgent)

    def bye(self, known: Known, bye: messages.Bye) -> None:
        self._context.happened(
            events.UnitBye(unit=known.name, incarnation=known.incarnation, code=bye.code, reason=bye.reason)
        )
        self._context.leases.end(known.name)

    def answered(self, known: Known, answer: messages.KnobPreviewed | served_commands.UnitAnswer) -> None:
        self._requests.answered(known, answer.ask, answer)

    def died(self, unit: str, incarnation: int) -> None:
        """Handle the certain end of an incarnation."""
        self._requests.died(unit, incarnation)
        self._context.peers.announce_death(served_commands.UnitDied(unit, incarnation))
