"""Publishing: a slow subscriber delays no other, a loss is visible, and a revoked key loses its subscription."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading

import psutil
import pytest
import zmq

from agentrl.transport.curve_keys import new_keypair
from agentrl.transport.publisher import QUEUE_MESSAGES, return_free_memory
from tests.transport.conftest import House
from tests.waiting import aeventually


async def test_all_subscribers_receive_everything_in_order(house: House) -> None:
    local, remote = house.subscribe(), house.subscribe(house.admit("anna", feed=True))
    await aeventually(lambda: house.subscriptions == 2)
    for number in range(1000):
        house.publisher.publish(b"%d" % number)
    expected = [b"%d" % number for number in range(1000)]
    await aeventually(lambda: len(local.got) == len(remote.got) == 1000)
    assert local.got == remote.got == expected


async def test_local_process_that_may_not_read_gets_nothing(house: House) -> None:
    code = """
import sys, zmq
input()
with zmq.Context() as context, context.socket(zmq.SUB) as socket:
    socket.subscribe(b"")
    socket.setsockopt(zmq.RCVTIMEO, 3000)
    socket.connect(sys.argv[1])
    print("connecting", flush=True)
    try:
        print(socket.recv().decode())
    except zmq.Again:
        print("nothing")
"""
    command = [sys.executable, "-c", code, house.feed_ipc]
    reader = await house.subscribe().connected()
    answers = []
    for may_read in (False, True):
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        house.refused_pids = set() if may_read else {process.pid}
        process.stdin.write(b"\n")
        await process.stdout.readline()
        answer = asyncio.ensure_future(process.communicate())
        while not answer.done():
            house.publisher.publish(b"a row")
            await asyncio.wait([answer], timeout=0.02)
        answers.append(answer.result()[0].decode().strip())
    assert answers == ["nothing", "a row"]
    await reader.hears(b"a row")


async def test_subscriber_finds_a_publisher_that_was_restarted(house: House) -> None:
    reader = await house.subscribe().connected()
    house.close()
    await aeventually(lambda: reader.story == ["connected", "disconnected"])
    house.subscriptions = 0
    house.open()
    await aeventually(lambda: house.subscriptions == 1)
    house.publisher.publish(b"again")
    await reader.hears(b"again")
    assert reader.story == ["connected", "disconnected", "connected"]


async def test_slow_subscriber_loses_messages_noticeably_and_delays_no_other(house: House) -> None:
    context = zmq.Context()
    slow = context.socket(zmq.SUB)
    slow.setsockopt(zmq.SUBSCRIBE, b"")
    slow.setsockopt(zmq.RCVHWM, 10)
    slow.setsockopt(zmq.RCVBUF, 4096)
    slow.connect(house.feed_ipc)
    quick = house.subscribe()
    await aeventually(lambda: house.subscriptions == 2)
    count = 3 * QUEUE_MESSAGES
    padding = bytes(500)
    for number in range(count):
        # The slow subscriber reads only later, so waiting for it would never end.
        house.publisher.publish(b"%d " % number + padding)
        if number % 200 == 0:
            await aeventually(lambda n=number: len(quick.got) >= n)  # type: ignore[misc]
    await aeventually(lambda: len(quick.got) == count)
    later, seen = itertools.count(count), list[int]()

    def reads_what_is_published_now() -> bool:
        house.publisher.publish(b"%d " % next(later))
        seen.extend(_read_all(slow))
        return bool(seen) and seen[-1] >= count

    await aeventually(reads_what_is_published_now)
    assert seen == sorted(set(seen)), "the order was lost"
    before = [number for number in seen if number < count]
    assert 0 < len(before) < count
    assert seen[len(before)] != before[-1] + 1, "the gap must show in the numbers"
    slow.close(linger=0)
    context.term()


def _read_all(sub: zmq.Socket[bytes]) -> list[int]:
    seen = []
    try:
        while True:
            seen.append(int(sub.recv(zmq.NOBLOCK).split()[0]))
    except zmq.Again:
        return seen


async def test_rebind_ends_the_subscriptions_of_a_revoked_key(house: House) -> None:
    pair = new_keypair()
    revoked = house.subscribe(house.admit("anna", pair, feed=True))
    kept = house.subscribe(house.admit("bert", feed=True))
    local = house.subscribe()
    await aeventually(lambda: house.subscriptions == 3)
    del house.keyring[pair.public]
    house.publisher.publish(b"a connection that stands is not asked again")
    await revoked.hears(b"a connection that stands is not asked again")
    house.publisher.rebind()
    await aeventually(lambda: house.subscriptions == 4 and revoked.refusals)
    house.publisher.publish(b"secret")
    await kept.hears(b"secret")
    await local.hears(b"secret")
    assert b"secret" not in revoked.got
    assert local.story == ["connected"]


async def test_repeated_rebind_keeps_the_port(house: House) -> None:
    kept = house.subscribe(house.admit("bert", feed=True))
    await aeventually(lambda: house.subscriptions == 1)
    for _ in range(5):
        before = house.subscriptions
        house.publisher.rebind()
        house.publisher.publish(b"nobody may hear this, and nothing breaks")
        await aeventually(lambda n=before: house.subscriptions > n)  # type: ignore[misc]
    house.publisher.publish(b"last")
    await kept.hears(b"last")


@pytest.mark.parametrize("noise", [b"", b"\x01topic", b"\x00topic", b"\x02", b"x" * 1000])
async def test_faulty_subscriptions_are_ignored(house: House, noise: bytes) -> None:
    context = zmq.Context()
    noisy = context.socket(zmq.XSUB)
    noisy.connect(house.feed_ipc)
    noisy.send(b"\x01")
    await aeventually(lambda: house.subscriptions == 1)
    noisy.send(noise)
    noisy.send(noise)
    reader = house.subscribe()
    await aeventually(lambda: house.subscriptions == 2)
    house.publisher.publish(b"news")
    await reader.hears(b"news")
    noisy.close(linger=0)
    context.term()


MANY_TOPICS = """
import sys, zmq
address, *key = sys.argv[1:]
feed = zmq.Context().socket(zmq.SUB)
feed.setsockopt(zmq.SNDHWM, 0)
for option, value in zip((zmq.CURVE_SERVERKEY, zmq.CURVE_PUBLICKEY, zmq.CURVE_SECRETKEY), key):
    feed.setsockopt(option, value.encode())
