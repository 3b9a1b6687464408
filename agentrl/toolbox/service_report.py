"""What a toolbox tells of itself: its Service document.

Invariants: it is written every two seconds with the database's own time, so that silence shows; a database that is
away is no reason to end: calls go on, and the document is written again when it is back. It serves once all its
servers have come up or failed to, so that nobody takes half of its tools for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

import msgspec

from agentrl.formatting.amounts import counted
from agentrl.store import service_registry
from agentrl.store.database import Database
from agentrl.store.documents import Service
from agentrl.toolbox.api_messages import ServerInfo
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
REPORT_EVERY_S = 2.0
WRITE_WITHIN_S = 10.0
MOST_WAIT_S = 10.0
State = Literal["starting", "serving", "draining", "gone"]


class Reporter:
    """Writes the document of one toolbox until it is cancelled."""

    def __init__(self, toolbox: Toolbox, database: Database, me: Service) -> None:
        """`me` says who and where it is; the rest is kept here."""
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
            except Exception:  # the boundary: the database is away, or refuses
                log.exception("%s cannot report", self._me.id)
                wait_s = min(MOST_WAIT_S, 2 * wait_s)
            await asyncio.sleep(wait_s)

    async def report(self) -> None:
        servers = self._toolbox.servers()
        unavailable = [server for server in servers if not server.usable]
        if self.state == "starting" and self._toolbox.settled:
            self.state = "serving"
        async with asyncio.timeout(WRITE_WITHIN_S):
            told = msgspec.structs.replace(
                self._me,
                kind="toolbox",
                state=self.state,
                names=[server.id for server in servers],
                unavailable=[server.id for server in unavailable],
                troubles=[_trouble(server) for server in unavailable],
                running=self._toolbox.open_sessions,
            )
            await service_registry.report(self._database, told)

    async def leave(self, state: Literal["draining", "gone"]) -> None:
        """Say at once that no sessions should come any more; if the store is away, silence will say it."""
        self.state = state
        try:
            await self.report()
        except Exception:  # the boundary, as above
            log.exception("%s cannot say that it is %s", self._me.id, state)


def status_of(toolbox: Toolbox) -> str:
    """What a person should read about it."""
    servers = toolbox.servers()
    troubles = [_trouble(each) for each in servers if not each.usable]
    serving = f"{len(servers) - len(troubles)} of {counted(len(servers), 'servers')}"
    good = f"{serving} {'serves' if len(servers) == 1 else 'serve'} {counted(toolbox.open_sessions, 'sessions')}"
    return "; ".join([good, *troubles])


def _trouble(server: ServerInfo) -> str:
    if not server.why:
        return f"{server.id} has its breaker {server.breaker}"
    # What went wrong with a server begins with its name already.
    return server.why if server.why.startswith(f"{server.id} ") else f"{server.id}: {server.why}"
