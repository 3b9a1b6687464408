"""The volume of the feed of 200 units, measured at its socket."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.protocol.feed import FeedRow
from agentrl.protocol.wire import decode_feed
from agentrl.transport.addresses import feed_address
from agentrl.transport.publisher import Subscriber
from tests.e2e.running import Run, running
from tests.waiting import aeventually, eventually

SPEAKING, SILENT = 20, 180
MOST_BYTES_PER_S = 20_000
WHILE_S = 10.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


def bring_up(run: Run) -> None:
    run.unit("step", "step_loop", "--every", "0.2", count=SPEAKING)
    run.sidecar("web", ["sleep", "1000"], count=SILENT)
    run.up()
    assert len(run.units()) == SPEAKING + SILENT
    eventually(lambda: all(r.progress > 2 for r in run.units().values() if r.group == "step"))


@pytest.mark.slow
async def test_feed_of_two_hundred_units_is_below_20_kb_per_second(run: Run) -> None:
    await asyncio.to_thread(bring_up, run)
    frames: list[bytes] = []
    subscriber = Subscriber(feed_address(run.uuid()), on_message=frames.append)
    subscriber.start()
    loop = asyncio.get_running_loop()
    try:
        await aeventually(lambda: frames, what="the first heartbeat")
        frames.clear()
        began = loop.time()
        await aeventually(lambda: loop.time() - began >= WHILE_S, within_s=WHILE_S + 30)
        took_s, received = loop.time() - began, list(frames)
    finally:
        subscriber.close()
    rate = sum(map(len, received)) / took_s
    messages = [decode_feed(frame) for frame in received]
    rows = Counter(message.key for message in messages if isinstance(message, FeedRow))
    assert {f"unit/step-{n}" for n in range(SPEAKING)} <= set(rows), "units that make progress are shown"
    assert max(rows.values()) <= 2 * took_s + 2
    kinds = Counter[str]()
    for message, frame in zip(messages, received, strict=True):
        kinds[message.key.rpartition("-")[0] if isinstance(message, FeedRow) else "beat"] += len(frame)
    assert rate <= MOST_BYTES_PER_S, f"{rate:.0f} bytes/s, in all: {kinds.most_common(5)}"
