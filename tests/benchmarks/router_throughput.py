"""Measures commands and heartbeats of 1 KB through the coordinator's ROUTER, 64 in flight, compared with a bare echo
loop.

The same program drives both. The coordinator decodes and authorises every message, executes it and encodes the answer;
the bare loop returns the bytes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentrl.protocol import messages
from agentrl.protocol.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from agentrl.protocol.wire import encode, raw
from tests.benchmarks.coordinator_with_fake_units import fake_fleet
from tests.benchmarks.report import Outcome, median

BYTES = 1024
FOR_S = 4.0
REPEATS = 3
LEAST = 0.5


def measure() -> Outcome:
    outcome = Outcome(f"messages of {BYTES} B through the ROUTER, 64 in flight (medians of {REPEATS})")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        fake_fleet(Path(folder)) as real,
        _bare(folder) as bare,
    ):
        (spawn,) = real.register(1, {})
        beat, request = _padded_beat(), _command()
        client = encode(messages.ClientHello(PROTOCOL_MAJOR, PROTOCOL_MINOR, who="bench"))
        rates: dict[str, list[float]] = {"heartbeats": [], "commands": [], "bare loop": []}
        for _ in range(REPEATS):
            # The two take turns, so that a busy moment of the machine affects both.
            rates["bare loop"].append(_pump(bare, b"hello", beat))
            rates["heartbeats"].append(_pump(real.address, real.hello_of(spawn), beat))
            rates["commands"].append(_pump(real.address, client, request))
        floor = median(rates["bare loop"])
        for what in ("heartbeats", "commands"):
            outcome.share(what, median(rates[what]), "/s", "bare loop", floor, LEAST)
        outcome.notes.append(f"{real.psutil.num_threads()} threads in the coordinator; heartbeats ask for an answer.")
    return outcome


def _padded_beat() -> bytes:
    """A heartbeat padded with unknown fields, which the coordinator ignores."""
    beat = msgspec.to_builtins(messages.Beat(seq=1, progress=7, loop_lag_s=0.001, ack=True))
    return _padded(lambda pad: msgspec.msgpack.encode(beat | {"later": pad}))


def _command() -> bytes:
    """A query with arguments that are validated and looked up, padded by a long id."""
    args = raw({"name": "supervision.heartbeat_s"})
    return _padded(lambda pad: encode(messages.Request(id=pad, name="knobs", args=args)))


def _padded(make: object) -> bytes:
    assert callable(make)
    body: bytes = make("x" * (BYTES - len(make("x" * 300)) + 300))
    assert len(body) == BYTES
    return body


def _pump(address: str, hello: bytes, frame: bytes) -> float:
    command = [sys.executable, str(Path(__file__).with_name("message_load.py")), address, str(FOR_S)]
    body = len(hello).to_bytes(4) + hello + frame
    done = subprocess.run(command, input=body, capture_output=True, timeout=60, check=True)
    return float(done.stdout)


@contextmanager
def _bare(folder: str) -> Iterator[str]:
    address = f"ipc://{folder}/bare"
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("echo_router.py")), address])
    try:
        yield address
    finally:
        process.kill()
        process.wait()
