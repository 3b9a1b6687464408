"""What one episode has reserved: a lease on each of its servers.

Invariants: all servers are reserved or none; once a session has called a stateful server it never gets another
connection to it: if that one died the session is lost and says so. Servers are taken in one order everywhere, so that
two sessions never wait for each other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from agentrl.config.data_plane import ToolServer
from agentrl.toolbox.api_messages import SessionError, SessionLostError, ToolInfo
from agentrl.toolbox.call_registry import Call
from agentrl.toolbox.circuit_breaker import Breaker
from agentrl.toolbox.connection import Connection
from agentrl.toolbox.fresh_session_retry import FreshSessionRetry
from agentrl.toolbox.server_pool import Keeper

RETURN_WITHIN_S = 5.0
"""How long a call waits for a server that died and is being started again."""


@dataclass(eq=False)
class Server:
    """One tool server with everything that is counted about it."""

    name: str
    config: ToolServer
    keeper: Keeper
    breaker: Breaker
    at_once: int
    """More calls at once only make a server slower, or fail."""
    trials: FreshSessionRetry
    turns: asyncio.Semaphore = field(init=False)
    tools: dict[str, ToolInfo] = field(default_factory=dict)
    sessions: int = 0
    running: int = 0
    waiting: int = 0

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.at_once)

    def take_tools(self, tools: tuple[ToolInfo, ...]) -> None:
        self.tools = {tool.name: tool for tool in tools if tool.name not in self.config.block}


class Lease:
    """A session's hold on one server."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self.server = server
        self._connection = connection
        self._used = False
        self._ended = False
        self._changing = asyncio.Lock()
        server.sessions += 1

    async def connection(self) -> Connection:
        """The connection for the next call. Raises SessionLostError, UnavailableError, QuotaError."""
        # Calls of one session come in parallel: one of them gets the new connection for all.
        async with self._changing:
            if self._connection.gone.is_set():
                await self._change()
        self._used = True
        return self._connection

    async def _change(self) -> None:
        if self._used and self.server.config.session != "shared":
            raise SessionLostError(f"What {self.server.name} kept for this session is lost: {self._connection.why}.")
        keeper = self.server.keeper
        keeper.give_back(self._connection)
        self._connection = await keeper.take(RETURN_WITHIN_S)
        if self._ended:
            keeper.give_back(self._connection)
            raise SessionError("The session was closed.")

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.server.sessions -= 1
            self.server.keeper.give_back(self._connection)


class Session:
    """One episode's reservation."""

    def __init__(self, id: str, leases: dict[str, Lease]) -> None:
        self.id = id
        self.leases = leases
        self.opened_at = self.used_at = time.monotonic()
        self.running: set[Call] = set()
        self.closing = False

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.leases)

    def idle_s(self, now: float) -> float:
        return 0.0 if self.running else now - self.used_at


async def reserve(servers: list[Server], wait_s: float) -> dict[str, Lease]:
    """All of them, or none and the error of the one that could not be had."""
    deadline = time.monotonic() + wait_s
    leases: dict[str, Lease] = {}
    try:
        for server in sorted(servers, key=lambda server: server.name):
            connection = await server.keeper.take(max(0.0, deadline - time.monotonic()))
            leases[server.name] = Lease(server, connection)
    except BaseException:
        for lease in leases.values():
            lease.end()
        raise
    return leases
