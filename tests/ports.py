"""Ports in a row, for what listens at several, and a plain line to whatever listens."""

from __future__ import annotations

import socket

from agentrl.http.free_ports import LOOPBACK, free_port


def free_triplet() -> int:
    """The first of three ports in a row that nobody uses."""
    while True:
        port = free_port()
        try:
            for each in (port + 1, port + 2):
                with socket.socket() as probe:
                    probe.bind((LOOPBACK, each))
        except (OSError, OverflowError):
            continue
        return port


def plain_socket(address: str) -> socket.socket:
    """Connected to `ipc://` or `tcp://`, without a word of ZeroMQ's."""
    if address.startswith("ipc://"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(address.removeprefix("ipc://"))
        return line
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)
