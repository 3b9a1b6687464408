"""Ports of this host for servers that open their own listeners.

Invariant: the kernel gives them to nobody by itself, as long as it leaves any. One of its own may go to somebody who
listens on any port, between the choice and the listening, and that takes seconds where a server starts slowly.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 65_535
"""Below are most of those that services have by custom."""
TRIES = 100
KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One that nobody has now. If somebody is faster than the server that it is for, that one cannot listen."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """As many, and no two the same."""
    ports = _left_alone()
    with contextlib.ExitStack() as held:
        return [_bound(held.enter_context(socket.socket()), ports) for _ in range(count)]


def _bound(probe: socket.socket, ports: Sequence[int]) -> int:
    """Which of them the socket has now; where all are taken, one that the kernel gives it."""
    # Not by `random`: processes that were given the same seed would choose the same ports at the same time.
    for port in secrets.SystemRandom().sample(ports, min(TRIES, len(ports))):
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    probe.bind((LOOPBACK, 0))
    return int(probe.getsockname()[1])


def _left_alone() -> Sequence[int]:
    """Those that the kernel gives to nobody; none where that is not known."""
    try:
        first, last = map(int, KERNELS_OWN.read_text().split())
    except (OSError, ValueError):
        return ()
    return [port for port in range(LOWEST, HIGHEST + 1) if not first <= port <= last]
