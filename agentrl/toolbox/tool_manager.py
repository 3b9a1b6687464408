"""Lists the servers, tools, sandboxes and sessions of a toolbox for operators.

Invariants:
- All rows of a list show the same moment: nothing is awaited while they are made.
- The sessions of a sandbox are those whose calls it runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from agentrl.errors import UnknownNameError
from agentrl.filters.fields import SANDBOXES
from agentrl.filters.row_selection import select
from agentrl.policies.replay_verdicts import DEFAULT_EFFECT
from agentrl.protocol.tool_commands import (
    MOST_ROWS,
    ListSandboxes,
    ListTools,
    ListToolServers,
    ListToolSessions,
    SandboxRow,
    ToolLogLine,
    ToolLogs,
    ToolRow,
    ToolServerRow,
    ToolSessionRow,
)
from agentrl.toolbox.live_sandboxes import LiveSandbox
from agentrl.toolbox.sessions import Session
from agentrl.toolbox.tool_statistics import ToolStatistics
from agentrl.toolbox.toolbox import Toolbox


class ToolManager:
    """What operators see of one toolbox, and do with it."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    # ---- lists ----

    def servers(self, args: ListToolServers) -> list[ToolServerRow]:
        """Raises UnknownToolError."""
        self._check(args.server)
        statistics = self._statistics()
        found = []
        for info in self._toolbox.servers():
            if args.server not in ("", info.id):
                continue
            living = self._toolbox.sandboxes.living(info.id)
            usages = [each.usage for each in living if each.usage is not None]
            mine = [tool for name, tool in statistics.items() if name.startswith(f"{info.id}.")]
            found.append(
                ToolServerRow(
                    id=info.id,
                    toolbox=self._toolbox.name,
                    session=info.session,
                    state=info.state,
                    breaker=info.breaker,
                    unhealthy=info.unhealthy,
                    why=info.why,
                    version=info.version,
                    sandbox=info.sandbox,
                    tools=info.tools,
                    sandboxes=len(living),
                    sessions=info.sessions,
                    running=info.running,
                    waiting=info.waiting,
                    calls=sum(tool.calls for tool in mine),
                    failed=sum(tool.faults.get("infrastructure", 0) for tool in mine),
                    pool=info.pool,
                    waiting_sessions=info.waiting_sessions,
                    starts=info.starts,
                    died=info.died,
                    last_death=info.last_death,
                    last_failure=info.last_failure,
                    memory_bytes=sum(usage.memory_bytes for usage in usages),
                    memory_share=max((usage.memory_share for usage in usages), default=0.0),
                    cpu_percent=round(sum(usage.cpu_percent for usage in usages), 1),
                )
            )
        return found

    def tools(self, args: ListTools) -> list[ToolRow]:
        """Raises UnknownToolError."""
        self._check(args.server)
        statistics = self._statistics()
        found = []
        for tool in self._toolbox.tools(args.server):
            known = statistics.get(tool.id)
            found.append(
                ToolRow(
                    id=tool.id,
                    toolbox=self._toolbox.name,
                    server=tool.server,
                    name=tool.name,
                    description=tool.description,
                    schema=tool.schema,
                    effect=self._toolbox.effect(tool) or DEFAULT_EFFECT,
                    calls=known.calls if known else 0,
                    failed=known.faults.get("infrastructure", 0) if known else 0,
                    errors=sum(known.faults.values()) if known else 0,
                    p50_s=known.p50_s if known else 0.0,
                    p95_s=known.p95_s if known else 0.0,
                    longest_s=known.longest_s if known else 0.0,
                )
            )
        return found

    def sandboxes(self, args: ListSandboxes) -> list[SandboxRow]:
        """Raises UnknownToolError, and FilterError of a wrong filter or order."""
        self._check(args.server)
        users = self._users()
        rows = [self._sandbox_row(each, users) for each in self._toolbox.sandboxes.living(args.server)]
        limit = min(args.limit, MOST_ROWS)
        return select(rows, SANDBOXES, filter=args.filter, sort=args.sort, limit=limit, now=datetime.now(UTC))

    def sessions(self, args: ListToolSessions) -> list[ToolSessionRow]:
        """Raises UnknownToolError."""
        self._check(args.server)
        chosen = [each for each in self._toolbox.sessions.values() if args.server in ("", *each.servers)]
        chosen.sort(key=lambda session: session.opened_at)
        return [self._session_row(each) for each in chosen[: min(args.limit, MOST_ROWS)]]

    def logs(self, args: ToolLogs) -> list[ToolLogLine]:
        """The newest lines of a server or a sandbox, even if it has ended. Raises UnknownNameError."""
        logs, after = self._toolbox.sandboxes.logs, args.after.get(self._toolbox.name, 0)
        if args.name in self._toolbox.all_servers:
            log = logs.get(args.name)
            lines = log.after(after) if log else []
        else:
            sandbox = self._toolbox.sandboxes.whole_id(args.name)
            server = sandbox.rpartition("/")[2].rpartition("-")[0]
            if server not in self._toolbox.all_servers or (log := logs.get(server)) is None or not log.knows(sandbox):
                known = ", ".join(self._toolbox.all_servers)
                raise UnknownNameError(
                    f"There is no tool server or sandbox {args.name!r}.",
                    hint=f"Servers are: {known}; `agentrl tools sandboxes` lists the sandboxes.",
                )
            lines = log.after(after, sandbox)
        name = self._toolbox.name
        return [
            ToolLogLine(line.number, line.at, name, line.sandbox, line.text)
            for line in lines[-min(args.limit, MOST_ROWS) :]
        ]

    # ---- rows ----

    def _sandbox_row(self, sandbox: LiveSandbox, users: Mapping[str, list[Session]]) -> SandboxRow:
        sessions, connection, limits = users.get(sandbox.id, []), sandbox.connection, sandbox.config.sandbox
        only = sessions[0] if len(sessions) == 1 else None
        bounded, usage = sandbox.kind != "none", sandbox.usage
        doing = {
            call.tool for session in sessions for call in session.running if call.tool.startswith(f"{sandbox.server}.")
        }
        return SandboxRow(
            id=sandbox.id,
            toolbox=self._toolbox.name,
            server=sandbox.server,
            kind=sandbox.kind,
            state=_state(sandbox, len(sessions)),
            sessions=len(sessions),
            session=only.id if only else "",
            purpose="replay" if only and only.replays else connection.purpose,
            doing=tuple(sorted(tool.removeprefix(f"{sandbox.server}.") for tool in doing)),
            calls=connection.calls,
            pid=sandbox.process.pid or 0,
            started_at=sandbox.made_at,
            age_s=round(max(0.0, time.time() - sandbox.made_at), 1),
            measured_at=usage.at if usage else 0.0,
            cpu_percent=usage.cpu_percent if usage else 0.0,
            memory_bytes=usage.memory_bytes if usage else 0,
            memory_limit_bytes=limits.memory if bounded else 0,
            memory_share=usage.memory_share if usage else 0.0,
            processes=usage.processes if usage else 0,
            processes_limit=limits.processes if bounded else 0,
            open_files=usage.open_files if usage else 0,
            open_files_limit=limits.open_files if bounded else 0,
        )

    def _session_row(self, session: Session) -> ToolSessionRow:
        now = time.monotonic()
        held = [self._toolbox.sandboxes.of_connection(lease.held) for lease in session.leases.values()]
        return ToolSessionRow(
            id=session.id,
            toolbox=self._toolbox.name,
            servers=session.servers,
            sandboxes=tuple(each.id for each in held if each is not None),
            replays=session.replays,
            opened_at=time.time() - (now - session.opened_at),
            idle_s=round(session.idle_s(now), 1),
            calls=len(session.begun),
            failed=session.failed,
            last_failure=session.last_failure,
            running=tuple(sorted(call.id for call in session.running)),
        )

    # ---- inside ----

    def _users(self) -> dict[str, list[Session]]:
        """The sessions of each sandbox, by its id."""
        found: dict[str, list[Session]] = {}
        by_connection = {id(each.connection): each.id for each in self._toolbox.sandboxes.living()}
        for session in self._toolbox.sessions.values():
            for lease in session.leases.values():
                if (sandbox := by_connection.get(id(lease.held))) is not None:
                    found.setdefault(sandbox, []).append(session)
        return found

    def _statistics(self) -> dict[str, ToolStatistics]:
        return {tool.id: tool for tool in self._toolbox.statistics.all()}

    def _check(self, server: str) -> None:
        if server:
            self._toolbox.server(server)


def _state(sandbox: LiveSandbox, sessions: int) -> str:
    connection = sandbox.connection
    if not connection.opened_at:
        return "starting"
    if connection.gone.is_set():
        return "ending"
    if sandbox.config.session != "process":
        return "shared"
    return "session" if sessions or connection.purpose else "idle"
