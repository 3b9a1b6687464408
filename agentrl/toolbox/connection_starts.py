"""Starts and restarts the connections of one tool server: the common part of pools and shared connections.

Invariants:
- A server that died is started again: at once if it had lived for a while, otherwise after a growing delay.
- Only a few servers start at the same time, and a server that waits for something does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Protocol

from agentrl.config.data_plane import ToolServer
from agentrl.errors import AgentrlError
from agentrl.sandboxes.launch_environment import headers_of, launch_of
from agentrl.sandboxes.network_access import NetworkAccess
from agentrl.sandboxes.sandbox_choice import sandboxed
from agentrl.sandboxes.visible_files import Secrets
from agentrl.toolbox.api_messages import ToolInfo, UnavailableError
from agentrl.toolbox.http_peer import HttpPeer
from agentrl.toolbox.mcp_connection import Connection
from agentrl.toolbox.mcpapi_client import McpapiConnection
from agentrl.toolbox.server_packages import ServerPackages
from agentrl.toolbox.stdio_transport import ServerProcess

log = logging.getLogger("toolbox")
LIVED_S = 10.0
"""A server that lived this long is restarted at once."""
IN_A_ROW_S = 90.0
"""Failures further apart do not count as a series."""
FIRST_WAIT_S = 0.5
MOST_WAIT_S = 30.0
STARTS_AT_ONCE = 2
"""A start takes half a second of a core."""
COMPUTES_S = 5.0
"""A start that takes longer waits for something and uses no core."""
FAILURES = 2
"""This many failed starts in a row are not chance."""
NOT_YET = "it is being started"
LATELY_S = 300.0
Connect = Callable[[], Connection]


class ConnectionSource(Protocol):
    starts: int
    """Number of opened connections."""

    @property
    def failures(self) -> int:
        """Failed starts in a row, or deaths soon after a start."""
        ...

    @property
    def down_s(self) -> float:
        """The time since it served, or since the first start began."""
        ...

    @property
    def slow_start(self) -> str:
        """What is known of the oldest start under way; empty if there is none."""
        ...

    @property
    def died(self) -> int:
        """Number of connections that ended unplanned."""
        ...

    @property
    def died_lately(self) -> int:
        """Of these, how many within LATELY_S."""
        ...

    @property
    def last_death(self) -> str: ...

    @property
    def version(self) -> str:
        """Name and version that the server reported at its last start."""
        ...

    @property
    def why(self) -> str: ...

    async def run(self) -> None:
        """Open and replace connections until cancelled."""
        ...

    @property
    def serving(self) -> bool: ...

    async def take(self, wait_s: float) -> Connection:
        """A connection for one session. Raises UnavailableError or QuotaError."""
        ...

    def give_back(self, connection: Connection) -> None: ...

    def connections(self) -> list[Connection]: ...

    def replace_retired(self) -> None:
        """Begin to replace connections that were marked as retired; each ends when no session uses it."""
        ...


def connector(
    name: str,
    server: ToolServer,
    run_dir: Path,
    secret_files: Iterable[Path] = (),
    network: NetworkAccess | None = None,
) -> Connect:
    def connect() -> Connection:
        if server.address:
            headers = headers_of(name, server, run_dir=run_dir, environ=os.environ)
            peer = HttpPeer(server.address, headers, sse=bool(server.sse))
            return McpapiConnection(name, peer, server.mcpapi) if server.mcpapi else Connection(name, peer)
        plain = launch_of(name, server, run_dir=run_dir, environ=os.environ)
        secrets = Secrets.of_this_host(os.environ, run_dir, secret_files)
        launch = sandboxed(name, server, plain, run_dir=run_dir, secrets=secrets, network=network)
        return Connection(name, ServerProcess(name, launch))

    return connect


@contextlib.asynccontextmanager
async def start_permit(gate: asyncio.Semaphore) -> AsyncIterator[None]:
    """One of the few starts at a time. It is returned after a while, so a silent server does not delay others."""
    await gate.acquire()
    loop = asyncio.get_running_loop()
    timer = loop.call_later(COMPUTES_S, gate.release)
    try:
        yield
    finally:
        if timer.when() > loop.time():
            timer.cancel()
            gate.release()


class ConnectionStarter:
    """Opens connections, a few at a time, and waits longer after each failure in a row."""

    def __init__(
        self,
        connect: Connect,
        gate: asyncio.Semaphore,
        on_tools: Callable[[tuple[ToolInfo, ...]], None],
        *,
        within_s: float = 60.0,
        packages: ServerPackages | None = None,
    ) -> None:
        """`gate` limits the starts at the same time, `on_tools` gets the tools, `within_s` limits one start."""
        self.version = ""
        """The version that the server reported at its last start."""
        self._connect = connect
        self._gate = gate
        self._on_tools = on_tools
        self._within_s = within_s
        self._packages = packages
        self.failures = 0
        self._failed_at = 0.0
        self._starting: list[Connection] = []
        self._down_since = time.monotonic()
        self.why = NOT_YET
        self.died = 0
        self._deaths: deque[float] = deque(maxlen=100)
        self.last_death = ""

    @property
    def down_s(self) -> float:
        return time.monotonic() - self._down_since

    @property
    def slow_start(self) -> str:
        return self._starting[0].story if self._starting else ""

    async def start(self) -> Connection | None:
        """Open a connection. Returns None, after a delay, if that failed."""
        try:
            if self._packages is not None:
                await self._packages.installed(self._waits)
            async with start_permit(self._gate):
                connection = self._connect()
                self._starting.append(connection)
                try:
                    await connection.open(self._within_s)
                finally:
                    self._starting.remove(connection)
        except AgentrlError as failed:
            self.failed(failed.message)
            await self.wait()
            return None
        self.why = ""
        self.version = connection.version
        self._on_tools(connection.tools)
        connection.on_tools = self._on_tools
        return connection

    def _waits(self, step: str) -> None:
        self.why = step
        log.info("%s", step)

    def failed(self, why: str) -> None:
        now = time.monotonic()
        if not self.why:
            self._down_since = now
        self.failures = self.failures + 1 if now - self._failed_at < IN_A_ROW_S else 1
        self._failed_at = now
        self.why = why
        log.warning("%s", why)

    def ended(self, connection: Connection) -> None:
        """A connection ended. One that ended soon counts as a failed start."""
        self.count_death(connection)
        if time.monotonic() - connection.opened_at >= LIVED_S:
            self.failures = 0
            self._down_since = time.monotonic()
            self.why = f"it died and is restarted: {connection.why}"
            log.warning("%s died and is restarted: %s", connection.name, connection.why)
        else:
            self.failed(f"{connection.name} died: {connection.why}")

    @property
    def died_lately(self) -> int:
        return sum(time.monotonic() - at < LATELY_S for at in self._deaths)

    def count_death(self, connection: Connection) -> None:
        self.died += 1
        self._deaths.append(time.monotonic())
        self.last_death = connection.why

    async def wait(self) -> None:
        if self.failures:
            await asyncio.sleep(min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** (self.failures - 1)))


class StarterState:
    """What a starter knows about the starts and deaths of its server."""

    def __init__(self, starter: ConnectionStarter) -> None:
        self._starter = starter

    @property
    def why(self) -> str:
        return self._starter.why

    @property
    def failures(self) -> int:
        return self._starter.failures

    @property
    def down_s(self) -> float:
        return self._starter.down_s

    @property
    def slow_start(self) -> str:
        return self._starter.slow_start

    @property
    def died(self) -> int:
        return self._starter.died

    @property
    def died_lately(self) -> int:
        return self._starter.died_lately

    @property
    def last_death(self) -> str:
        return self._starter.last_death

    @property
    def version(self) -> str:
        return self._starter.version


def does_not_serve(why: str) -> UnavailableError:
    return UnavailableError(f"The server does not serve: {why.rstrip('.')}.", retry_after_s=1.0)