feed.connect(address)
for number in range(20_000):
    feed.subscribe(b"%x" % (number * 2654435761 % 2**64) * 10)
feed.subscribe(b"")
sys.stdin.read()
"""


@pytest.mark.parametrize("ended_by", ["client", "revoked key"])
async def test_memory_of_many_topics_is_returned(house: House, ended_by: str) -> None:
    """The client is a process of its own, so that only the publisher's memory is measured."""
    key = house.admit("anna", feed=True)
    curve = (key.server_public, key.public, key.secret)
    address = (house.feed_ipc,) if ended_by == "client" else (house.feed_tcp, *curve)
    process = psutil.Process()
    return_free_memory()
    before = process.memory_info().rss
    with subprocess.Popen([sys.executable, "-c", MANY_TOPICS, *address], stdin=subprocess.PIPE) as client:  # noqa: ASYNC220
        await aeventually(lambda: house.subscriptions == 1)
        peak = process.memory_info().rss
        assert peak - before > 40e6, "the library keeps topics"
        if ended_by == "client":
            client.communicate()
        else:
            del house.keyring[key.public]
            house.publisher.rebind()
        await aeventually(lambda: process.memory_info().rss - before < (peak - before) / 10)
        client.kill()
    reader = house.subscribe()
    await aeventually(lambda: house.subscriptions == 2)
    house.publisher.publish(b"still here")
    await reader.hears(b"still here")


async def test_subscriber_in_another_thread(house: House) -> None:
    got: list[bytes] = []

    async def read() -> None:
        from agentrl.transport.publisher import Subscriber

        reader = Subscriber(house.feed_ipc, on_message=got.append)
        reader.start()
        await aeventually(lambda: got)
        reader.close()

    thread = threading.Thread(target=lambda: asyncio.run(read()))
    thread.start()
    await aeventually(lambda: house.subscriptions == 1)
    house.publisher.publish(b"across threads")
    await asyncio.to_thread(thread.join)
    assert got == [b"across threads"]
