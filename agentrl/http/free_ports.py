"""Finds free ports of this host, for servers that open their own listeners.

If possible the ports are outside of the range from which the kernel gives ports to other programs. A port from that
range could be taken between the choice and the listening, which takes seconds if a server starts slowly.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 65_535
"""Most well-known services use lower ports."""
TRIES = 100
KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that is free now. Another program may still take it before the server listens."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Return that many different free ports."""
    ports = _left_alone()
    with contextlib.ExitStack() as held:
        return [_bound(held.enter_context(socket.socket()), ports) for _ in range(count)]


def _bound(probe: socket.socket, ports: Sequence[int]) -> int:
    """Bind the socket to one of the ports; if all are taken, to one from the kernel. Returns the port."""
    # Not `random`: processes with the same seed would choose the same ports at the same time.
    for port in secrets.SystemRandom().sample(ports, min(TRIES, len(ports))):
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    probe.bind((LOOPBACK, 0))
    return int(probe.getsockname()[1])


def _left_alone() -> Sequence[int]:
    """Return the ports that the kernel does not give to programs; an empty range if the kernel's range is unknown."""
    try:
        first, last = map(int, KERNELS_OWN.read_text().split())
    except (OSError, ValueError):
        return ()
    return [port for port in range(LOWEST, HIGHEST + 1) if not first <= port <= last]
