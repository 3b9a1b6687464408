"""The engines and toolboxes that are there now, as this process sees them.

Invariants: only services that recently reported in the store that they serve are called; an engine that does not answer
a call is not chosen again until a newer report of it appears; while the store does not answer, the last view is kept,
and dead engines are found by calling them. Connections are kept per address. Those of an engine are closed when it has
left and has no call under way; those of a toolbox are closed at the end, because sessions outlive its absence.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from agentrl.config.http_token import RunToken
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import Engine
from agentrl.engines.routing import Candidate, Router
from agentrl.store import lineages, service_registry
from agentrl.store.database import Database, StoreError
from agentrl.store.documents import Service
from agentrl.toolbox.api_messages import ToolInfo
from agentrl.toolbox.client import ToolboxClient

log = logging.getLogger("directory")
LOOK_EVERY_S = 1.0
LOOK_AGAIN_S = 0.1
"""How often to look while a call waits for a missing service."""
SAME_TOOLS_S = 1.0
SILENT_AFTER_S = 15.0
"""Longer than a restart of the store takes, so that its silence is not taken for silence of the engines."""


class SamplerToolbox(ToolboxClient):
    """The client of one toolbox. Episodes that begin together read its tools once."""

    def __init__(self, url: str, token: str | RunToken) -> None:
        super().__init__(url, token)
        self._known: tuple[ToolInfo, ...] = ()
        self._read_at = float("-inf")

    async def tools(self, server: str = "") -> tuple[ToolInfo, ...]:
        if server:
            return await super().tools(server)
        if time.monotonic() >= self._read_at + SAME_TOOLS_S:
            self._known = await super().tools()
            self._read_at = time.monotonic()
        return self._known


class ChosenToolbox(NamedTuple):
    unit: str
    client: ToolboxClient


class ServiceDirectory:
    """Keeps the view fresh while `watch` runs."""

    def __init__(
        self,
        database: Database,
        token: str | RunToken,
        toolbox: Callable[[str], ToolboxClient],
        *,
        max_lag: int = 2,
    ) -> None:
        """`toolbox` makes the client of an address; a chosen engine is at most `max_lag` versions behind the newest one
        of the open lineage."""
        self._database = database
        self._token = token
        self._make_toolbox = toolbox
        self._max_lag = max_lag
        self._router = Router(random.Random(), silent_after_s=SILENT_AFTER_S)
        self._candidates: list[Candidate] = []
        self._first_version = 0
        """The first version of the open lineage: by number alone, the last versions of an abandoned lineage would seem
        recent."""
        self._toolboxes: list[Service] = []
        self._signs: dict[str, tuple[datetime | None, float]] = {}
        """The last report of each service, and when this process first saw it."""
        self._engine_clients: dict[str, HttpEngine] = {}
        self._calls: Counter[str] = Counter()
        """Calls under way, by the engine's address."""
        self._toolbox_clients: dict[str, ToolboxClient] = {}
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")

    # ---- engines ----

    def engine(self, affinity: str, version: int | None = None, avoid: Collection[str] = ()) -> Candidate | None:
        """Returns the engine for a call of this conversation, or None if no engine can take it now."""
        newest = self.newest_version
        oldest = None if newest is None else max(newest - self._max_lag, self._first_version)
        return self._router.choose(
            self._candidates, affinity, time.monotonic(), version=version, oldest=oldest, avoid=avoid
        )

    @property
    def serves(self) -> bool:
        """Whether any engine takes calls."""
        return self.engine("") is not None

    @property
    def newest_version(self) -> int | None:
        return max((one.version for one in self._candidates if one.version is not None), default=None)

    def client(self, engine: Candidate) -> Engine:
        if engine.url not in self._engine_clients:
            self._engine_clients[engine.url] = HttpEngine(engine.url, self._token)
        return self._engine_clients[engine.url]

    def sent(self, engine: Candidate) -> None:
        self._router.sent(engine.name)
        self._calls[engine.url] += 1

    def answered(self, engine: Candidate) -> None:
        self._router.answered(engine.name)
        self._calls[engine.url] -= 1

    def found_dead(self, engine: Candidate) -> None:
        log.warning("%s at %s does not answer any more", engine.name, engine.url)
        self._router.found_dead(engine.name, time.monotonic())

    def forget(self, affinity: str) -> None:
        """Forget a conversation that is over."""
        self._router.forget(affinity)

    # ---- toolboxes ----

    def toolbox(self, servers: Sequence[str], conversation: str) -> ChosenToolbox | None:
        """A toolbox that has all these servers; the same one for the same conversation, as long as it is available."""
        able = [service for service in self._toolboxes if set(servers) <= set(service.names)]
        if not able:
            return None
        best = max(able, key=lambda service: _weight(service.unit, conversation))
        return ChosenToolbox(best.unit, self._toolbox_clients[best.url])

    # ---- keeping up ----

    async def watch(self) -> None:
        """Keep the view fresh until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as away:
                log.warning("the engines and toolboxes are not known: %s", away.message)
            await asyncio.sleep(LOOK_EVERY_S)

    async def look_soon(self) -> None:
        """Reads the services again, at most every LOOK_AGAIN_S for all callers together."""
        async with self._looking:
            wait_s = self._looked_at + LOOK_AGAIN_S - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                await self.look()

    async def look(self) -> None:
        engines = await service_registry.alive(self._database, "engine")
        toolboxes = await service_registry.alive(self._database, "toolbox")
        lineage = await lineages.current(self._database)
        self._looked_at = now = time.monotonic()
        self._candidates = [self._candidate(service, now) for service in engines]
        self._first_version = (lineage and lineage.first_version) or 0
        self._toolboxes = toolboxes
        for service in toolboxes:
            if service.url not in self._toolbox_clients:
                self._toolbox_clients[service.url] = self._make_toolbox(service.url)
        self._signs = {one.id: self._signs[one.id] for one in engines}
        self._calls = +self._calls
        for url in self._engine_clients.keys() - self._calls.keys() - {one.url for one in engines}:
            await self._engine_clients.pop(url).close()

    async def close(self) -> None:
        for engine in self._engine_clients.values():
            await engine.close()
        for toolbox in self._toolbox_clients.values():
            await toolbox.aclose()

    def _candidate(self, service: Service, now: float) -> Candidate:
        sign = self._signs.get(service.id)
        if sign is None or sign[0] != service.seen_at:
            sign = self._signs[service.id] = (service.seen_at, now)
        return Candidate(
            name=service.id,
            url=service.url,
            serving=True,
            version=service.version,
            versions_loaded=tuple(service.versions_loaded),
            slots=service.slots,
            running=service.running,
            seen_at=sign[1],
        )


def _weight(unit: str, conversation: str) -> bytes:
    """Highest-random-weight hashing: when a toolbox comes or goes, only its own conversations move."""
    return hashlib.blake2b(f"{unit}|{conversation}".encode(), digest_size=8).digest()
