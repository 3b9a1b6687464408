"""The sessions and calls of one program outside of the run.

Invariants:
- A session is opened when its connection first calls a tool of the server, and closed with the connection.
- A call beyond the quotas is refused and does not run.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from agentrl.config.outside_access import OutsideAccess
from agentrl.toolbox.api_messages import CallAnswer, CallTool, OpenSession, QuotaError
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
WAIT_S = 10.0
"""For a process of a server."""


class OutsideSessions:
    """All sessions of one program."""

    def __init__(self, name: str, toolbox: Toolbox, quotas: OutsideAccess) -> None:
        self._name = name
        self._toolbox = toolbox
        self._quotas = quotas
        self._running = 0

    async def call(self, connection: str, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Call `SERVER.TOOL` in the session of this connection. Raises ToolboxError: the call did not run."""
        if self._running >= self._quotas.calls:
            raise QuotaError(f"{self._name} has {self._running} calls under way (outside.calls).", retry_after_s=1.0)
        self._running += 1
        try:
            server = self._toolbox.tool(tool).server
            session = self._id(connection, server)
            await self._open(session, server)
            call = f"{session}/{uuid.uuid4().hex}"
            return await self._toolbox.call(tool, CallTool(session=session, call=call, arguments=arguments))
        finally:
            self._running -= 1

    async def close(self, connection: str) -> None:
        """Close the sessions of one connection, or all sessions of the program if it is empty."""
        for session in self._of(connection):
            await self._toolbox.close(session, "its connection was closed")

    async def _open(self, session: str, server: str) -> None:
        if session not in self._toolbox.sessions:
            if len(self._of("")) >= self._quotas.sessions:
                many = f"{self._name} has {self._quotas.sessions} sessions open (outside.sessions)."
                raise QuotaError(many, retry_after_s=1.0)
            log.info("%s opens the session %s", self._name, session)
        # Apart from episodes, as a replay is: with processes of its own, without statistics.
        await self._toolbox.open(OpenSession(id=session, servers=(server,), wait_s=WAIT_S, replays=True))

    def _id(self, connection: str, server: str) -> str:
        return f"outside/{self._name}/{connection}/{server}"

    def _of(self, connection: str) -> list[str]:
        start = f"outside/{self._name}/{connection}/" if connection else f"outside/{self._name}/"
        return [session for session in self._toolbox.sessions if session.startswith(start)]
