"""One SGLang server as an engine: what its updates need besides those of other servers.

Invariants:
- calls under way go on after an update, with a cache that is computed again or with the old one; their answers are
  withheld until the canary has agreed, so no token of refused weights leaves the server;
- a cache that was computed with other weights is refused like the weights themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.config.engines import Engines
from agentrl.config.http_token import RunToken
from agentrl.config.server_arguments import ranks_of
from agentrl.engines import manifest as manifests
from agentrl.engines.adapters import ADAPTER_CONFIG, config_of
from agentrl.engines.canary import compare, part_of
from agentrl.engines.interface import EngineError, EngineGoneError, Load, PauseMode
from agentrl.engines.server_engine import SCORE_WITHIN_S, Held, ServerEngine, vocabulary
from agentrl.engines.sglang.launch_arguments import arguments, way_of
from agentrl.engines.sglang.server_process import SglangServer, url_of
from agentrl.tokens.image_ids import numbers_in

log = logging.getLogger("engine")
CACHED_PROBES = 2
"""How many sequences of the canary are also scored with a cache."""


class SglangEngine(ServerEngine[SglangServer]):
    """Implements `UnitEngine`. The address is known before the server runs."""

    def __init__(
        self,
        engines: Engines,
        *,
        context: int,
        port: int,
        token: str | RunToken,
        token_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(engines, context=context, environment=environment)
        self._port = port
        self._token = token
        self._token_file = token_file
        self._way = way_of(engines)
        self.paused_s = 0.0
        """How long calls were paused by the last update."""
        self._last_load = Load(version=None)
        self.url = url_of(port)

    @property
    def pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    @property
    def busy(self) -> bool:
        return self._last_load.running + self._last_load.waiting > 0

    async def load(self) -> Load:
        if self._server is None or self._held is None:
            return Load(version=None)
        self.check()
        self._last_load = await self._server.client.load()
        self.steps += 1
        return self._last_load

    async def release_memory(self) -> None:
        if self._server is not None:
            await self._server.client.release_memory()

    async def restore_memory(self) -> None:
        if self._server is not None:
            await self._server.client.restore_memory()

    # ---- what differs from other servers ----

    async def _start(self, python: str, wanted: Held) -> SglangServer:
        path, adapters = wanted.path, None
        if (base := wanted.manifest.base) is not None:
            path = base.beside(wanted.path)
            adapters = config_of(manifests.read_file(wanted.path, wanted.manifest, ADAPTER_CONFIG), wanted.path)
        return await SglangServer.start(
            python,
            arguments(self._engines, context=self._context, path=str(path), version=wanted.version, adapters=adapters),
            port=self._port,
            token=self._token,
            token_file=self._token_file,
            environment=self._environment,
        )

    async def _complete(self, server: SglangServer, wanted: Held) -> None:
        if wanted.manifest.base is not None:
            await server.adopt(wanted.path, wanted.version)

    async def _pause(self, server: SglangServer, mode: PauseMode) -> None:
        await server.client.pause(mode)

    async def _shut(self, server: SglangServer, wanted: Held) -> None:
        await self._prepare(server, wanted)
        await server.shut()

    async def _load_weights(self, server: SglangServer, wanted: Held, *, returning: bool) -> None:
        if returning:
            await self._prepare(server, wanted)
        else:
            # The canary needs the memory of the cache.
            await server.client.restore_memory()
        if wanted.manifest.base is not None:
            await self._adopt(server, wanted)
        else:
            await self._replace(server, wanted, "abort" if returning else self._engines.at_update)

    async def _score(self, server: SglangServer, wanted: Held, ids: Sequence[int], start: int) -> list[float]:
        pngs = {image.number: image.png for image in wanted.manifest.canary.images}
        shown = {number: pngs[number] for number in numbers_in(ids) if number in pngs}
        return await server.client.score(
            ids, deadline_s=SCORE_WITHIN_S, images=shown, vocabulary=vocabulary(self._config), start=start
        )

    async def _spoil(self, server: SglangServer) -> None:
        await server.spoil()

    async def _open(self, server: SglangServer) -> None:
        await server.open()
        if self._parked:
            await server.client.pause("in_place")

    def _weights_checked_elsewhere(self, wanted: Held) -> bool:
        """The server's process reads and sends weights, but adapters are loaded from their file."""
        return self._way != "files" and wanted.manifest.base is None

    async def _other_problem(self, server: SglangServer, wanted: Held, limit: float) -> str:
        if self._engines.at_update == "in_place":
            return ""
        # To score a whole sequence the server computes all of it again, so that would not reveal a cache from other
        # weights. To score only the second half it takes the first half from the cache, where it has been since the
        # previous version.
        canary = wanted.manifest.canary
        longest = sorted(range(len(canary.ids)), key=lambda place: -len(canary.ids[place]))[:CACHED_PROBES]
        start = min((len(canary.ids[place]) // 2 for place in longest), default=0)
        part = part_of(canary, longest, start)
        problem = compare(part, await self._scores(server, wanted, part.ids, start), limit).problem()
        return f"{problem}, with a cache that was computed before" if problem else ""

    # ---- loading ----

    async def _prepare(self, server: SglangServer, wanted: Held) -> None:
        if self._weights_checked_elsewhere(wanted):
            weights = {name: wanted.manifest.files[name] for name in wanted.manifest.weights}
            await server.prepare(wanted.path, weights)

    async def _replace(self, server: SglangServer, wanted: Held, calls: PauseMode) -> None:
        if calls == "abort":
            # A call that is paused in place would never end.
            await server.client.resume()
        await server.client.pause(calls)
        # From here on calls may get tokens of weights that will be refused.
        await server.hold()
        if calls != "in_place":
            # The calls that just ended may stay in the cache for a moment.
            await server.client.flush()
        began = time.monotonic()
        await self._load_into(server, wanted, flush=calls != "in_place")
        self.paused_s = time.monotonic() - began
        await server.client.resume()

    async def _adopt(self, server: SglangServer, wanted: Held) -> None:
        """A call uses one adapter, so calls under way end, and samplers continue them."""
        await server.client.resume()
        began = time.monotonic()
        await server.adopt(wanted.path, wanted.version)
        self.paused_s = time.monotonic() - began

    async def _load_into(self, server: SglangServer, wanted: Held, *, flush: bool) -> None:
        ranks = ranks_of(self._engines.args)
        if self._way != "files" and ranks is not None:
            try:
                await server.send(wanted.version, self._way, ranks=ranks, flush=flush)
                return
            except EngineGoneError:
                raise
            except EngineError as failed:
                log.warning("weights are read from files from now on: sending them failed: %s", failed.message)
                self._way = "files"
                await asyncio.to_thread(manifests.verify, wanted.path, wanted.manifest)
        await server.client.update(str(wanted.path), wanted.version, keep_cache=not flush)
