"""Peers by name: the newest peer counts, and unknown peers must send a hello."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentrl.control.messaging.peers import WHO_ARE_YOU_EVERY_S, Kind, Known, Peers
from agentrl.protocol.messages import Drain, WhoAreYou
from agentrl.protocol.wire import decode_from_coordinator, encode
from agentrl.transport.hub import Hub, Peer


class Outbox:
    """Replaces the hub and records the messages by peer."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, msgspec.Struct]] = []

    def send(self, peer: Any, frame: bytes) -> bool:
        self.sent.append((peer, decode_from_coordinator(frame)))
        return True


def some_peer() -> Peer:
    return Peer.__new__(Peer)


def peers_and_outbox() -> tuple[Peers, Outbox]:
    peers, outbox = Peers(), Outbox()
    peers.hub = cast(Hub, outbox)
    return peers, outbox


def test_only_the_newest_peer_of_a_name_is_known() -> None:
    peers, outbox = peers_and_outbox()
    old, new = some_peer(), some_peer()
    peers.welcome(old, Known(Kind.UNIT, "web-0", 1))
    peers.welcome(new, Known(Kind.UNIT, "web-0", 2))
    assert peers.get(old) is None, "a message of the old peer must not count as one of the new unit"
    assert not peers.send_to_unit("web-0", 1, Drain(1.0))
    assert peers.send_to_unit("web-0", 2, Drain(1.0))
    peers.gone(old)
    assert peers.is_connected("web-0")
    assert [peer for peer, _ in outbox.sent] == [new]
    assert encode(outbox.sent[0][1]) == encode(Drain(1.0))  # type: ignore[arg-type]


def test_unknown_peer_with_many_messages_gets_one_request_for_a_hello_per_second() -> None:
    peers, outbox = peers_and_outbox()
    one, other = some_peer(), some_peer()
    for step in range(30):
        peers.ask_who(one, 1000.0 + step / 100)
    peers.ask_who(other, 1000.0)
    assert outbox.sent == [(one, WhoAreYou()), (other, WhoAreYou())]
    peers.ask_who(one, 1000.0 + WHO_ARE_YOU_EVERY_S)
    assert len(outbox.sent) == 3, "the first WhoAreYou may be lost"
    peers.welcome(one, Known(Kind.HOST, "b"))
    peers.ask_who(one, 1000.0 + WHO_ARE_YOU_EVERY_S)
    assert len(outbox.sent) == 4, "a WhoAreYou from before the hello does not count"
