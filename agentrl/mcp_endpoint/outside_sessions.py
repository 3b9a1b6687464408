"""The sessions and calls of one program outside of the run.

Invariants:
- A session is opened when its connection first calls a tool of the server, and closed with the connection.
- A call beyond the quotas is refused and does not run.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from typing import Any

from agentrl.config.outside_access import OutsideAccess
from agentrl.toolbox.api_messages import CallAnswer, CallTool, OpenSession, QuotaError
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
WAIT_S = 10.0
"""For a process of a server."""
MOST_WAIT_S = 60.0
API = "http"
"""In the ids of sessions that are opened over HTTP and not by an MCP connection."""


class OutsideSessions:
    """All sessions of one program."""

    def __init__(self, name: str, toolbox: Toolbox, quotas: OutsideAccess) -> None:
        self._name = name
        self._toolbox = toolbox
        self._quotas = quotas
        self._running = 0
        self._opening: set[str] = set()

    async def call(self, connection: str, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Call `SERVER.TOOL` in the session of this connection. Raises ToolboxError: the call did not run."""
        with self._running_call():
            server = self._toolbox.tool(tool).server
            session = self._id(connection, server)
            await self._open(session, (server,), WAIT_S)
            call = f"{session}/{uuid.uuid4().hex}"
            return await self._toolbox.call(tool, CallTool(session=session, call=call, arguments=arguments))

    async def open(self, session: str, servers: tuple[str, ...], wait_s: float) -> None:
        """Open a session that the program named. Raises ToolboxError."""
        await self._open(self._named(session), servers, min(wait_s, MOST_WAIT_S))

    async def call_in(
        self, session: str, call: str, tool: str, arguments: dict[str, Any], timeout_s: float
    ) -> CallAnswer:
        """Call a tool in a session that the program named. Raises ToolboxError: the call did not run."""
        id = f"outside/{self._name}/{API}/{session}"
        wanted = CallTool(session=id, call=f"{id}/{call}", arguments=arguments, timeout_s=timeout_s)
        with self._running_call():
            return await self._toolbox.call(tool, wanted)

    async def close_session(self, session: str) -> None:
        await self._toolbox.close(self._named(session), "its program closed it")

    async def close(self, connection: str) -> None:
        """Close the sessions of one connection, or all sessions of the program if it is empty."""
        for session in self._of(connection):
            await self._toolbox.close(session, "its connection was closed")

    @contextlib.contextmanager
    def _running_call(self) -> Iterator[None]:
        if self._running >= self._quotas.calls:
            raise QuotaError(f"{self._name} has {self._running} calls under way (outside.calls).", retry_after_s=1.0)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _open(self, session: str, servers: tuple[str, ...], wait_s: float) -> None:
        others = {*self._of(""), *self._opening} - {session}
        if len(others) >= self._quotas.sessions:
            many = f"{self._name} has {self._quotas.sessions} sessions open (outside.sessions)."
            raise QuotaError(many, retry_after_s=1.0)
        if session not in self._toolbox.sessions:
            log.info("%s opens the session %s", self._name, session)
        self._opening.add(session)
        try:
            # Apart from episodes, as a replay is: with processes of its own, without statistics.
            await self._toolbox.open(OpenSession(id=session, servers=servers, wait_s=wait_s, replays=True))
        finally:
            self._opening.discard(session)

    def _named(self, session: str) -> str:
        return f"outside/{self._name}/{API}/{session}"

    def _id(self, connection: str, server: str) -> str:
        return f"outside/{self._name}/{connection}/{server}"

    def _of(self, connection: str) -> list[str]:
        start = f"outside/{self._name}/{connection}/" if connection else f"outside/{self._name}/"
        return [session for session in self._toolbox.sessions if session.startswith(start)]
