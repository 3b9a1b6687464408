"""Admits host agents, and forgets hosts that are gone.

Invariants:
- On the coordinator's machine only the process in `agent.json` is the host agent. The kernel identifies the process of
  a connection, so a unit cannot pose as its host.
- From other machines only a key with the permission `host` registers a host, and only the machine that has joined as
  that host.
- The units of another machine have a separate key, which cannot register a host.
- A host that is silent for long and holds no unit is forgotten: its row disappears and its name is free. A person may
  declare earlier that a silent host is gone for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from agentrl.config.this_host import HOST_NAME
from agentrl.control.context import Context
from agentrl.control.messaging.peers import Kind, Known
from agentrl.errors import AgentrlError, ExitCode
from agentrl.host.agent_lock import read_agent_file
from agentrl.protocol.messages import HostHello, Permission, Refused
from agentrl.protocol.wire import encode
from agentrl.supervision import events
from agentrl.supervision.joined_hosts import JoinedHost, JoinedHosts, hash_of
from agentrl.transport.hub import Peer

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""How often silent hosts are searched for. This is rare, because each search reads all units."""

_MAY_REGISTER = {
    Kind.HOST: (Permission.HOST, Permission.ADMIN),
    Kind.UNIT: (Permission.UNIT, Permission.ADMIN),
}


class HostAdmission:
    def __init__(self, context: Context, joined: dict[str, JoinedHost], state_dir: Path) -> None:
        self._context = context
        self._state_dir = state_dir
        self._joined = JoinedHosts(joined)
        self.on_forgotten: list[Callable[[str], None]] = []
        self.on_dismissed: Callable[[str], None] = lambda host: None
        """Called after a person removed a host, or declared it gone."""
        self._began = context.clock.now()
        self._look_at = 0.0

    def may_register(self, peer: Peer, kind: Kind) -> bool:
        """Whether a connection may send messages of units, or of hosts."""
        return peer.local or self._context.keyring.permission(peer.key_name or "") in _MAY_REGISTER[kind]

    def refusal(self, peer: Peer, hello: HostHello) -> Refused | None:
        """Returns why this peer is not the host agent that it claims to be."""
        context = self._context
        if refusal := context.refuse_handshake(
            "host agent", hello.major, hello.facts.agent_version, hello.run, final=True
        ):
            return refusal
        if not HOST_NAME.fullmatch(hello.host):
            return Refused(ExitCode.REFUSED, "A name of a host has at most 64 letters, digits, dots and dashes.")
        if peer.local:
            return self._refusal_here(peer, hello.host)
        if hello.host == context.host:
            sentence = f"Host {hello.host} is the machine of the coordinator."
            return Refused(ExitCode.CONFLICT, sentence, "Give this machine another name (--name).", final=True)
        found = self._joined.refusal(_claim(peer, hello), connected=self._is_connected(peer, hello.host))
        return None if found is None else Refused(ExitCode.CONFLICT, found.message, found.hint, final=found.final)

    def _refusal_here(self, peer: Peer, host: str) -> Refused | None:
        agent = read_agent_file(self._state_dir, host)
        if agent is not None and agent.pid == peer.pid and agent.identity.alive():
            return None
        sentence = f"Process {peer.pid} is not the host agent of {host}."
        hint = "From another state directory, connect to coordinator.listen with a key of permission host."
        return Refused(ExitCode.KEY_REFUSED, sentence, hint)

    def _is_connected(self, peer: Peer, host: str) -> bool:
        known = self._context.state.hosts.get(host)
        if known is None or not known.connected:
            return False
        return self._context.peers.get(peer) != Known(Kind.HOST, host)

    def admitted(self, peer: Peer, hello: HostHello) -> None:
        """Record the machine of an accepted hello, and admit the key of its units."""
        if peer.local:
            return
        context, claim = self._context, _claim(peer, hello)
        if self._joined.join(claim):
            context.executor.put("host", claim.host, encode(claim))
        if hello.units_key and peer.key_name:
            try:
                context.keyring.add_for_units(peer.key_name, hello.units_key, context.clock.now())
            except AgentrlError as failed:
                log.error("the units of host %s cannot connect: %s", hello.host, failed)

    def key_of(self, host: str) -> str:
        """The name of the key with which the host joined; empty for an unknown host and for this machine."""
        return self._joined.key_of(host)

    def forget_silent(self, now: float) -> None:
        """Forget the hosts that are gone for good. May be called often."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        context = self._context
        after_s = context.supervisor.times.forget_host_after_s
        since = dict.fromkeys(self._joined.names(), self._began)
        since |= {name: host.since for name, host in context.state.hosts.items()}
        for name, at in since.items():
            host = context.state.hosts.get(name)
            if now - at < after_s or name == context.host or (host is not None and host.connected):
                continue
            if not context.state.holds_units(name):
                self.forget(name)

    def forget(self, name: str, *, by: str = "", gone: str = "") -> None:
        """Forgets a host. `by`: the operation by which a person declares it gone; `gone`: the reason why its machine is
        gone."""
        context = self._context
        why = gone or (f"declared gone by {by}" if by else "silent, and holds no unit")
        log.info("host %s is forgotten: %s", name, why)
        if self._joined.forget(name):
            context.executor.put("host", name, None)
        context.host_leases.end(name)
        context.peers.forget_host(name)
        for listener in self.on_forgotten:
            listener(name)
        if by:
            self.on_dismissed(name)
        context.observed.hosts.pop(name, None)
        context.happened(events.HostForgotten(host=name, by=by, gone=gone))


def _claim(peer: Peer, hello: HostHello) -> JoinedHost:
    return JoinedHost(
        host=hello.host,
        key_hash=hash_of(hello.key),
        machine_id=hello.machine_id,
        boot_id=hello.facts.boot_id,
        access_key=peer.key_name or "",
    )
