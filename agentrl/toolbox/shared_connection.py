"""One connection of a tool server for all sessions, for servers whose session mode is `shared` or `keyed`.

Invariants:
- A connection that an operator replaces serves until its successor does, and ends when no session uses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from agentrl.toolbox.connection_starts import ConnectionStarter, StarterState, does_not_serve
from agentrl.toolbox.mcp_connection import Connection

RETIRED_EVERY_S = 0.1
"""How often a replaced connection is checked for sessions and calls."""


class SharedConnection(StarterState):
    """One connection for all sessions of a `shared` or `keyed` server."""

    def __init__(self, starter: ConnectionStarter) -> None:
        super().__init__(starter)
        self._connection: Connection | None = None
        self._changed = asyncio.Condition()
        self._retired = asyncio.Event()
        self._users: Counter[Connection] = Counter()
        self._leaving: dict[Connection, asyncio.Task[None]] = {}
        """Replaced connections that sessions still use."""
        self.starts = 0

    @property
    def serving(self) -> bool:
        return self._connection is not None and not self._connection.gone.is_set()

    async def run(self) -> None:
        try:
            while True:
                connection = await self._starter.start()
                if connection is None:
                    continue
                self.starts += 1
                before = self._connection
                async with self._changed:
                    self._connection = connection
                    self._changed.notify_all()
                if before is not None:
                    self._leave(before)
                await self._until_gone_or_retired(connection)
                if not connection.gone.is_set():
                    continue  # it serves until its successor does
                self._connection = None
                if not connection.retired:
                    self._starter.ended(connection)
                await connection.close()
                if not connection.retired:
                    await self._starter.wait()
        finally:
            rest = [*self._leaving, *([] if self._connection is None else [self._connection])]
            await asyncio.gather(*(connection.close("the toolbox ends") for connection in rest))

    async def _until_gone_or_retired(self, connection: Connection) -> None:
        gone = asyncio.create_task(connection.gone.wait(), name=f"end of {connection.name}")
        retired = asyncio.create_task(self._retired.wait(), name=f"restart of {connection.name}")
        try:
            await asyncio.wait([gone, retired], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (gone, retired):
                each.cancel()
        self._retired.clear()

    def _leave(self, connection: Connection) -> None:
        """End a replaced connection when no session uses it and no call runs on it."""
        task = asyncio.create_task(self._end(connection), name=f"end the replaced {connection.name}")
        self._leaving[connection] = task

    async def _end(self, connection: Connection) -> None:
        while (self._users[connection] > 0 or connection.is_calling) and not connection.gone.is_set():
            await asyncio.sleep(RETIRED_EVERY_S)
        await connection.close("it was replaced")
        self._users.pop(connection, None)
        del self._leaving[connection]

    def connections(self) -> list[Connection]:
        return [] if self._connection is None else [self._connection]

    def replace_retired(self) -> None:
        if self._connection is not None and self._connection.retired:
            self._retired.set()

    async def take(self, wait_s: float) -> Connection:
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.serving)
        except TimeoutError:
            pass
        if self._connection is None or self._connection.gone.is_set():
            raise does_not_serve(self.why)
        self._users[self._connection] += 1
        return self._connection

    def give_back(self, connection: Connection) -> None:
        if self._users[connection] > 0:
            self._users[connection] -= 1
