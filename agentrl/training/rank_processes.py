"""The processes of several ranks of a job on this host. Those of a run are a gang of units.

Invariants:
- the ranks end together: the first that fails ends the others, and its exit code is that of the job;
- a signal reaches all ranks, and they agree on the step after which they end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from agentrl.errors import ExitCode

LOOK_EVERY_S = 0.1
END_WITHIN_S = 2.0
RANK = "RANK"
"""The variable of a rank, as torch's launcher names it."""


def is_rank() -> bool:
    return RANK in os.environ


def leads() -> bool:
    """Whether this process reports for the job."""
    return os.environ.get(RANK, "0") == "0"


def run_ranks(command: Sequence[str], count: int) -> int:
    """Starts the command once for each rank, and waits for all. Returns the exit code of the job."""
    meet_at = _meeting_place(count)
    ranks = [_start(command, meet_at, rank) for rank in range(count)]

    def forward(number: int, _: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    try:
        return _first_failure(ranks)
    finally:
        _end(ranks)


def _meeting_place(count: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # gloo would listen on the address of the name of this host.
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    meet_at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return {**meet_at, "GLOO_SOCKET_IFNAME": interface}


def _place_of(rank: int) -> dict[str, str]:
    return {RANK: str(rank), "LOCAL_RANK": str(rank)}


def _start(command: Sequence[str], meet_at: Mapping[str, str], rank: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, **meet_at, **_place_of(rank)})


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits until all ranks have ended, or one has failed."""
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [code for code in codes if code not in (None, ExitCode.OK, ExitCode.INTERRUPTED)]
        if failed:
            return failed[0] or 1
        if None not in codes:
            return max(code or 0 for code in codes)
        time.sleep(LOOK_EVERY_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends the ranks. A rank may wait for another one that is gone, so it is killed if it does not end."""
    deadline = time.monotonic() + END_WITHIN_S
    for rank in ranks:
        try:
            rank.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
