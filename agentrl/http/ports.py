"""Ports of this host for servers that open their own listeners."""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """One that nobody has now. If somebody is faster than the server that it is for, that one cannot listen."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """As many, and no two the same."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
