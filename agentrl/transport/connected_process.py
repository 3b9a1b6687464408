"""Names the process at the other end of a local connection, which the kernel knows."""

from __future__ import annotations

import os
import socket
import struct


def process_at(descriptor: int) -> tuple[int, int]:
    """Its pid and user; 0 and -1 if it has ended. The pid is 0 also if it is outside of the own pid namespace."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return 0, -1
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid), int(uid)


def end_connection(descriptor: int, path: str) -> None:
    """End a connection to the socket at `path`; the descriptor may belong to another connection by now."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family == socket.AF_UNIX and connection.getsockname() == path:
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
