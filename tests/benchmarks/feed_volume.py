"""Measures the bytes of the feed of two hundred working units, for a subscriber and in the recording."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import zmq

from agentrl.protocol import feed
from agentrl.protocol.wire import decode_feed
from tests.benchmarks.report import Outcome
from tests.e2e.running import Run

SIDECARS, SPEAKING = 180, 20
FOR_S = 60.0
"""The length of a recording frame, so that exactly one snapshot is counted."""
SETTLE_S = 6.0
LIMIT_KB = 20.0
RECORDED_KB = 3.0
"""At this rate, seven days fit into 2 GiB."""


def measure() -> Outcome:
    outcome = Outcome(f"the feed of {SIDECARS + SPEAKING} units, {SPEAKING} of which report progress twice a second")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Run(Path(folder), f"bench-{os.getpid()}", factor=1.0)
        run.sidecar("web", ["sleep", "100000"], count=SIDECARS)
        run.unit("tick", "step_loop", "--every", "0.5", count=SPEAKING)
        try:
            run.up()
            time.sleep(SETTLE_S)
            before = _recorded(run)
            volume = _listen(_feed_address(run))
            recorded = _recorded(run) - before
        finally:
            run.close()
    outcome.at_most("all rows and beats", sum(volume.values()) / FOR_S / 1e3, "kB/s", LIMIT_KB)
    outcome.at_most("recorded of it, compressed", recorded / FOR_S / 1e3, "kB/s", RECORDED_KB)
    for kind, size in volume.most_common():
        outcome.plain(f"of that {kind}", size / FOR_S / 1e3, "kB/s")
    return outcome


def _recorded(run: Run) -> int:
    return sum(file.stat().st_size for file in (run.state_dir / "recordings").iterdir())


def _feed_address(run: Run) -> str:
    return str(msgspec.json.decode((run.state_dir / "coordinator.json").read_bytes())["feed"])


def _listen(address: str) -> Counter[str]:
    """Returns the bytes by kind of row."""
    volume: Counter[str] = Counter()
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.connect(address)
        until = time.monotonic() + FOR_S
        while (left := until - time.monotonic()) > 0:
            if subscriber.poll(int(left * 1e3) + 1):
                frame = subscriber.recv()
                message = decode_feed(frame)
                kind = message.key.partition("/")[0] if isinstance(message, feed.FeedRow) else "beats"
                volume[kind] += len(frame)
    return volume
