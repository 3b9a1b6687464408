"""Routes each message that arrives to the handler of its sender.

Invariants:
- No message can stop the coordinator: an unreadable one is refused or dropped with a line in the log. It does not end
  the registration: a unit that sends one wrong number stays connected.
- A peer without a hello is requested to send one.
- A peer may only send the messages of its kind.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from agentrl.control.context import Context
from agentrl.control.handlers import truncation
from agentrl.control.handlers.client_requests import ClientHandler
from agentrl.control.handlers.hosts import HostHandler
from agentrl.control.handlers.units import UnitHandler
from agentrl.control.host_admission import HostAdmission
from agentrl.control.messaging.peers import Kind, Known
from agentrl.errors import ExitCode, ProtocolError
from agentrl.protocol import messages
from agentrl.protocol.messages import Refused, ToCoordinator, served_commands
from agentrl.protocol.wire import decode_to_coordinator
from agentrl.transport.hub import Peer
from agentrl.transport.log_limiter import LogLimiter

limited_log = LogLimiter(logging.getLogger(__name__))


class MessageRouter:
    def __init__(
        self,
        context: Context,
        units: UnitHandler,
        hosts: HostHandler,
        clients: ClientHandler,
        admission: HostAdmission,
    ) -> None:
        self._context = context
        self._may_register = admission.may_register
        self._units = units
        self._hosts = hosts
        self._clients = clients

    def on_message(self, peer: Peer, frame: bytes) -> None:
        known = self._context.peers.get(peer)
        try:
            message = decode_to_coordinator(frame)
        except ProtocolError as broken:
            limited_log.warning(peer, "%r sent an unreadable message: %s", known or peer, broken)
            if known is None or known.kind is Kind.CLIENT:
                self._context.peers.send(peer, Refused(ExitCode.REFUSED, broken.message, "Use the same version."))
            return
        # The most frequent message by far comes first.
        if type(message) is messages.Beat and known is not None and known.kind is Kind.UNIT:
            if peer.local or self._may_register(peer, Kind.UNIT):
                self._units.beat(peer, known.name, message)
            return
        try:
            self._route(peer, known, message)
        except Exception:  # noqa: BLE001 - logged with its traceback, at a limited rate
            # An error ends only this message: the message of one peer must not end the coordinator.
            limited_log.warning(peer, "a %s of %r failed", type(message).__name__, peer, exc_info=True)

    def on_gone(self, peer: Peer) -> None:
        self._context.peers.gone(peer)
        self._context.local_peers.gone(peer)

    def _route(self, peer: Peer, known: Known | None, message: ToCoordinator) -> None:
        if isinstance(message, messages.ClientHello):
            self._clients.hello(peer, message)
        elif isinstance(message, messages.UnitHello | messages.HostHello):
            kind = Kind.UNIT if isinstance(message, messages.UnitHello) else Kind.HOST
            if not self._may_register(peer, kind):
                what = kind.name.lower()
                refusal = f"The key {peer.key_name} may not register a {what}."
                hint = f"It needs the permission {what}: `agentrl keys new NAME --permission {what}`."
                if kind is Kind.HOST:
                    hint += " Copy the new key file to this host and restart its agent with it (--key)."
                self._context.peers.send(peer, Refused(ExitCode.KEY_REFUSED, refusal, hint))
            elif isinstance(message, messages.UnitHello):
                self._units.hello(peer, replace(message, declared=truncation.declarations(message.declared)))
            else:
                self._hosts.hello(peer, message)
        elif known is None:
            self._context.peers.ask_who(peer, self._context.clock.now())
        elif known.kind is Kind.CLIENT:
            if isinstance(message, messages.Request):
                self._clients.request(peer, known, message)
        elif not self._may_register(peer, known.kind):
            refusal = f"The key {peer.key_name} was revoked."
            self._context.peers.send(peer, Refused(ExitCode.KEY_REFUSED, refusal, final=True))
        elif known.kind is Kind.UNIT:
            self._from_unit(known, message)
        else:
            self._from_host(peer, known, message)

    def _from_unit(self, known: Known, message: ToCoordinator) -> None:
        if not self._context.supervisor.is_present(known.name, known.incarnation):
            return
        match message:
            case messages.UnitReport():
                self._units.report(known, truncation.report(message))
            case messages.UnitMetrics(values):
                self._context.metrics_reported(known.name, known.incarnation, truncation.metrics(values))
            case messages.Bye():
                self._units.bye(known, truncation.bye(message))
            case messages.KnobPreviewed():
                self._units.answered(known, truncation.previewed(message))
            case served_commands.UnitAnswer():
                self._units.answered(known, truncation.answer(message))
            case _:
                limited_log.warning(
                    known.name, "%s sent a %s, which units may not send", known.name, type(message).__name__
                )

    def _from_host(self, peer: Peer, known: Known, message: ToCoordinator) -> None:
        context, now = self._context, self._context.clock.now()
        context.host_leases.beat(known.name, now)
        host = context.state.hosts.get(known.name)
        if host is not None and not host.connected:
            # The connection of the host survived its silence. Only its ledger has the events of that time.
            context.peers.ask_who(peer, now)
        if isinstance(message, messages.HostBeat):
            context.peers.send(peer, messages.BeatAck(message.seq, now))
        elif isinstance(message, messages.FromHost):
            self._hosts.message(known, message)
