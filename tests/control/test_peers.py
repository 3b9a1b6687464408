"""Who is at the other end: the newest peer of a name, and who has to say so again."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentrl.control.messaging.peers import WHO_ARE_YOU_EVERY_S, Kind, Known, Peers
from agentrl.protocol.messages import Drain, WhoAreYou
from agentrl.protocol.wire import decode_from_coordinator, encode
from agentrl.transport.hub import Hub, Peer


class Post:
    """Takes the place of the hub: what was sent to whom."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, msgspec.Struct]] = []

    def send(self, peer: Any, frame: bytes) -> bool:
        self.sent.append((peer, decode_from_coordinator(frame)))
        return True


def some_peer() -> Peer:
    return Peer.__new__(Peer)


def peers_and_post() -> tuple[Peers, Post]:
    peers, post = Peers(), Post()
    peers.hub = cast(Hub, post)
    return peers, post


def test_only_the_newest_peer_of_a_name_is_known() -> None:
    peers, post = peers_and_post()
    old, new = some_peer(), some_peer()
    peers.welcome(old, Known(Kind.UNIT, "web-0", 1))
    peers.welcome(new, Known(Kind.UNIT, "web-0", 2))
    assert peers.get(old) is None, "a ghost is not heard as the unit that replaced it"
    assert not peers.send_to_unit("web-0", 1, Drain(1.0))
    assert peers.send_to_unit("web-0", 2, Drain(1.0))
    peers.gone(old)
    assert peers.is_connected("web-0")
    assert [peer for peer, _ in post.sent] == [new]
    assert encode(post.sent[0][1]) == encode(Drain(1.0))  # type: ignore[arg-type]


def test_a_peer_with_a_backlog_is_asked_once_who_it_is() -> None:
    peers, post = peers_and_post()
    one, other = some_peer(), some_peer()
    for step in range(30):
        peers.ask_who(one, 1000.0 + step / 100)
    peers.ask_who(other, 1000.0)
    assert post.sent == [(one, WhoAreYou()), (other, WhoAreYou())]
    peers.ask_who(one, 1000.0 + WHO_ARE_YOU_EVERY_S)
    assert len(post.sent) == 3, "the question may have been lost"
    peers.welcome(one, Known(Kind.HOST, "b"))
    peers.ask_who(one, 1000.0 + WHO_ARE_YOU_EVERY_S)
    assert len(post.sent) == 4, "what was asked before its hello does not count"
