"""Restores the files of local sockets that another program removed.

A bound local socket without its file keeps its connections but gets no new ones. Cleaning programs remove such files,
and so do people.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import zmq

from agentrl.transport.addresses import make_socket_directory
from agentrl.transport.connecting_socket import bind


class SocketFile:
    """The file of a socket that is bound to an address; without effect for tcp."""

    def __init__(self, socket: zmq.Socket[Any], address: str) -> None:
        self._socket = socket
        self._address = address
        self._path = Path(address.removeprefix("ipc://")) if address.startswith("ipc://") else None
        self._bound = self._present()

    def restore(self) -> bool:
        """Bind again if the file is gone or another one; present connections stay. Returns whether this was needed.

        Raises ConfigError if it is not possible.
        """
        if self._path is None or self._present() == self._bound:
            return False
        make_socket_directory(self._path.parent)
        # Without unbinding first, because that would end all connections.
        bind(self._socket, self._address)
        self._bound = self._present()
        return True

    def _present(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
