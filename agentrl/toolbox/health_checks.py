"""Checks that tool servers work by calling a tool, because a process may run and its port answer while every call
hangs.

Invariants:
- A check has a deadline, and changes no session: a pooled server with a declared tool gets a process of its own for it.
- A server that is busy with calls is unhealthy only after two failed checks in a row.
- A hung process that serves no call is replaced; one with calls is only reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agentrl.errors import AgentrlError
from agentrl.toolbox.mcp_connection import Connection
from agentrl.toolbox.sessions import Server

EVERY_S = 4.0
WITHIN_S = 4.0
BUSY_FAILURES = 2
PURPOSE = "health check"


class HealthChecks:
    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._servers = servers
        self.unhealthy: dict[str, str] = {}
        """By server: what the last check found."""

    async def run(self) -> None:
        """Check until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers.values():
                tasks.create_task(self._follow(server), name=f"check {server.name}")

    async def _follow(self, server: Server) -> None:
        own: Connection | None = None
        failures = 0
        try:
            while True:
                await asyncio.sleep(0.0 if 0 < failures < BUSY_FAILURES else EVERY_S)
                if not server.keeper.serving:
                    failures = self._healthy(server)
                    continue
                if server.config.health.tool and server.config.session == "process":
                    own = await self._opened(server, own)
                connection = own or _one_to_check(server)
                if connection is None:
                    continue
                health = server.config.health
                wrong = await connection.check(health.tool, health.arguments, within_s=WITHIN_S)
                failures = failures + 1 if wrong else self._healthy(server)
                if wrong and (failures >= BUSY_FAILURES or not connection.is_calling):
                    self.unhealthy[server.name] = wrong
                if wrong and not connection.is_calling and own is None:
                    connection.doubt()
        finally:
            if own is not None:
                await own.close()

    def _healthy(self, server: Server) -> int:
        self.unhealthy.pop(server.name, None)
        return 0

    async def _opened(self, server: Server, own: Connection | None) -> Connection | None:
        """The process for checks, started again if it has ended."""
        if own is not None and not own.gone.is_set():
            return own
        if own is not None:
            await own.close()
        connection = server.connect()
        connection.purpose = PURPOSE
        try:
            await connection.open(float(server.config.start_s))
        except AgentrlError as failed:
            self.unhealthy[server.name] = failed.message
            return None
        return connection


def _one_to_check(server: Server) -> Connection | None:
    """A connection that the next session would get."""
    pooled = server.config.session == "process"
    living = [
        connection
        for connection in server.keeper.connections()
        if not connection.gone.is_set() and not (pooled and connection.calls)
    ]
    return living[0] if living else None
