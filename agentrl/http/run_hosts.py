"""How the services of a run find each other when the run has several hosts.

A service listens on the loopback address. Its address for others is `http://HOST:PORT` with the name of its host. A
caller on another host reaches it through the tunnel of that caller's host (`agentrl/tunnels`); a caller on the same
host connects directly. A run on one host has no tunnels; callers use the loopback address.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

TUNNEL, HOST = "AGENTRL_TUNNEL", "AGENTRL_HOST"
"""Variables of a unit: the socket of the tunnel, and the name of its host."""
LOOPBACK = "127.0.0.1"
FILES = "files"
"""The file process of a host, in place of a port."""
_MOST_ANSWER = 1024


class NoWayError(OSError):
    """The tunnel does not lead there; the message says why."""


class Way(NamedTuple):
    """From this process to other hosts."""

    tunnel: Path
    here: str

    def known_as(self, url: str) -> str:
        """The address of a listener of this host, for others."""
        parts = urlsplit(url)
        return f"{parts.scheme}://{self.here}:{parts.port}"

    def leads_to(self, host: str) -> bool:
        """Whether calls to this host go through the tunnel. Services on the caller's own host are reached directly."""
        return host not in (LOOPBACK, "localhost", "::1", self.here)

    async def open(self, host: str, port: int | str) -> socket.socket:
        """A connected socket. Raises NoWayError."""
        loop = asyncio.get_running_loop()
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            await loop.sock_connect(end, str(self.tunnel))
            await loop.sock_sendall(end, f"{host} {port}\n".encode())
            answer = b""
            # The answer is one line. What follows belongs to the service, which sends nothing before it gets a request.
            while not answer.endswith(b"\n") and len(answer) < _MOST_ANSWER:
                piece = await loop.sock_recv(end, _MOST_ANSWER)
                if not piece:
                    raise NoWayError("the tunnel of this host closed the connection")
                answer += piece
            if answer != b"ok\n":
                raise NoWayError(answer.decode(errors="replace").strip().removeprefix("no: "))
        except BaseException:
            end.close()
            raise
        return end


def way(environ: Mapping[str, str] | None = None) -> Way | None:
    """The way of this unit to other hosts; None in a run on one host."""
    env = os.environ if environ is None else environ
    tunnel, here = env.get(TUNNEL, ""), env.get(HOST, "")
    return Way(Path(tunnel), here) if tunnel and here else None


def known_as(url: str) -> str:
    """The address of a listener of this unit, as others know it."""
    found = way()
    return url if found is None else found.known_as(url)
