"""One SGLang server that serves only weights which agree with their announcement.

Invariants:
- the server starts with the first weights and holds one version at a time;
- it accepts calls only while its weights agree with their manifest and canary;
- calls under way go on after an update, with a cache that is computed again or with the old one; their answers are
  withheld until the canary has agreed, so no token of refused weights leaves the server;
- after a refusal the server holds the previous version again, or is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from agentrl.config.engines import Engines
from agentrl.config.http_token import RunToken
from agentrl.config.server_arguments import ranks_of
from agentrl.engines import manifest as manifests
from agentrl.engines.adapters import ADAPTER_CONFIG, config_of
from agentrl.engines.canary import Agreement, compare, part_of
from agentrl.engines.interface import (
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    Load,
    PauseMode,
    WeightsRefusedError,
)
from agentrl.engines.manifest import CONFIG_FILE, Manifest
from agentrl.engines.sglang.launch_arguments import arguments, canary_limit, vocabulary, way_of
from agentrl.engines.sglang.server_process import SglangServer, url_of
from agentrl.tokens.image_ids import numbers_in

log = logging.getLogger("engine")
SCORE_WITHIN_S = 120.0
CACHED_PROBES = 2
"""How many sequences of the canary are also scored with a cache."""


class Held(msgspec.Struct, frozen=True):
    """A version that the server serves."""

    path: Path
    version: int
    manifest: Manifest


class SglangEngine:
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
        self._engines = engines
        self._context = context
        self._port = port
        self._token = token
        self._token_file = token_file
        self._environment = dict(os.environ if environment is None else environment)
        self._server: SglangServer | None = None
        self._held: Held | None = None
        self._config = b""
        self._parked = False
        self._way = way_of(engines)
        self.paused_s = 0.0
        """How long calls were paused by the last update."""
        self._load = Load(version=None)
        self.url = url_of(port)
        self.steps = 0
        """How often the server has reported its load; a watchdog detects a hang by it."""
        self.agreement: Agreement | None = None
        """The canary result of the weights that serve."""

    @property
    def pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    @property
    def busy(self) -> bool:
        return self._load.running + self._load.waiting > 0

    def check(self) -> None:
        """Raises EngineGoneError if the server ended."""
        if self._server is not None:
            self._server.check()

    async def load(self) -> Load:
        if self._server is None or self._held is None:
            return Load(version=None)
        self.check()
        self._load = await self._server.client.load()
        self.steps += 1
        return self._load

    async def pause(self, mode: PauseMode) -> None:
        self._parked = True
        if self._server is not None:
            await self._server.client.pause(mode)

    async def release_memory(self) -> None:
        if self._server is not None:
            await self._server.client.release_memory()

    async def restore_memory(self) -> None:
        if self._server is not None:
            await self._server.client.restore_memory()

    async def resume(self) -> None:
        self._parked = False
        if self._server is not None:
            await self._server.client.resume()

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Verifies, loads, compares and serves a version. Raises WeightsRefusedError, or EngineGoneError if no version
        can be served any more."""
        announced = manifest if manifest is not None else await asyncio.to_thread(manifests.read, Path(path))
        wanted = Held(Path(path), version, announced)
        await self._verify(wanted)
        if self._server is None:
            await self._begin_with(wanted)
        else:
            await self._change_to(self._server, wanted)
        self._held = wanted

    async def close(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    # ---- steps of an update ----

    async def _verify(self, wanted: Held) -> None:
        """Verifies all files except weights that the server's process checks while it reads them. Calls are not paused
        yet."""
        sends = self._server is not None and self._sends(wanted)
        weights = set(wanted.manifest.weights) if sends else set()
        rest = {name: content for name, content in wanted.manifest.files.items() if name not in weights}
        await asyncio.to_thread(manifests.verify, wanted.path, Manifest(rest))
        config = (wanted.path / CONFIG_FILE).read_bytes()
        if self._held is not None and config != self._config:
            raise WeightsRefusedError(f"Version {wanted.version} is of another architecture than this engine's.")
        base = wanted.manifest.base
        if self._held is not None and base != self._held.manifest.base:
            raise WeightsRefusedError(f"Version {wanted.version} is of another base than this engine's.")
        if base is not None and self._server is None:
            await asyncio.to_thread(manifests.verify, base.beside(wanted.path), Manifest(base.files))
        self._config = config

    async def _begin_with(self, wanted: Held) -> None:
        python = self._engines.python.replace("{python}", sys.executable)
        path, adapters = wanted.path, None
        if (base := wanted.manifest.base) is not None:
            path = base.beside(wanted.path)
            adapters = config_of(manifests.read_file(wanted.path, wanted.manifest, ADAPTER_CONFIG), wanted.path)
        server = self._server = await SglangServer.start(
            python,
            arguments(self._engines, context=self._context, path=str(path), version=wanted.version, adapters=adapters),
            port=self._port,
            token=self._token,
            token_file=self._token_file,
            environment=self._environment,
        )
        try:
            await server.until_up(self._engines.load_s)
            if adapters is not None:
                await server.adopt(wanted.path, wanted.version)
            await self._compare(server, wanted)
        except EngineError:
            # There is no version to return to: the next attempt starts a new server.
            await self.close()
            raise
        await self._open(server)

    async def _change_to(self, server: SglangServer, wanted: Held) -> None:
        await self._prepare(server, wanted)
        await server.shut()
        try:
            # The canary needs the memory of the cache.
            await server.client.restore_memory()
            await self._load_and_compare(server, wanted, self._engines.at_update)
        except WeightsRefusedError as refused:
            await server.spoil()
            await self._return_to_held(server, refused)
            raise
        except EngineError:
            with contextlib.suppress(EngineError):
                await server.spoil()
            raise
        await self._open(server)

    def _sends(self, wanted: Held) -> bool:
        """Whether the server's process reads and sends the weights, instead of loading adapters from their file."""
        return self._way != "files" and wanted.manifest.base is None

    async def _prepare(self, server: SglangServer, wanted: Held) -> None:
        if self._sends(wanted):
            weights = {name: wanted.manifest.files[name] for name in wanted.manifest.weights}
            await server.prepare(wanted.path, weights)

    async def _load_and_compare(self, server: SglangServer, wanted: Held, calls: PauseMode) -> None:
        if wanted.manifest.base is not None:
            await self._adopt_and_compare(server, wanted)
            return
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
        await self._compare(server, wanted)

    async def _adopt_and_compare(self, server: SglangServer, wanted: Held) -> None:
        """A call uses one adapter, so calls under way end, and samplers continue them."""
        await server.client.resume()
        began = time.monotonic()
        await server.adopt(wanted.path, wanted.version)
        self.paused_s = time.monotonic() - began
        await self._compare(server, wanted)

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

    async def _return_to_held(self, server: SglangServer, refused: WeightsRefusedError) -> None:
        assert self._held is not None, "an open server holds a version"
        try:
            await self._prepare(server, self._held)
            await self._load_and_compare(server, self._held, "abort")
        except EngineError as failed:
            raise EngineGoneError(
                f"{refused.message} The server cannot return to version {self._held.version}: {failed.message}"
            ) from failed
        await self._open(server)

    async def _compare(self, server: SglangServer, wanted: Held) -> None:
        canary, limit = wanted.manifest.canary, canary_limit(self._engines, self._config)
        agreement = compare(canary, await self._scores(server, wanted, canary.ids), limit)
        problem = agreement.problem()
        if not problem and self._engines.at_update != "in_place":
            # To score a whole sequence the server computes all of it again, so that would not reveal a cache from other
            # weights. To score only the second half it takes the first half from the cache, where it has been since the
            # previous version.
            longest = sorted(range(len(canary.ids)), key=lambda place: -len(canary.ids[place]))[:CACHED_PROBES]
            start = min((len(canary.ids[place]) // 2 for place in longest), default=0)
            part = part_of(canary, longest, start)
            if problem := compare(part, await self._scores(server, wanted, part.ids, start), limit).problem():
                problem = f"{problem}, with a cache that was computed before"
        if problem:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {problem}.")
        self.agreement = agreement

    async def _scores(
        self, server: SglangServer, wanted: Held, sequences: Sequence[Sequence[int]], start: int = 0
    ) -> list[list[float]]:
        words = vocabulary(self._config)
        pngs = {one.number: one.png for one in wanted.manifest.canary.images}

        def shown_in(ids: Sequence[int]) -> dict[int, bytes]:
            return {number: pngs[number] for number in numbers_in(ids) if number in pngs}

        try:
            # They are sent together, so that the server computes them in few passes.
            return await asyncio.gather(
                *(
                    server.client.score(
                        ids, deadline_s=SCORE_WITHIN_S, images=shown_in(ids), vocabulary=words, start=start
                    )
                    for ids in sequences
                )
            )
        except EngineRubbishError as rubbish:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {rubbish.message}") from rubbish

    async def _open(self, server: SglangServer) -> None:
        await server.open()
        if self._parked:
            await server.client.pause("in_place")
