"""Peers and the hub talk, locally and over tcp, through reconnections, floods and threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

from agentrl.errors import ProtocolError
from agentrl.protocol.messages import MAX_MESSAGE_BYTES
from agentrl.transport.dealer import Dealer
from agentrl.transport.router import OUTBOX_BYTES
from agentrl.transport.socket_reader import BUDGET
from tests.transport.conftest import House
from tests.waiting import aeventually


async def test_local_peer_is_received_and_answered(house: House) -> None:
    dealer = await house.dial().connected()
    assert dealer.send(b"hello")
    await dealer.hears(b"re:hello")
    peer, frame = house.received[0]
    assert (frame, peer.local, peer.key_name) == (b"hello", True, None)


async def test_peer_over_tcp_is_known_by_the_name_of_its_key(house: House) -> None:
    dealer = await house.dial(house.admit("anna")).connected()
    assert dealer.send(b"hello")
    await dealer.hears(b"re:hello")
    peer, _ = house.received[0]
    assert (peer.local, peer.key_name) == (False, "anna")


async def test_nothing_is_queued_for_an_absent_hub(house: House) -> None:
    dealer = await house.dial().connected()
    house.close()
    await aeventually(lambda: not dealer.link.connected)
    assert not dealer.send(b"stale")
    house.open()
    await dealer.connected()
    assert dealer.send(b"fresh")
    await dealer.hears(b"re:fresh")
    assert [frame for _, frame in house.received] == [b"fresh"]


@pytest.mark.parametrize("remote", [False, True])
async def test_each_reconnection_is_reported_and_usable_at_once(house: House, remote: bool) -> None:
    dealer = house.dial(house.admit("anna") if remote else None)
    dealer.link._on_connected = lambda: dealer.story.append(f"connected, sent {dealer.send(b'hello')}")
    for life in range(1, 4):
        await aeventually(lambda n=life: len(dealer.got) == n)  # type: ignore[misc]
        assert dealer.story[-1] == "connected, sent True"
        house.close()
        await aeventually(lambda: not dealer.link.connected)
        house.open()
    await aeventually(lambda: len(dealer.got) == 4)
    assert dealer.story.count("disconnected") == 3


async def test_peer_that_leaves_is_reported_once_after_its_last_message(house: House) -> None:
    seen: list[str] = []
    house.hub._routers[0]._on_message = lambda peer, frame: seen.append(frame.decode())
    house.hub._routers[0]._on_gone = lambda peer: seen.append("gone")
    dealer = await house.dial().connected()
    for number in range(700):
        assert dealer.send(b"%d" % number)
    await aeventually(lambda: seen)
    await aeventually(lambda: len(seen) == 700)
    dealer.link.close()
    await aeventually(lambda: "gone" in seen)
    assert seen == [*map(str, range(700)), "gone"]
    assert house.hub.peers == 0


async def test_many_short_connections_leave_no_peer(house: House) -> None:
    for _ in range(60):
        visitor = await house.dial().connected()
        assert visitor.send(b"x")
        await visitor.hears(b"re:x")
        visitor.link.close()
    await aeventually(lambda: len(house.gone) == 60)
    assert house.hub.peers == 0
    assert len(set(house.gone)) == 60
    assert not house.hub.send(house.gone[0], b"anybody there?")


async def test_messages_sent_just_before_closing_arrive(house: House) -> None:
    """The end of a connection may be reported before its messages were read."""
    context = zmq.Context()
    for number in range(30):
        with context.socket(zmq.DEALER) as visitor:
            visitor.connect(house.hub_ipc)
            visitor.send(b"%d" % number)
            visitor.close(linger=2000)
    context.term()
    await aeventually(lambda: len(house.received) == 30)
    await aeventually(lambda: house.hub.peers == 0)


async def test_both_sides_refuse_to_send_oversized_messages(house: House) -> None:
    dealer = await house.dial().connected()
    with pytest.raises(ProtocolError, match="4 MiB"):
        dealer.send(bytes(MAX_MESSAGE_BYTES + 1))
    assert dealer.send(bytes(MAX_MESSAGE_BYTES - 100))
    await aeventually(lambda: house.received)
    with pytest.raises(ProtocolError, match="4 MiB"):
        house.hub.send(house.received[0][0], bytes(MAX_MESSAGE_BYTES + 1))


async def test_peer_that_does_not_read_never_blocks_the_hub(house: House) -> None:
    context = zmq.Context()
    mute = context.socket(zmq.DEALER)
    mute.setsockopt(zmq.RCVHWM, 1)
    mute.setsockopt(zmq.LINGER, 0)
    mute.connect(house.hub_ipc)
    mute.send(b"I never read")
    await aeventually(lambda: house.received)
    peer = house.received[0][0]
    frame = bytes(100_000)
    accepted = 0
    while house.hub.send(peer, frame):
        accepted += 1
        assert accepted * len(frame) < 10 * OUTBOX_BYTES, "the outbox has no bound"
    assert accepted * len(frame) >= OUTBOX_BYTES
    other = await house.dial().connected()
    assert other.send(b"and me?")
    await other.hears(b"re:and me?")
    mute.close()
    context.term()
    await aeventually(lambda: peer in house.gone)
    assert not house.hub._routers[0]._backlogged
    assert not peer.outbox


async def test_outbox_is_sent_in_order_once_the_peer_reads(house: House) -> None:
    context = zmq.Context()
    slow = context.socket(zmq.DEALER)
    slow.setsockopt(zmq.RCVHWM, 1)
    slow.connect(house.hub_ipc)
    slow.send(b"hello")
    house.echo = False
    await aeventually(lambda: house.received)
    peer = house.received[0][0]
    for number in range(4000):
        assert house.hub.send(peer, b"%d" % number + bytes(1000))
    assert peer.outbox
    slow.setsockopt(zmq.RCVTIMEO, 20_000)
    read = asyncio.to_thread(lambda: [int(slow.recv()[:-1000].rstrip(b"\0")) for _ in range(4000)])
    assert await read == list(range(4000))
    await aeventually(lambda: not house.hub._routers[0]._backlogged)
    slow.close()
    context.term()


async def test_drain_never_stalls_under_sends_from_within_callbacks(house: House) -> None:
    """The descriptor is edge-triggered: a send may swallow the edge of a message that arrived meanwhile."""
    rounds, volleys = 3000, 8
    dealers = [house.dial() for _ in range(3)]
    done = [0, 0, 0]

    def play(index: int) -> None:
        dealer = dealers[index]

        def answer(frame: bytes) -> None:
            done[index] += 1
            if done[index] + volleys <= rounds:
                assert dealer.send(b"ping")

        dealer.link._on_message = answer

    for index, dealer in enumerate(dealers):
        await dealer.connected()
        play(index)
    for dealer in dealers:
        for _ in range(volleys):
            assert dealer.send(b"ping")
    await aeventually(lambda: done == [rounds] * 3, what="all volleys")


async def test_drain_never_stalls_under_sends_from_elsewhere(house: House) -> None:
    """Single messages with pauses: if an edge were lost, nothing would wake the socket again."""
    dealer = await house.dial().connected()
    for number in range(500):
        assert dealer.send(b"%d" % number)
        if number % 3:
            await asyncio.sleep(0)
        if number % 7 == 0:
            await dealer.hears(b"re:%d" % number)
    await dealer.hears(b"re:499")
    assert len(dealer.got) == 500


async def test_timers_run_during_a_flood(house: House) -> None:
    """A drain without a limit would block everything else during the flood."""
    handled_in_a_turn: list[int] = []
    stop = threading.Event()

    def flood() -> None:
        context = zmq.Context()
        with context.socket(zmq.DEALER) as pump:
            pump.setsockopt(zmq.SNDTIMEO, 1000)
            pump.setsockopt(zmq.LINGER, 0)
            pump.connect(house.hub_ipc)
            while not stop.is_set():
                try:
                    pump.send(b"x")
                except zmq.Again:
                    continue
        context.term()

    house.echo = False
    thread = threading.Thread(target=flood)
    thread.start()

    async def turns_of_the_loop() -> bool:
        """Whether enough turns of the event loop handled messages. One look may find too few, because the speed depends
        on the machine, and the flooding thread may get no turn meanwhile."""
        before = len(house.received)
        for _ in range(200):
            await asyncio.sleep(0)
            now = len(house.received)
            handled_in_a_turn.append(now - before)
            before = now
        return sum(handled > 0 for handled in handled_in_a_turn) > 20

    try:
        await aeventually(turns_of_the_loop, what="turns of the loop in which something came")
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
    assert max(handled_in_a_turn) <= BUDGET


async def test_handler_that_raises_does_not_stall_its_socket(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def fragile(peer: object, frame: bytes) -> None:
        if frame == b"bad":
            raise ValueError("a mistake in a handler")
        good.append(frame)

    good: list[bytes] = []
    house.hub._routers[0]._on_message = fragile
    dealer = await house.dial().connected()
    for frame in (b"1", b"bad", b"2", b"bad", b"3"):
        assert dealer.send(frame)
    await aeventually(lambda: good == [b"1", b"2", b"3"])
    assert sum("Exception in callback" in each.getMessage() for each in caplog.records) == 2
    caplog.clear()


async def test_threads_have_loops_and_sockets_of_their_own(house: House) -> None:
    results: list[int] = []

    async def talk() -> None:
        got: list[bytes] = []
        dealer = Dealer(house.hub_ipc, on_message=got.append)
        dealer.start()
        await aeventually(lambda: dealer.connected)
        for number in range(200):
            assert dealer.send(b"%d" % number)
        await aeventually(lambda: len(got) == 200)
        dealer.close()
        results.append(len(got))

    threads = [threading.Thread(target=lambda: asyncio.run(talk())) for _ in range(2)]
    for thread in threads:
        thread.start()
    await aeventually(lambda: len(results) == 2)
    for thread in threads:
        await asyncio.to_thread(thread.join)


async def test_close_from_within_a_callback(house: House) -> None:
    dealer = house.dial()
    dealer.link._on_message = lambda frame: (dealer.got.append(frame), dealer.link.close())  # type: ignore[func-returns-value]
    await dealer.connected()
    assert dealer.send(b"1")
    dealer.send(b"2")
    await dealer.hears(b"re:1")
    await aeventually(lambda: house.gone)
    assert dealer.got == [b"re:1"]
    assert not dealer.send(b"3")
    dealer.link.close()


def test_process_with_an_open_dealer_in_a_thread_ends(short_dir: Path) -> None:
    """A unit's main loop returns while its helper thread still has a socket."""
    script = f"""
import asyncio, threading
from agentrl.transport.dealer import Dealer
started = threading.Event()
async def talk():
    Dealer("ipc://{short_dir}/nobody", on_message=print).start()
    started.set()
    await asyncio.Event().wait()
threading.Thread(target=lambda: asyncio.run(talk()), daemon=True).start()
started.wait()
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", script], timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
