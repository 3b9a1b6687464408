"""Writes the Service document of a toolbox, which the steward and samplers read.

Invariants:
- It is written every two seconds with the time of the database, so that silence is visible.
- While the database is away, calls go on and the document is written later.
- A server that is still starting is among the unavailable ones, so tasks that need it wait and others do not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from agentrl.formatting.amounts import counted
from agentrl.protocol.messages import UnitPart, Wait
from agentrl.store import service_registry
from agentrl.store.database import Database
from agentrl.store.documents import Service
from agentrl.toolbox.api_messages import ServerInfo
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
REPORT_EVERY_S = 2.0
WRITE_WITHIN_S = 10.0
MOST_WAIT_S = 10.0
SHORT_AT_MOST_S = 60.0
"""If sessions wait longer than this for a process, the pool is too small."""
State = Literal["starting", "serving", "draining", "gone"]


class ServiceReporter:
    """Writes the document of one toolbox until it is cancelled."""

    def __init__(self, toolbox: Toolbox, database: Database, me: Service) -> None:
        """`me` has the name and the address of the toolbox."""
        self._toolbox = toolbox
        self._database = database
        self._me = me
        self.state: State = "starting"

    async def follow(self) -> None:
        wait_s = REPORT_EVERY_S
        while True:
            try:
                await self.report()
                wait_s = REPORT_EVERY_S
            except Exception:  # the boundary: the database may be away
                log.exception("%s cannot report", self._me.id)
                wait_s = min(MOST_WAIT_S, 2 * wait_s)
            await asyncio.sleep(wait_s)

    async def report(self) -> None:
        servers = self._toolbox.servers()
        unavailable = [server for server in servers if not server.usable]
        if self.state == "starting":
            self.state = "serving"
        async with asyncio.timeout(WRITE_WITHIN_S):
            document = msgspec.structs.replace(
                self._me,
                kind="toolbox",
                state=self.state,
                names=[server.id for server in servers],
                unavailable=[server.id for server in unavailable],
                troubles=[_trouble(server) for server in unavailable],
                running=self._toolbox.open_sessions,
                effects=[(tool.server, tool.name, tool.effect) for tool in self._toolbox.tools() if tool.effect],
            )
            await service_registry.report(self._database, document)

    async def leave(self, state: Literal["draining", "gone"]) -> None:
        """Write at once that no new session should be opened; without the store, the silence of the toolbox shows it
        later."""
        self.state = state
        try:
            await self.report()
        except Exception:  # the boundary, as above
            log.exception("%s cannot report that it is %s", self._me.id, state)


def status_of(servers: Sequence[ServerInfo], sessions: int) -> str:
    """The status sentence of the unit."""
    troubles = [_trouble(server) for server in servers if not server.usable]
    serving = f"{len(servers) - len(troubles)} of {counted(len(servers), 'servers')}"
    good = f"{serving} {'serves' if len(servers) == 1 else 'serve'} {counted(sessions, 'sessions')}"
    weaker = [f"{server.id} runs {server.sandbox}" for server in servers if server.sandbox_is_weaker]
    return "; ".join([good, *troubles, *weaker])


def problems_of(servers: Iterable[ServerInfo]) -> dict[str, str]:
    """For every server, why a person should look at it; empty if there is no reason."""
    return {f"tool server {server.id}": server.problem for server in servers}


def starting(servers: Iterable[ServerInfo]) -> str:
    """The servers that have never served and may soon; empty if there are none."""
    names = [server.id for server in servers if server.starts == 0 and not (server.state == "down" and server.problem)]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} being started" if names else ""


def waits_of(unit: str, servers: Iterable[ServerInfo]) -> list[Wait]:
    """The waits for pools with fewer processes than sessions, for `agentrl why`, because samplers only know that the
    toolbox is busy."""
    return [
        Wait(
            f"tool server {server.id}",
            f"has fewer processes than sessions: {server.waiting_sessions} wait while at most {server.pool} are in use "
            f"(tools.{server.id}.pool)",
            server.short_s,
            SHORT_AT_MOST_S,
            unit,
        )
        for server in servers
        if server.short_s > 0
    ]


def parts_of(servers: Iterable[ServerInfo]) -> list[UnitPart]:
    """The tool servers, for the report of the unit."""
    return [_part(server) for server in servers]


def _part(server: ServerInfo) -> UnitPart:
    use = f"{counted(server.sessions, 'sessions')}, {counted(server.running, 'calls')} under way"
    if server.pool:
        processes = f"{server.ready} ready, {server.coming} starting"
        use += f"; processes: {processes}, {counted(server.waited, 'sessions')} had to wait"
    good = f"{use}; {server.sandbox}" if server.sandbox else use
    if server.refused:
        good += f"; the network refused {counted(server.refused, 'connections')}, last: {server.last_refusal}"
    status = good if server.usable else _trouble(server)
    if server.unhealthy and server.usable:
        status = f"{server.unhealthy}; {status}"
    return UnitPart(
        server.id,
        server.state,
        status,
        died=server.died,
        last_death=server.last_death,
        died_lately=server.died_lately,
        unhealthy=server.unhealthy,
        memory_share=server.memory_share if server.fullest else 0.0,
        fullest=server.fullest,
    )


def _trouble(server: ServerInfo) -> str:
    if not server.why:
        cause = f"; the last call that it made: {server.last_failure}" if server.last_failure else ""
        return f"{server.id} has its breaker {server.breaker}{cause}"
    # Most reasons begin with the name of the server.
    return server.why if server.why.startswith(f"{server.id} ") else f"{server.id}: {server.why}"
