"""An engine whose weights are in a server of another project: started with the first verified weights, updated with
each publication, and ended.

A kind of server declares how it is started, how its calls end before an update, how it loads weights and scores
sequences, and how it takes calls again. When a version is verified, compared, served, and given up is decided here.

Invariants:
- the server starts with the first weights and holds one version at a time;
- calls are accepted only while its weights agree with their manifest and canary;
- after a refusal the server holds the previous version again, or is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from agentrl.config.engines import Engines
from agentrl.config.server_arguments import value_of
from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Agreement, compare, limit_of
from agentrl.engines.interface import (
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    PauseMode,
    WeightsRefusedError,
)
from agentrl.engines.manifest import CONFIG_FILE, Manifest
from agentrl.engines.server_process import ServerProcess

SCORE_WITHIN_S = 120.0
S = TypeVar("S", bound=ServerProcess)


class Held(NamedTuple):
    """A version that the server serves, or shall serve."""

    path: Path
    version: int
    manifest: Manifest


class ServerEngine(ABC, Generic[S]):
    """Implements the part of `UnitEngine` that is about weights."""

    def __init__(self, engines: Engines, *, context: int, environment: Mapping[str, str] | None = None) -> None:
        self._engines = engines
        self._context = context
        self._environment = dict(os.environ if environment is None else environment)
        self._server: S | None = None
        self._held: Held | None = None
        self._config = b""
        """The model's configuration, which all versions share."""
        self._parked = False
        self._updating = asyncio.Lock()
        self.steps = 0
        """How often the server has reported; a watchdog detects a hang by it."""
        self.agreement: Agreement | None = None
        """The canary result of the weights that serve."""

    def check(self) -> None:
        """Raises EngineGoneError if the server ended."""
        if self._server is not None:
            self._server.check()

    async def pause(self, mode: PauseMode) -> None:
        self._parked = True
        if self._server is not None:
            await self._pause(self._server, mode)

    async def resume(self) -> None:
        self._parked = False
        if self._server is not None:
            await self._server.client.resume()

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Verifies, loads, compares and serves a version. Raises WeightsRefusedError, or EngineGoneError if no version
        can be served any more."""
        async with self._updating:
            announced = manifest if manifest is not None else await asyncio.to_thread(manifests.read, Path(path))
            wanted = Held(Path(path), version, announced)
            await self._verify(wanted)
            if self._server is None:
                server = await self._begin_with(wanted)
            else:
                server = self._server
                await self._change_to(server, wanted)
            self._held = wanted
            await self._open(server)

    async def close(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    # ---- what a kind of server declares ----

    @abstractmethod
    async def _start(self, python: str, wanted: Held) -> S:
        """Starts the server with these weights, without waiting."""

    async def _complete(self, server: S, wanted: Held) -> None:
        """Gives a server that is up the part of the version that its start did not."""

    @abstractmethod
    async def _pause(self, server: S, mode: PauseMode) -> None: ...

    @abstractmethod
    async def _shut(self, server: S, wanted: Held) -> None:
        """Accepts no calls any more, because this version will be loaded."""

    @abstractmethod
    async def _load_weights(self, server: S, wanted: Held, *, returning: bool) -> None:
        """Loads the version. `returning`: the server has weights that were refused. Raises WeightsRefusedError."""

    @abstractmethod
    async def _score(self, server: S, wanted: Held, ids: Sequence[int], start: int) -> list[float]:
        """The log-probs of the ids after the place `start`."""

    async def _spoil(self, server: S) -> None:
        """Makes calls under way fail, because they may have used weights that do not serve."""

    @abstractmethod
    async def _open(self, server: S) -> None:
        """Accepts calls. A parked server does not compute them yet."""

    def _weights_checked_elsewhere(self, wanted: Held) -> bool:
        """Whether the server's process checks the weights while it reads them."""
        return False

    # ---- steps of an update ----

    async def _verify(self, wanted: Held) -> None:
        """Verifies the files of a version. Calls are not paused yet."""
        elsewhere = self._server is not None and self._weights_checked_elsewhere(wanted)
        weights = set(wanted.manifest.weights) if elsewhere else set()
        files = {name: content for name, content in wanted.manifest.files.items() if name not in weights}
        await asyncio.to_thread(manifests.verify, wanted.path, Manifest(files))
        config = await asyncio.to_thread((wanted.path / CONFIG_FILE).read_bytes)
        if self._held is not None and config != self._config:
            raise WeightsRefusedError(f"Version {wanted.version} is of another architecture than this engine's.")
        base = wanted.manifest.base
        if self._held is not None and base != self._held.manifest.base:
            raise WeightsRefusedError(f"Version {wanted.version} is of another base than this engine's.")
        if base is not None and self._server is None:
            await asyncio.to_thread(manifests.verify, base.beside(wanted.path), Manifest(base.files))
        self._config = config

    async def _begin_with(self, wanted: Held) -> S:
        server = self._server = await self._start(self._engines.python.replace("{python}", sys.executable), wanted)
        try:
            await server.until_up(self._engines.load_s)
            await self._complete(server, wanted)
            await self._compare(server, wanted)
        except BaseException:
            # There is no version to return to: the next attempt starts a new server.
            await self.close()
            raise
        return server

    async def _change_to(self, server: S, wanted: Held) -> None:
        await self._shut(server, wanted)
        try:
            await self._load_weights(server, wanted, returning=False)
            await self._compare(server, wanted)
        except WeightsRefusedError as refused:
            await self._spoil(server)
            await self._return_to_held(server, refused)
            raise
        except EngineError:
            with contextlib.suppress(EngineError):
                await self._spoil(server)
            raise

    async def _return_to_held(self, server: S, refused: WeightsRefusedError) -> None:
        assert self._held is not None, "an open server holds a version"
        try:
            await self._load_weights(server, self._held, returning=True)
            await self._compare(server, self._held)
        except EngineError as failed:
            raise EngineGoneError(
                f"{refused.message} The server cannot return to version {self._held.version}: {failed.message}"
            ) from failed
        await self._open(server)

    async def _compare(self, server: S, wanted: Held) -> None:
        canary, limit = wanted.manifest.canary, canary_limit(self._engines, self._config)
        agreement = compare(canary, await self._scores(server, wanted, canary.ids), limit)
        if problem := agreement.problem() or await self._other_problem(server, wanted, limit):
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {problem}.")
        self.agreement = agreement

    async def _other_problem(self, server: S, wanted: Held, limit: float) -> str:
        """A problem that the whole canary does not reveal; empty if there is none."""
        return ""

    async def _scores(
        self, server: S, wanted: Held, sequences: Sequence[Sequence[int]], start: int = 0
    ) -> list[list[float]]:
        try:
            # They are sent together, so that the server computes them in few passes.
            return await asyncio.gather(*(self._score(server, wanted, ids, start) for ids in sequences))
        except EngineRubbishError as rubbish:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {rubbish.message}") from rubbish


class _Numbers(msgspec.Struct):
    """The numeric type and the vocabulary in `config.json`."""

    dtype: str = ""
    torch_dtype: str = ""
    vocab_size: int | None = None
    text_config: _Numbers | None = None
    """The text part of a model that also reads images or audio."""


def vocabulary(config: bytes) -> int | None:
    """The number of ids of a model; None if its configuration does not have it."""
    stored = msgspec.json.decode(config, type=_Numbers)
    return (stored.text_config or stored).vocab_size


def canary_limit(engines: Engines, config: bytes) -> float:
    """The limit of the canary for the precision that the server computes in."""
    stored = msgspec.json.decode(config, type=_Numbers)
    wanted = value_of(engines.args, "--dtype") or "auto"
    dtype = (stored.dtype or stored.torch_dtype) if wanted == "auto" else wanted
    return limit_of(dtype or "")
