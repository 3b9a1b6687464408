"""Runs inside a sandbox before its server: opens the socket of the network proxy there and passes it to the toolbox.

Usage: `network_socket.py DESCRIPTOR PORT COMMAND...`. The descriptor stays open in the command, so the toolbox notices
the end of the sandbox when it closes. Only the standard library is imported, because imports delay each start.

Invariant: no child of a process that receives such a socket inherits it.
"""

from __future__ import annotations

import os
import socket
import sys


def receive(sender: socket.socket, most_bytes: int) -> tuple[bytes, list[int]]:
    """Returns one message and the descriptors that came with it, at most one.

    `recv_fds` makes descriptors that children inherit, and uvloop closes none in a child: a later server of the same
    toolbox could accept the requests of this sandbox.
    """
    data, descriptors, _, _ = socket.recv_fds(sender, most_bytes, 1)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


if __name__ == "__main__":
    descriptor, port, *command = sys.argv[1:]
    toolbox = socket.socket(fileno=int(descriptor))
    with socket.create_server(("127.0.0.1", int(port)), backlog=128) as listener:
        socket.send_fds(toolbox, [b"listening"], [listener.fileno()])
    toolbox.detach()
    try:
        os.execvp(command[0], command)
    except OSError as missing:
        sys.exit(f"{command[0]} cannot be started: {missing.strerror}")
