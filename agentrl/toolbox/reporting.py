"""What a toolbox tells of itself: its Service document.

Invariants: it is written every two seconds with the database's own time, so that silence shows; a database that is
away is no reason to end: calls go on, and the document is written again when it is back. It serves once all its
servers have come up or failed to, so that nobody takes half of its tools for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from agentrl.toolbox.answers import ServerInfo
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
REPORT_EVERY_S = 2.0
WRITE_WITHIN_S = 10.0
MOST_WAIT_S = 10.0
State = Literal["starting", "serving", "draining", "gone"]


class ToolboxService(msgspec.Struct, frozen=True, kw_only=True):
    """The Service document of a toolbox; the store adds the time."""

    id: str
    """The incarnation."""
    unit: str
    kind: str = "toolbox"
    url: str
    state: State = "starting"
    names: tuple[str, ...] = ()
    """Its servers."""
    unavailable: tuple[str, ...] = ()
    """Those that cannot be used now: admission of tasks that need them waits."""
    troubles: tuple[str, ...] = ()
    """Why not, one sentence for each."""
    slots: int = 0
    running: int = 0
    """Sessions that are open."""


class Services(Protocol):
    """The store's side. What it raises is logged, and it is asked again."""

    async def report(self, service: ToolboxService) -> None: ...


class Documents(Protocol):
    """The one operation on MongoDB that is needed here."""

    async def update_one(
        self, collection: str, filter: Mapping[str, Any], update: Sequence[Mapping[str, Any]], *, upsert: bool = False
    ) -> bool: ...


class StoredServices:
    """`Services` in MongoDB."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def report(self, service: ToolboxService) -> None:
        fields: Mapping[str, Any] = msgspec.to_builtins(service)
        written = {name: {"$literal": value} for name, value in fields.items() if name != "id"}
        update = [{"$set": {**written, "seen_at": "$$NOW"}}]
        await self._documents.update_one("Service", {"_id": service.id}, update, upsert=True)


class Reporter:
    """Writes the document of one toolbox until it is cancelled."""

    def __init__(self, toolbox: Toolbox, services: Services, me: ToolboxService) -> None:
        """`me` says who and where it is; the rest is kept here."""
        self._toolbox = toolbox
        self._services = services
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
            await self._services.report(
                msgspec.structs.replace(
                    self._me,
                    state=self.state,
                    names=tuple(server.id for server in servers),
                    unavailable=tuple(server.id for server in unavailable),
                    troubles=tuple(map(_trouble, unavailable)),
                    running=self._toolbox.open_sessions,
                )
            )

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
    good = f"{len(servers) - len(troubles)} of {len(servers)} servers serve {toolbox.open_sessions} sessions"
    return "; ".join([good, *troubles])


def _trouble(server: ServerInfo) -> str:
    return f"{server.id} {server.why or f'has its breaker {server.breaker}'}"
