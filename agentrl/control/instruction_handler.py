"""Carries out the instructions of the supervisor: messages, timers and rows.

Invariants:
- An instruction for a host that is not connected is dropped: the host reports its whole ledger when it comes back, and
  the supervisor orders what is missing again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from agentrl.control.context import Context
from agentrl.control.handlers.units import token_of
from agentrl.control.host_tunnels import HostTunnels
from agentrl.control.incidents import Incidents
from agentrl.errors import ConfigError
from agentrl.protocol import messages
from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.supervision import instructions as do

READ_SOCKETS_FIRST_S = 1.0
log = logging.getLogger(__name__)


class InstructionHandler:
    def __init__(
        self,
        context: Context,
        incidents: Incidents,
        tunnels: HostTunnels,
        died: Callable[[str, int], None],
        all_stopped: Callable[[], None],
    ) -> None:
        self._context = context
        self._incidents = incidents
        self._tunnels = tunnels
        self._died = died
        self._all_stopped = all_stopped
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.hub_address = ""

    def perform(self, instruction: do.Instruction) -> None:
        context = self._context
        if isinstance(instruction, do.Spawn | do.Signal | do.KillTree | do.SendToUnit):
            log.info("%s", instruction)
        if isinstance(instruction, do.Signal | do.KillTree | do.SendToUnit):
            self._note_end(instruction)
        match instruction:
            case do.Publish(kind, key):
                self._publish(kind, key)
            case do.Spawn():
                self._spawn(instruction)
            case do.Signal(host, unit, incarnation, number, leader_only):
                context.peers.send_to_host(host, messages.SignalUnit(unit, incarnation, number, leader_only))
                if number == signal.SIGCONT:
                    self._incidents.unit_stopped_by_signal(host, unit, incarnation)
            case do.KillTree(host, unit, incarnation):
                context.peers.send_to_host(host, messages.KillTree(unit, incarnation))
            case do.Forget(host, unit, incarnation):
                context.peers.send_to_host(host, messages.Forget((f"{unit}.{incarnation}",)))
                self._incidents.forget(unit, incarnation)
            case do.SendToUnit(unit, incarnation, message):
                context.peers.send_to_unit(unit, incarnation, message)
            case do.StartTimer(unit, at):
                self._start_timer(unit, at)
            case do.Report():
                self._incidents.unit_ended(instruction)
            case do.Died(unit, incarnation):
                self._died(unit, incarnation)
            case do.AllStopped():
                self._all_stopped()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _publish(self, kind: str, key: str) -> None:
        match kind:
            case "unit":
                self._context.show_unit(key)
            case "group":
                self._context.show_group(key)
            case "host":
                self._context.show_host(key)
            case _:
                self._context.show_run()

    def _spawn(self, order: do.Spawn) -> None:
        context, host, unit, incarnation = self._context, order.host, order.unit, order.incarnation
        slot = context.state.slots.get(unit)
        if slot is None or slot.spec is None or slot.incarnation != incarnation:
            return
        context.leases.end(unit)
        if failed := self._tunnels.before_spawn(host, slot.spec.role):
            # A missing secret never appears by itself; disk space may.
            final = isinstance(failed, ConfigError)
            reason = f"{failed} (on host {context.host})"
            missing = events.SpawnFailed(host=host, unit=unit, incarnation=incarnation, reason=reason, final=final)
            asyncio.get_running_loop().call_soon(context.happened, missing)
            return
        trace = context.operations.trace_of(unit)
        context.process_spans.spawning(host, unit, incarnation, trace, context.clock.now())
        context.peers.send_to_host(
            host,
            messages.Spawn(
                unit=unit,
                incarnation=incarnation,
                token=token_of(context.secret, slot.name),
                spec=slot.spec,
                # On other hosts the host agent gives units the address at which it reached the coordinator.
                coordinator=self.hub_address if host == context.host else "",
                devices=slot.devices,
                traceparent=trace.header() if trace else "",
                rank=slot.rank,
                stimulus=order.stimulus,
            ),
        )

    def _note_end(self, order: do.Signal | do.KillTree | do.SendToUnit) -> None:
        context = self._context
        if isinstance(order, do.SendToUnit):
            slot = context.state.slots.get(order.unit)
            host = "" if slot is None else slot.host
        else:
            host = order.host
        context.process_spans.ordered(order, host, context.operations.trace_of(order.unit), context.clock.now())

    def _start_timer(self, unit: str, at: float, *, again: bool = False) -> None:
        if known := self._timers.pop(unit, None):
            known.cancel()
        delay = READ_SOCKETS_FIRST_S if again else max(0.0, at - self._context.clock.now())
        self._timers[unit] = asyncio.get_running_loop().call_later(delay, self._fire, unit, at, again)

    def _fire(self, unit: str, at: float, again: bool) -> None:
        self._timers.pop(unit, None)
        slot = self._context.state.slots.get(unit)
        late = self._context.clock.now() - at
        # If the coordinator itself was stopped, the message that would prevent this may still wait in its sockets.
        waits = slot is not None and slot.state in (UnitState.STARTING, UnitState.DRAINING)
        if waits and not again and late > self._context.supervisor.times.late_after_s:
            self._start_timer(unit, at, again=True)
            return
        self._context.happened(events.TimerFired(unit=unit, at=at))
