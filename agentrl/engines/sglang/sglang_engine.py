"""One SGLang server, kept at weights that agreed with their announcement.

Invariants: the server is started with the first weights and holds one version at a time; calls are let in only while
what it holds agreed with its manifest and canary. For new weights the door is shut and what is under way is ended with
what it has (samplers continue it), so that no token is made by weights that are refused later. After a refusal it holds
the version before again, or is given up.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentrl.config.data_plane import Engines
from agentrl.engines import manifest as manifests
from agentrl.engines.interface import (
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    Load,
    PauseMode,
    WeightsRefusedError,
)
from agentrl.engines.manifest import CONFIG_FILE, Agreement, Manifest
from agentrl.engines.sglang.launch_arguments import arguments, canary_limit, vocabulary
from agentrl.engines.sglang.server_process import SglangServer, url_of

SCORE_WITHIN_S = 120.0


class Held(msgspec.Struct, frozen=True):
    """A version that the server serves."""

    path: Path
    version: int
    manifest: Manifest


class SglangEngine:
    """Implements `Target`. The server's address is known before the server is there."""

    def __init__(
        self,
        engines: Engines,
        *,
        context: int,
        port: int,
        token: str,
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
        self._load = Load(version=None)
        self.url = url_of(port)
        self.steps = 0
        """How often the server told how it does: whoever watches for a hang looks here."""
        self.agreement: Agreement | None = None
        """How the canary of the weights that serve compared."""

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

    async def resume(self) -> None:
        self._parked = False
        if self._server is not None:
            await self._server.client.resume()

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Verify, load, compare, serve. Raises WeightsRefusedError, or EngineGoneError if nothing can be served."""
        announced = manifest if manifest is not None else await asyncio.to_thread(manifests.read, Path(path))
        wanted = Held(Path(path), version, announced)
        await asyncio.to_thread(self._verify, wanted)
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

    def _verify(self, wanted: Held) -> None:
        """The server reads the files itself, so they are only compared here."""
        manifests.verify(wanted.path, wanted.manifest)
        config = (wanted.path / CONFIG_FILE).read_bytes()
        if self._held is not None and config != self._config:
            raise WeightsRefusedError(f"Version {wanted.version} is of another architecture than this engine's.")
        self._config = config

    async def _begin_with(self, wanted: Held) -> None:
        python = self._engines.python.replace("{python}", sys.executable)
        server = self._server = await SglangServer.start(
            python,
            arguments(self._engines, context=self._context, path=str(wanted.path), version=wanted.version),
            port=self._port,
            token=self._token,
            token_file=self._token_file,
            environment=self._environment,
        )
        try:
            await server.until_up(self._engines.load_s)
            await self._compare(server, wanted)
        except EngineError:
            # There is nothing to go back to: the next attempt begins anew.
            await self.close()
            raise
        await self._let_in(server)

    async def _change_to(self, server: SglangServer, wanted: Held) -> None:
        await server.shut()
        # The canary needs a cache.
        await server.client.restore_memory()
        try:
            await self._put(server, wanted)
        except WeightsRefusedError as refused:
            await self._go_back(server, refused)
            raise
        await self._let_in(server)

    async def _put(self, server: SglangServer, wanted: Held) -> None:
        # What is paused in place never gets as far as ending.
        await server.client.resume()
        await server.client.pause("abort")
        # The calls that were ended just now may be in its cache a moment longer.
        await server.client.flush()
        await server.client.update(str(wanted.path), wanted.version)
        await server.client.resume()
        await self._compare(server, wanted)

    async def _go_back(self, server: SglangServer, refused: WeightsRefusedError) -> None:
        assert self._held is not None, "a server that was let in before holds a version"
        try:
            await self._put(server, self._held)
        except EngineError as failed:
            raise EngineGoneError(
                f"{refused.message} The server cannot go back to version {self._held.version}: {failed.message}"
            ) from failed
        await self._let_in(server)

    async def _compare(self, server: SglangServer, wanted: Held) -> None:
        canary = wanted.manifest.canary
        try:
            ours = [
                await server.client.score(ids, deadline_s=SCORE_WITHIN_S, vocabulary=vocabulary(self._config))
                for ids in canary.ids
            ]
        except EngineRubbishError as rubbish:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {rubbish.message}") from rubbish
        agreement = manifests.compare(canary, ours, canary_limit(self._engines, self._config))
        if problem := agreement.problem():
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {problem}.")
        self.agreement = agreement

    async def _let_in(self, server: SglangServer) -> None:
        await server.open()
        if self._parked:
            await server.client.pause("in_place")
