"""Shows tool servers, their tools, and their sandboxes with sessions. Enter goes one level down, finally to calls.

Invariants:
- A command names the sandbox or the session of the selected row, as it was at the key press.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from agentrl.client import Client
from agentrl.formatting import sandbox_text
from agentrl.protocol.tool_commands import (
    JoinedRows,
    MissingUnit,
    ReleaseSession,
    RestartTool,
    ToolLogLine,
    ToolRow,
    ToolServerRow,
)
from tui.model import tool_tables
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Tone, span
from tui.model.table import Column
from tui.model.tool_tables import Use
from tui.views.calls import Calls
from tui.views.query_views import ANSWER_S, QueryPage, QueryTable

MOST = 1000


def calls_filter(**fields: str) -> str:
    """The filter of the list of calls with these values."""
    return " and ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if value)


class ToolList(QueryTable):
    """A list from the answers of toolboxes. It is short, so its filter is applied while it is typed."""

    filters_at_once = True

    def __init__(self) -> None:
        super().__init__()
        self._missing: Sequence[MissingUnit] = ()
        """Toolboxes that are not in the last answer."""

    def why_old(self) -> str:
        return super().why_old() or sandbox_text.incomplete(self._missing)

    def do_tool_restart(self, now: bool) -> None:
        """Restart the selected server or sandbox."""
        if (pending := self.restart(now)) is not None:
            self.perform(pending)

    def restart(self, now: bool) -> PendingCommand | None:
        """The command that restarts the selected thing; None if nothing is selected."""
        raise NotImplementedError

    def log_name(self) -> str:
        """The server or the sandbox of the selected row; empty if no row is selected."""
        raise NotImplementedError

    def do_tool_logs(self) -> None:
        if name := self.log_name():
            self.actions.navigation.open_page(ToolLogPage(name))

    def calls_filter(self) -> str:
        """The filter of the calls of the selected row; empty if no row is selected."""
        raise NotImplementedError


class ToolServers(ToolList):
    """Tool servers; enter shows the tools of one."""

    name_in_registry = "tool-servers"
    what = "tool servers"
    filled_by = "the run file has no section `tools`"
    first_sort = "id"

    def columns(self) -> tuple[Column[Any], ...]:
        return tool_tables.server_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        found = await client.list_tool_servers(deadline_s=ANSWER_S)
        self._missing = found.missing
        return {f"{row.toolbox}/{row.id}": row for row in found.rows}

    def searched_text(self, row: ToolServerRow) -> str:
        return f"{row.id} {row.toolbox} {row.state} {row.session} {tool_tables.server_what(row)}"

    def cli_line(self) -> tuple[str, ...]:
        return ("tools", "list")

    def open_row(self, row: ToolServerRow) -> None:
        self.actions.navigation.open_page(Tools(row.id))

    def log_name(self) -> str:
        row = self.selected()
        return row.id if row is not None else ""

    def calls_filter(self) -> str:
        row = self.selected()
        return calls_filter(server=row.id) if row is not None else ""

    def restart(self, now: bool) -> PendingCommand | None:
        row = self.selected()
        return PendingCommand(RestartTool(server=row.id, now=now)) if row is not None else None

    def do_open_sandboxes(self) -> None:
        """Open the sandboxes of the selected server directly, without its tools first."""
        if (row := self.selected()) is not None:
            self.actions.navigation.open_page(ToolSessions(row.id))


class Tools(ToolList):
    """The tools of one server; enter shows the sessions of the server."""

    name_in_registry = "tools"
    what = "tools"
    filled_by = "the server has not listed its tools yet"
    first_sort = "name"

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def heading(self) -> str:
        return f"{self._server}: {super().heading()}"

    def columns(self) -> tuple[Column[Any], ...]:
        return tool_tables.tool_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        found = await client.list_tools(server=self._server, deadline_s=ANSWER_S)
        self._missing = found.missing
        return {f"{row.toolbox}/{row.id}": row for row in found.rows}

    def searched_text(self, row: ToolRow) -> str:
        return f"{row.id} {row.toolbox} {row.effect} {row.description}"

    def cli_line(self) -> tuple[str, ...]:
        return ("tools", "show", self._server)

    def restart(self, now: bool) -> PendingCommand | None:
        return PendingCommand(RestartTool(server=self._server, now=now))

    def log_name(self) -> str:
        return self._server

    def calls_filter(self) -> str:
        row = self.selected()
        return calls_filter(server=self._server, tool=row.name) if row is not None else ""

    def open_row(self, row: ToolRow) -> None:
        self.actions.navigation.open_page(ToolSessions(self._server, row.name))


class ToolSessions(ToolList):
    """The sandboxes of one server with their sessions; enter lists the calls of a session."""

    name_in_registry = "tool-sessions"
    what = "sandboxes and sessions"
    filled_by = "no process of the server runs here, and no session is open"
    first_sort = "box"

    def __init__(self, server: str, tool: str = "") -> None:
        """With `tool`, enter lists only the calls of this tool."""
        super().__init__()
        self._server = server
        self._tool = tool

    def heading(self) -> str:
        return f"{self._server}: {super().heading()}"

    def columns(self) -> tuple[Column[Any], ...]:
        return tool_tables.use_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        sandboxes, sessions = await asyncio.gather(
            client.list_sandboxes(server=self._server, sort="-memory", limit=MOST, deadline_s=ANSWER_S),
            client.list_tool_sessions(server=self._server, limit=MOST, deadline_s=ANSWER_S),
        )
        self._missing = sandboxes.missing or sessions.missing
        return tool_tables.uses(sandboxes.rows, sessions.rows)

    def searched_text(self, row: Use) -> str:
        return f"{row.key} {row.sandbox.state} {row.sandbox.purpose} {' '.join(row.sandbox.doing)}"

    def cli_line(self) -> tuple[str, ...]:
        return ("tools", "sandboxes", "--server", self._server)

    def log_name(self) -> str:
        row = self.selected()
        return row.sandbox.id if row is not None else ""

    def calls_filter(self) -> str:
        row = self.selected()
        session = row.session_id if row is not None else ""
        return calls_filter(session=session, server=self._server, tool=self._tool)

    def open_row(self, row: Use) -> None:
        self.actions.navigation.open_page(Calls(self.calls_filter()))

    def restart(self, now: bool) -> PendingCommand | None:
        row = self.selected()
        return PendingCommand(RestartTool(sandbox=row.sandbox.id, now=now)) if row is not None else None

    def do_session_release(self) -> None:
        """Close the session of the selected row."""
        row: Use | None = self.selected()
        if row is not None and not row.session_id:
            self.actions.say(f"{row.sandbox.id} belongs to no session; r restarts it.", Tone.WARN)
        elif row is not None:
            self.perform(PendingCommand(ReleaseSession(row.session_id, row.sandbox.toolbox)))


class ToolLogPage(QueryPage):
    """The newest lines that a tool server or a sandbox wrote to its log."""

    def __init__(self, name: str) -> None:
        super().__init__(f"log of {name}", ("tools", "logs", name))
        self._named = name

    async def ask(self, client: Client) -> JoinedRows[ToolLogLine]:
        return await client.tool_logs(self._named, deadline_s=ANSWER_S)

    def content(self, width: int) -> list[Line]:
        found: JoinedRows[ToolLogLine] = self._answer
        missing = sandbox_text.incomplete(found.missing)
        lines = tool_tables.log_lines(found.rows, width)
        return [*lines, (), (span(missing, Tone.WARN),)] if missing else lines
