"""The sessions and calls of one program outside of the run.

Invariants:
- An MCP connection opens a session when it first calls a tool of a server. Over HTTP a program opens sessions by name.
- A session ends when its program closes it or the connection, when it was idle for too long, and with the toolbox.
- The call of a connection whose session has ended is refused, because its state is lost; the next one opens another.
- Tools that are hidden from models are hidden from programs too: neither listed nor called.
- A session or a call beyond the quotas of the program, or of all programs, is refused and does not run.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentrl.config.outside_access import OutsideAccess
from agentrl.toolbox.api_messages import (
    CallAnswer,
    CallTool,
    OpenSession,
    QuotaError,
    SessionError,
    ToolInfo,
    UnknownToolError,
)
from agentrl.toolbox.sessions import MOST_FAILURE_CHARS
from agentrl.toolbox.toolbox import Toolbox
from agentrl.toolservers.user_names import HIDDEN_TOOLS

log = logging.getLogger("toolbox")
WAIT_S = 10.0
"""For a process of a server."""
MOST_WAIT_S = 60.0
API = "http"
"""In the ids of sessions that are opened over HTTP and not by an MCP connection."""


class OutsideSessions:
    """All sessions of one program. `opening` holds the sessions that any program is opening now."""

    def __init__(self, name: str, toolbox: Toolbox, quotas: OutsideAccess, opening: set[str]) -> None:
        self._name = name
        self._toolbox = toolbox
        self._quotas = quotas
        self._running = 0
        self._opening = opening
        self._ended: Counter[str] = Counter()
        """By connection and server: how many of its sessions have ended, while the connection lives."""

    def offered(self, server: str = "") -> tuple[ToolInfo, ...]:
        """The tools of one server, or of all. Raises ToolboxError."""
        return tuple(tool for tool in self._toolbox.tools(server) if tool.name not in HIDDEN_TOOLS)

    async def call(self, connection: str, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Call `SERVER.TOOL` in the session of this connection. Raises ToolboxError: the call did not run."""
        with self._running_call():
            _refuse_hidden(tool)
            server = self._toolbox.tool(tool).server
            place = f"{connection}/{server}"
            session = self._id(place)
            try:
                await self._open(session, (server,), WAIT_S)
            except SessionError as ended:
                self._ended[place] += 1
                raise SessionError(f"{ended} Its state is lost; the next call opens another session.") from None
            call = f"{session}/{uuid.uuid4().hex}"
            return await self._call(tool, CallTool(session=session, call=call, arguments=arguments))

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
            _refuse_hidden(tool)
            return await self._call(tool, wanted)

    async def close_session(self, session: str) -> None:
        await self._toolbox.close(self._named(session), "its program closed it")

    async def close(self, connection: str) -> None:
        """Close the sessions of one connection, or all sessions of the program if it is empty."""
        for session in self._of(connection):
            await self._toolbox.close(session, "its connection was closed")
        for place in [place for place in self._ended if place.startswith(f"{connection}/") or not connection]:
            del self._ended[place]

    async def _call(self, tool: str, wanted: CallTool) -> CallAnswer:
        """Each call has a line in the log: it belongs to no record, so the lists of calls do not have it."""
        answer = await self._toolbox.call(tool, wanted)
        if answer.status == "ok" or answer.status == "tool_error":
            log.info(
                "%s called %s in %s: %s, %.2f s", self._name, tool, wanted.session, answer.status, answer.latency_s
            )
        else:
            shown = answer.content[:MOST_FAILURE_CHARS]
            log.warning("%s called %s in %s: %s, %r", self._name, tool, wanted.session, answer.status, shown)
        return answer

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
        others = {each for each in (*self._toolbox.sessions, *self._opening) if each.startswith("outside/")} - {session}
        if sum(each.startswith(f"outside/{self._name}/") for each in others) >= self._quotas.sessions:
            many = f"{self._name} has {self._quotas.sessions} sessions open (outside.sessions)."
            raise QuotaError(many, retry_after_s=1.0)
        if len(others) >= self._quotas.all_sessions:
            many = f"All programs together have {len(others)} sessions open (outside.all_sessions)."
            raise QuotaError(many, retry_after_s=1.0)
        if session not in self._toolbox.sessions:
            log.info("%s opens the session %s", self._name, session)
        self._opening.add(session)
        try:
            # Kept apart from episodes like a replay: with its own processes, without statistics.
            idle_s = self._quotas.idle_s
            wanted = OpenSession(id=session, servers=servers, wait_s=wait_s, replays=True, idle_s=idle_s)
            await self._toolbox.open(wanted)
        finally:
            self._opening.discard(session)

    def _named(self, session: str) -> str:
        return f"outside/{self._name}/{API}/{session}"

    def _id(self, place: str) -> str:
        ended = self._ended.get(place, 0)
        return f"outside/{self._name}/{place}{f'/{ended + 1}' if ended else ''}"

    def _of(self, connection: str) -> list[str]:
        start = f"outside/{self._name}/{connection}/" if connection else f"outside/{self._name}/"
        return [session for session in self._toolbox.sessions if session.startswith(start)]


def _refuse_hidden(tool: str) -> None:
    server, _, name = tool.rpartition(".")
    if name in HIDDEN_TOOLS:
        raise UnknownToolError(f"{server} has no tool {name!r}.")
