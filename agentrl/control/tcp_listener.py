"""Opens the three tcp sockets by which other hosts reach the coordinator, if the configuration has `listen`.

Invariants:
- The three sockets are all open or all closed.
- A configuration whose ports are taken is refused before it is in force.
- If a restarted coordinator finds its ports taken, it tries again every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.transport.addresses import cannot_listen, tcp_triplet, why_not_free

RETRY_S = 2.0
log = logging.getLogger(__name__)


class TcpSocket(Protocol):
    """A socket that can also listen on tcp."""

    def listen(self, address: str) -> None: ...
    def unlisten(self) -> None: ...


class TcpListener:
    """Hub, feed and metrics on tcp. `changed` is called when `address` or `trouble` changes."""

    def __init__(self, hub: TcpSocket, feed: TcpSocket, metrics: TcpSocket, changed: Callable[[], None]) -> None:
        self._sockets = (hub, feed, metrics)
        self._changed = changed
        self._wanted = ""
        self._retry: asyncio.TimerHandle | None = None
        self.address = ""
        """The address at which other hosts reach the coordinator; empty if they cannot."""
        self.trouble = ""
        """The reason why the coordinator cannot listen although it should; empty if it can."""

    def check(self, config: RunConfig) -> None:
        """Refuse a configuration whose ports are taken. Changes nothing."""
        wanted = config.coordinator.listen
        if not wanted or wanted == self.address:
            return
        own = set(map(_port, tcp_triplet(self.address))) if self.address else set()
        for address in tcp_triplet(wanted):
            if _port(address) not in own and (why := why_not_free(address)):
                raise cannot_listen(address, why)

    def configure(self, config: RunConfig) -> None:
        """Listen on the configured address only."""
        self._wanted = config.coordinator.listen
        self._apply()

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None

    def _apply(self) -> None:
        self.close()
        before = self.address, self.trouble
        if self.address != self._wanted:
            self._close_sockets()
        self.trouble = "" if self.address == self._wanted else self._open()
        if (self.address, self.trouble) != before:
            self._changed()

    def _open(self) -> str:
        """Open the sockets. Returns the reason for another try; empty if it succeeded."""
        try:
            for socket, address in zip(self._sockets, tcp_triplet(self._wanted), strict=True):
                socket.listen(address)
        except ConfigError as refused:
            self._close_sockets()
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._apply)
            if refused.message != self.trouble:
                log.error("%s The coordinator tries again every %g s.", refused.message, RETRY_S)
            return refused.message
        self.address = self._wanted
        log.info("other hosts reach the coordinator at %s", self.address)
        return ""

    def _close_sockets(self) -> None:
        self.address = ""
        for socket in self._sockets:
            socket.unlisten()


def _port(address: str) -> str:
    return address.rpartition(":")[2]
