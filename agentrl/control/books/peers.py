"""Who is at the other end of each connection.

Invariant: a name has at most one peer, the newest.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from agentrl.protocol.messages import Message
from agentrl.protocol.wire import encode
from agentrl.transport.hub import Hub, Peer


class Kind(enum.Enum):
    UNIT = enum.auto()
    HOST = enum.auto()
    CLIENT = enum.auto()


@dataclass(slots=True)
class Known:
    """A peer that said hello."""

    kind: Kind
    name: str
    """Unit, host, or who sits at a client."""
    incarnation: int = 0


class Peers:
    """All peers that were welcomed."""

    def __init__(self) -> None:
        self.hub: Hub | None = None
        self._known: dict[Peer, Known] = {}
        self._units: dict[str, Peer] = {}
        self._hosts: dict[str, Peer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, peer: Peer) -> Known | None:
        return self._known.get(peer)

    def welcome(self, peer: Peer, known: Known) -> None:
        self._known[peer] = known
        if known.kind is Kind.UNIT:
            self._units[known.name] = peer
        elif known.kind is Kind.HOST:
            self._hosts[known.name] = peer

    def gone(self, peer: Peer) -> Known | None:
        known = self._known.pop(peer, None)
        if known is None:
            return None
        table = {Kind.UNIT: self._units, Kind.HOST: self._hosts}.get(known.kind)
        if table is not None and table.get(known.name) == peer:
            del table[known.name]
        return known

    def send(self, peer: Peer, message: Message) -> bool:
        return self.hub is not None and self.hub.send(peer, encode(message))

    def tell_unit(self, unit: str, incarnation: int, message: Message) -> bool:
        peer = self._units.get(unit)
        known = self._known.get(peer) if peer is not None else None
        if peer is None or known is None or known.incarnation != incarnation:
            return False
        return self.send(peer, message)

    def tell_host(self, host: str, message: Message) -> bool:
        peer = self._hosts.get(host)
        return peer is not None and self.send(peer, message)

    def hosts(self) -> list[str]:
        return sorted(self._hosts)

    def is_heard(self, unit: str) -> bool:
        return unit in self._units
