"""Free ports in a row, and plain sockets without ZeroMQ."""

from __future__ import annotations

import socket

from agentrl.http.free_ports import LOOPBACK, free_port


def free_triplet() -> int:
    """The first of three free ports in a row."""
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
    """A socket connected to an `ipc://` or `tcp://` address, without the handshake of ZeroMQ."""
    if address.startswith("ipc://"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(address.removeprefix("ipc://"))
        return line
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)
