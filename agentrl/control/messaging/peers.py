"""Holds the peers that sent a hello, by connection and by name.

Invariants:
- A name has at most one peer, the one with the newest hello.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import WhoAreYou
from agentrl.protocol.messages.served_commands import UnitDied
from agentrl.protocol.wire import encode
from agentrl.transport.hub import Hub, Peer

WHO_ARE_YOU_EVERY_S = 1.0


class Kind(enum.Enum):
    UNIT = enum.auto()
    HOST = enum.auto()
    CLIENT = enum.auto()


@dataclass(slots=True)
class Known:
    """A peer that sent a hello."""

    kind: Kind
    name: str
    """A unit, a host, or the person at a client."""
    incarnation: int = 0
    wants_deaths: bool = False
    """True if the unit requested a message for every incarnation that ends."""

    @property
    def address(self) -> str:
        """The address of requests to this peer; equal only for the same incarnation or host."""
        return unit_address(self.name, self.incarnation) if self.kind is Kind.UNIT else host_address(self.name)


def unit_address(unit: str, incarnation: int) -> str:
    return f"{unit}.{incarnation}"


def host_address(host: str) -> str:
    return f"host {host}"


class Peers:
    """All peers that got a Welcome."""

    def __init__(self) -> None:
        self.hub: Hub | None = None
        self._known: dict[Peer, Known] = {}
        self._units: dict[str, Peer] = {}
        self._hosts: dict[str, Peer] = {}
        self._asked_at: dict[Peer, float] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, peer: Peer) -> Known | None:
        return self._known.get(peer)

    def welcome(self, peer: Peer, known: Known) -> None:
        table = self._table(known.kind)
        if table is not None:
            former = table.get(known.name)
            if former is not None and former != peer:
                # Late messages of the older peer must not count as those of the newer one, so it must send a hello
                # again.
                self._known.pop(former, None)
            table[known.name] = peer
        self._known[peer] = known
        self._asked_at.pop(peer, None)

    def ask_who(self, peer: Peer, now: float) -> None:
        """Request a hello from the peer. Peers send several messages before they read this, so it is sent at most once
        a second.
        """
        if now - self._asked_at.get(peer, 0.0) >= WHO_ARE_YOU_EVERY_S:
            self._asked_at[peer] = now
            self.send(peer, WhoAreYou())

    def gone(self, peer: Peer) -> Known | None:
        self._asked_at.pop(peer, None)
        known = self._known.pop(peer, None)
        if known is None:
            return None
        table = self._table(known.kind)
        if table is not None and table.get(known.name) == peer:
            del table[known.name]
        return known

    def forget_host(self, host: str) -> None:
        """A broken network link can keep its connection open for long. If the host sends a message again, it must send
        a hello first."""
        peer = self._hosts.get(host)
        if peer is not None:
            self.gone(peer)

    def _table(self, kind: Kind) -> dict[str, Peer] | None:
        return {Kind.UNIT: self._units, Kind.HOST: self._hosts}.get(kind)

    def send(self, peer: Peer, message: Message) -> bool:
        return self.hub is not None and self.hub.send(peer, encode(message))

    def send_to_unit(self, unit: str, incarnation: int, message: Message) -> bool:
        peer = self._units.get(unit)
        known = self._known.get(peer) if peer is not None else None
        if peer is None or known is None or known.incarnation != incarnation:
            return False
        return self.send(peer, message)

    def announce_death(self, death: UnitDied) -> None:
        """Notify all units that requested it."""
        for peer, known in list(self._known.items()):
            if known.wants_deaths:
                self.send(peer, death)

    def send_to_host(self, host: str, message: Message) -> bool:
        peer = self._hosts.get(host)
        return peer is not None and self.send(peer, message)

    def hosts(self) -> list[str]:
        return sorted(self._hosts)

    def is_connected(self, unit: str) -> bool:
        return unit in self._units
