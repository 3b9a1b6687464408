"""Where other hosts reach the coordinator: three sockets on tcp, if the configuration wants them.

Invariants: all three are open or none is; a configuration whose ports are taken is refused before it is in force; one
that is in force already (the coordinator was restarted, and meanwhile somebody took a port) is tried again and again,
while everybody on this host goes on as before.
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


class Outward(Protocol):
    """A socket that can be reached from other hosts as well."""

    def listen(self, address: str) -> None: ...
    def unlisten(self) -> None: ...


class TcpListener:
    """Hub, feed and metrics on tcp. `changed` is called when the address or the trouble is another one."""

    def __init__(self, hub: Outward, feed: Outward, metrics: Outward, changed: Callable[[], None]) -> None:
        self._sockets = (hub, feed, metrics)
        self._changed = changed
        self._wanted = ""
        self._retry: asyncio.TimerHandle | None = None
        self.address = ""
        """Where the coordinator is reached; empty if it is not."""
        self.trouble = ""
        """A sentence while it should be reached and cannot."""

    def check(self, config: RunConfig) -> None:
        """Refuse a configuration that could not be carried out. Nothing is changed."""
        wanted = config.coordinator.listen
        if not wanted or wanted == self.address:
            return
        own = set(map(_port, tcp_triplet(self.address))) if self.address else set()
        for address in tcp_triplet(wanted):
            if _port(address) not in own and (why := why_not_free(address)):
                raise cannot_listen(address, why)

    def configure(self, config: RunConfig) -> None:
        """Listen where the configuration says, and nowhere else."""
        self._wanted = config.coordinator.listen
        self._settle()

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None

    def _settle(self) -> None:
        self.close()
        before = self.address, self.trouble
        if self.address != self._wanted:
            self._end()
        self.trouble = "" if self.address == self._wanted else self._open()
        if (self.address, self.trouble) != before:
            self._changed()

    def _open(self) -> str:
        """Empty, or why it is to be tried again."""
        try:
            for socket, address in zip(self._sockets, tcp_triplet(self._wanted), strict=True):
                socket.listen(address)
        except ConfigError as refused:
            self._end()
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._settle)
            if refused.message != self.trouble:
                log.error("%s It is tried again every %g s.", refused.message, RETRY_S)
            return refused.message
        self.address = self._wanted
        log.info("other hosts reach the coordinator at %s", self.address)
        return ""

    def _end(self) -> None:
        self.address = ""
        for socket in self._sockets:
            socket.unlisten()


def _port(address: str) -> str:
    return address.rpartition(":")[2]
