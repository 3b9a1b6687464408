"""The session of one episode: a lease on each of its servers.

Invariants:
- A session reserves all its servers or none.
- A session that called a stateful server gets no other connection to it: if the connection ends, the session is lost.
- All sessions reserve servers in the same order, so two sessions never wait for each other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from agentrl.config.data_plane import ToolServer
from agentrl.toolbox.api_messages import CallAnswer, SessionError, SessionLostError, ToolInfo
from agentrl.toolbox.call_registry import Call
from agentrl.toolbox.circuit_breaker import Breaker
from agentrl.toolbox.connection_starts import Connect, ConnectionSource
from agentrl.toolbox.fresh_session_retry import FreshSessionRetry
from agentrl.toolbox.mcp_connection import Connection
from agentrl.toolbox.server_pool import OwnProcesses

MOST_FAILURE_CHARS = 300
RETURN_WITHIN_S = 5.0
"""How long a call waits for the restart of a server."""


@dataclass(eq=False)
class Server:
    """One tool server with its connections, breaker and counters."""

    name: str
    config: ToolServer
    keeper: ConnectionSource
    breaker: Breaker
    at_once: int
    """Calls at the same time; more would make the server slower, or fail."""
    retry: FreshSessionRetry
    connect: Connect
    own: OwnProcesses | None = None
    """For a server with a pool: the processes of sessions that replay calls."""
    turns: asyncio.Semaphore = field(init=False)
    tools: dict[str, ToolInfo] = field(default_factory=dict)
    sessions: int = 0
    running: int = 0
    waiting: int = 0
    last_failure: str = ""

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.at_once)

    def take_tools(self, tools: tuple[ToolInfo, ...]) -> None:
        self.tools = {tool.name: tool for tool in tools if tool.name not in self.config.block}


class Lease:
    """The reservation of one server for a session."""

    def __init__(self, server: Server, connection: Connection, source: ConnectionSource | OwnProcesses) -> None:
        self.server = server
        self._source = source
        self._connection = connection
        self._used = False
        self._ended = False
        self._has_it = True
        self._changing = asyncio.Lock()
        server.sessions += 1

    @property
    def held(self) -> Connection:
        """The connection of the calls so far."""
        return self._connection

    @property
    def used(self) -> bool:
        """Whether a call had the connection."""
        return self._used

    async def connection(self) -> Connection:
        """The connection for the next call. Raises SessionLostError, UnavailableError, QuotaError."""
        # Parallel calls of a session share the new connection.
        async with self._changing:
            replaced = self._connection.retired and self.server.config.session == "shared"
            if self._connection.gone.is_set() or replaced:
                await self._change()
        self._used = True
        return self._connection

    async def _change(self) -> None:
        if self._used and self.server.config.session != "shared":
            raise SessionLostError(f"The state of this session in {self.server.name} is lost: {self._connection.why}.")
        self._give_back()
        self._connection = await self._source.take(RETURN_WITHIN_S)
        self._has_it = True
        if self._ended:
            self._source.give_back(self._connection)
            raise SessionError("The session was closed.")

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.server.sessions -= 1
            self._give_back()

    def _give_back(self) -> None:
        """Give the connection back once, because its source counts the sessions that have it."""
        if self._has_it:
            self._has_it = False
            self._source.give_back(self._connection)


class Session:
    """The servers that one episode reserved, and its running calls."""

    def __init__(self, id: str, leases: dict[str, Lease], *, replays: bool = False, most_idle_s: float = 0.0) -> None:
        self.id = id
        self.leases = leases
        self.replays = replays
        self.most_idle_s = most_idle_s
        """0: the limit of the toolbox."""
        self.opened_at = self.used_at = time.monotonic()
        self.running: set[Call] = set()
        self.begun: list[str] = []
        """The ids of all its calls."""
        self.failed = 0
        """Calls that ended without an answer of their tool."""
        self.last_failure = ""
        self.closing = False
        self.released = False
        """An operator closed it, so its cancelled calls say nothing about their tools."""
        self.cancelled = CallAnswer(status="cancelled", content="The session was closed.")
        """The answer to calls that the end of the session cancels."""

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.leases)

    def note(self, answer: CallAnswer) -> None:
        if answer.status not in ("ok", "tool_error"):
            self.failed += 1
            self.last_failure = answer.content[:MOST_FAILURE_CHARS]

    def idle_s(self, now: float) -> float:
        return 0.0 if self.running else now - self.used_at


async def reserve(servers: list[Server], wait_s: float, *, replays: bool = False) -> dict[str, Lease]:
    """Reserve all servers; raises the error of the first that is not available, and reserves none."""
    deadline = time.monotonic() + wait_s
    leases: dict[str, Lease] = {}
    try:
        for server in sorted(servers, key=lambda server: server.name):
            source = server.own if replays and server.own is not None else server.keeper
            connection = await source.take(max(0.0, deadline - time.monotonic()))
            leases[server.name] = Lease(server, connection, source)
    except BaseException:
        for lease in leases.values():
            lease.end()
        raise
    return leases
