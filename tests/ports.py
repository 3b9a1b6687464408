"""Ports in a row, for what listens at several."""

from __future__ import annotations

import socket

from agentrl.http.ports import LOOPBACK, free_port


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
