"""Peers without a valid key are refused with a sentence, and garbage affects no other peer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
from pathlib import Path

import pytest
import zmq

from agentrl.errors import ConfigError
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.curve_keys import new_keypair
from agentrl.transport.hub import Hub
from agentrl.transport.tcp_authentication import DOMAIN, Gate
from tests.ports import free_triplet, plain_socket
from tests.transport.conftest import House
from tests.waiting import aeventually


async def test_unknown_key_is_refused_with_a_sentence(house: House) -> None:
    stranger = house.dial(house.key("mallory", new_keypair()))
    await aeventually(lambda: stranger.refusals)
    assert "does not know this key, or it was revoked" in stranger.refusals[0]
    assert stranger.link.key_refused
    assert not stranger.send(b"let me in")
    assert not house.received


async def test_no_key_is_refused_with_a_sentence(house: House) -> None:
    stranger = house.dial(address=house.hub_tcp)
    await aeventually(lambda: stranger.refusals)
    assert "requires a key" in stranger.refusals[0]
    assert not house.received


async def test_server_with_an_unexpected_key_is_refused(house: House) -> None:
    pair = new_keypair()
    house.admit("anna", pair)
    deceived = house.dial(house.key("anna", pair, server=new_keypair().public))
    await aeventually(lambda: deceived.refusals)
    assert "another coordinator" in deceived.refusals[0]
    assert not deceived.link.key_refused, "the peer of this key may come back"
    assert not deceived.link.connected


async def test_key_that_is_added_later_is_admitted(house: House) -> None:
    pair = new_keypair()
    waiting = house.dial(house.key("anna", pair))
    await aeventually(lambda: waiting.refusals)
    house.admit("anna", pair)
    await waiting.connected()
    assert waiting.send(b"here I am")
    await waiting.hears(b"re:here I am")


async def test_revoked_key_cannot_reconnect(house: House) -> None:
    pair = new_keypair()
    anna = await house.dial(house.admit("anna", pair)).connected()
    bert = await house.dial(house.admit("bert")).connected()
    del house.keyring[pair.public]
    house.close()
    house.open()
    await aeventually(lambda: anna.refusals)
    await bert.connected()
    assert not anna.link.connected


async def test_keyring_that_raises_refuses_all_keys(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def broken(public: str) -> str | None:
        raise OSError("the keyring cannot be read")

    house.gate._keyring = broken
    anna = house.dial(house.admit("anna"))
    await aeventually(lambda: anna.refusals)
    assert not anna.link.key_refused
    house.gate._keyring = house.keyring.get
    await anna.connected()
    caplog.clear()


@pytest.mark.parametrize(
    "rest",
    [
        [DOMAIN, b"127.0.0.1", b"", b"NULL"],
        [DOMAIN, b"127.0.0.1", b"", b"PLAIN", b"user", b"password"],
        [DOMAIN, b"127.0.0.1", b"", b"CURVE"],
        [DOMAIN, b"127.0.0.1", b"", b"CURVE", b"\0" * 32, b"more"],
        [b"elsewhere", b"127.0.0.1", b"", b"CURVE", b"\0" * 32],
    ],
    ids=["null", "plain", "no key", "two keys", "other domain"],
)
async def test_gate_admits_curve_in_its_own_domain_only(rest: list[bytes]) -> None:
    gate = Gate(new_keypair(), lambda public: "anybody")
    gate.start()
    asker = gate.context.socket(zmq.REQ)
    asker.connect("inproc://zeromq.zap.01")
    asker.send_multipart([b"1.0", b"7", *rest])
    answer: list[bytes] = []
    await aeventually(lambda: asker.poll(0) and answer.extend(asker.recv_multipart()) is None)
    assert answer[:3] == [b"1.0", b"7", b"400"]
    asker.close()
    gate.close()


async def test_nothing_is_bound_to_tcp_without_keys(short_dir: Path) -> None:
    gate = Gate()
    gate.start()
    hub = Hub(
        f"ipc://{short_dir}/hub",
        gate=gate,
        on_message=lambda peer, frame: None,
        listen=f"tcp://127.0.0.1:{free_triplet()}",
    )
    with pytest.raises(ConfigError, match="without keys"):
        hub.start()
    hub.close()
    gate.close()


async def test_identity_of_another_key_gives_no_access(house: House) -> None:
    """A connection may ask for any identity; what counts is the key of each message."""
    house.echo = False
    admin, viewer = house.admit("admin"), house.admit("viewer")
    context = zmq.Context()

    def raw(key_owner: object) -> zmq.Socket[bytes]:
        key = key_owner
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, b"same")
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.curve_serverkey = key.server_public.encode()  # type: ignore[attr-defined]
        dealer.curve_publickey = key.public.encode()  # type: ignore[attr-defined]
        dealer.curve_secretkey = key.secret.encode()  # type: ignore[attr-defined]
        dealer.connect(house.hub_tcp)
        return dealer

    first = raw(admin)
    first.send(b"I am admin")
    await aeventually(lambda: len(house.received) == 1)
    first.close()
    second = raw(viewer)

    async def received_too() -> bool:
        """Try with new sockets, because the hub never receives from a socket whose identity was still taken when it
        connected."""
        nonlocal second
        second.close()
        second = raw(viewer)
        second.send(b"I am admin, too")
        with contextlib.suppress(AssertionError):
            await aeventually(lambda: len(house.received) > 1, within_s=1.0)
        return len(house.received) > 1

    await aeventually(received_too)
    assert {peer.key_name for peer, _ in house.received[1:]} == {"viewer"}
    assert house.received[0][0] not in [peer for peer, _ in house.received[1:]]
    await aeventually(lambda: house.received[0][0] in house.gone)
    second.close()
    context.term()


@pytest.mark.parametrize("where", ["hub_ipc", "hub_tcp", "feed_ipc", "feed_tcp"])
async def test_garbage_on_any_socket_affects_no_other_peer(house: House, where: str) -> None:
    """Raw bytes, half handshakes and floods of nonsense from sockets that speak no ZeroMQ."""
    remote = where.endswith("tcp")
    friend = await house.dial(house.admit("anna") if remote else None).connected()
    reader = house.subscribe(house.admit("anna-reads", feed=True) if remote else None)
    await reader.connected()
    await aeventually(lambda: house.subscriptions == 1)
    await asyncio.to_thread(_throw_garbage, getattr(house, where))
    assert friend.send(b"still there?")
    await friend.hears(b"re:still there?")
    house.publisher.publish(b"news")
    await reader.hears(b"news")
    assert {frame for _, frame in house.received} == {b"still there?"}
    assert "disconnected" not in friend.story + reader.story


def _throw_garbage(address: str) -> None:
    dice = random.Random(7)
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
    thrown = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 4096,
        b"\xff" * 65536,
        greeting,
        greeting + b"\x04\xff" + b"\xff" * 300,
        greeting[:10],
        *(dice.randbytes(dice.randrange(1, 3000)) for _ in range(20)),
        *(greeting + dice.randbytes(dice.randrange(1, 3000)) for _ in range(20)),
    ]
    for each in thrown:
        line = plain_socket(address)
        try:
            line.sendall(each)
            line.settimeout(0.02)
            line.recv(65536)
        except OSError:
            pass
        finally:
            line.close()


@pytest.mark.parametrize("remote", [False, True])
async def test_oversized_message_costs_its_sender_the_connection(house: House, remote: bool) -> None:
    key = house.admit("anna") if remote else None
    friend = await house.dial(house.admit("bert") if remote else None).connected()
    context = zmq.Context()
    giant = context.socket(zmq.DEALER)
    giant.setsockopt(zmq.LINGER, 0)
    giant.setsockopt(zmq.RECONNECT_IVL, -1)
    if key:
        giant.curve_serverkey = key.server_public.encode()
        giant.curve_publickey, giant.curve_secretkey = key.public.encode(), key.secret.encode()
    giant.connect(house.hub_tcp if remote else house.hub_ipc)
    giant.send(b"hello")
    await aeventually(lambda: len(house.received) == 1)
    giant.send(bytes(MAX_MESSAGE_BYTES + 1))
    await aeventually(lambda: house.gone == [house.received[0][0]])
    assert friend.send(b"still there?")
    await friend.hears(b"re:still there?")
    assert "disconnected" not in friend.story
    assert len(house.received) == 2
    giant.close()
    context.term()


async def test_frames_of_several_parts_are_dropped(house: House) -> None:
    context = zmq.Context()
    odd = context.socket(zmq.DEALER)
    odd.connect(house.hub_ipc)
    odd.send_multipart([b"one", b"two", b"three"])
    odd.send(b"plain")
    await aeventually(lambda: house.received)
    assert [frame for _, frame in house.received] == [b"plain"]
    odd.close(linger=0)
    context.term()


async def test_oversized_and_multipart_messages_of_a_hub_are_ignored(short_dir: Path) -> None:
    """The messages that a dealer accepts are bounded too."""
    from agentrl.transport.dealer import Dealer
    from tests.transport.conftest import Dialled

    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(f"ipc://{short_dir}/hub")
    dealer = await Dialled(Dealer, f"ipc://{short_dir}/hub").connected()
    assert dealer.send(b"hello")
    identity, _ = await asyncio.to_thread(router.recv_multipart)
    router.send_multipart([identity, b"a", b"b"])
    router.send_multipart([identity, b"fine"])
    await dealer.hears(b"fine")
    assert dealer.got == [b"fine"]
    router.send_multipart([identity, bytes(MAX_MESSAGE_BYTES + 1)])
    await aeventually(lambda: dealer.story == ["connected", "disconnected", "connected"])
    dealer.link.close()
    router.close()
    context.term()


async def test_silent_connections_leave_no_descriptor_open(house: House) -> None:
    before = len(os.listdir("/proc/self/fd"))
    lines = [plain_socket(house.hub_tcp) for _ in range(50)]
    for line in lines:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
    await aeventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
