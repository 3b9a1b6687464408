"""One vLLM server that serves only weights which agree with their announcement.

Invariants:
- the server starts with the first weights and holds one version at a time;
- calls are accepted only while its weights agree with their manifest and canary;
- before new weights are loaded, calls under way end with the tokens that they have, so refused weights never generate a
  token;
- after a refusal the server holds the previous version again, or is stopped.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agentrl.config.engines import Engines
from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Agreement, compare
from agentrl.engines.forwarded_calls import ForwardedCalls
from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    EngineBusyError,
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    Generated,
    Load,
    PauseMode,
    Sampling,
    VersionNotServedError,
    WeightsRefusedError,
)
from agentrl.engines.manifest import CONFIG_FILE, Manifest
from agentrl.engines.sglang.launch_arguments import canary_limit, vocabulary
from agentrl.engines.vllm.server_process import VllmServer

SCORE_WITHIN_S = 120.0
SLEEPS = "--enable-sleep-mode"


class _Held(NamedTuple):
    path: Path
    version: int
    manifest: Manifest


class VllmEngine:
    """Implements `UnitEngine`, and what the HTTP server of the unit needs."""

    def __init__(self, engines: Engines, *, context: int, environment: Mapping[str, str] | None = None) -> None:
        self._engines = engines
        self._context = context
        self._environment = dict(os.environ if environment is None else environment)
        self._server: VllmServer | None = None
        self._held: _Held | None = None
        self._config = b""
        self._calls = ForwardedCalls()
        self._parked = False
        self._sleeps = False
        self._updating = asyncio.Lock()
        self.steps = 0
        """How often the server was found healthy; a watchdog detects a hang by it."""
        self.generated_tokens = 0
        self.agreement: Agreement | None = None

    @property
    def busy(self) -> bool:
        return len(self._calls) > 0

    def check(self) -> None:
        if self._server is not None:
            self._server.check()

    # ---- calls ----

    async def generate(
        self,
        rid: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
        on_progress: Callable[[Generated], None] | None = None,
    ) -> Generated:
        if images:
            raise CallRefusedError("This engine gets no images.")
        server, held = self._serving(version)
        if problem := sampling.problem():
            raise CallRefusedError(f"{problem[0].upper()}{problem[1:]}.")
        self._check_ids(ids, self._context - 1)
        if sampling.max_new_tokens == 0:
            return Generated(ids=[], log_probs=[], versions=[], finish="length")
        pieces = server.client.generate(rid, ids, sampling)
        made = await self._calls.run(rid, pieces, held.version, deadline_s=deadline_s, on_progress=on_progress)
        self.generated_tokens += len(made.ids)
        return made

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> list[float]:
        server, _ = self._serving(version)
        self._check_ids(ids, self._context - 1)
        return await server.client.score(ids, deadline_s) if len(ids) > 1 else []

    async def abort(self, rid: str) -> None:
        await self._calls.abort(rid)

    def _serving(self, version: int | None) -> tuple[VllmServer, _Held]:
        if self._server is None or self._held is None or not self._calls.open:
            raise EngineBusyError("The engine has no weights yet, or loads some.")
        if version not in (None, self._held.version):
            raise VersionNotServedError(f"Version {version} is not held here; held is {self._held.version}.")
        return self._server, self._held

    def _check_ids(self, ids: Sequence[int], most: int) -> None:
        known = vocabulary(self._config) or 0
        if not ids or len(ids) > most or not all(0 <= token < known for token in ids):
            raise CallRefusedError(f"A sequence must be ids from 0 to {known - 1}, 1 to {most} of them.")

    # ---- orders ----

    async def pause(self, mode: PauseMode) -> None:
        self._parked = True
        if self._server is None:
            return
        if mode == "abort":
            await self._calls.abort("")
        await self._server.client.pause()

    async def resume(self) -> None:
        self._parked = False
        if self._server is not None:
            await self._server.client.resume()

    async def release_memory(self) -> None:
        if SLEEPS not in self._engines.args:
            raise CallRefusedError(f"This server cannot release memory: it was started without {SLEEPS}.")
        if self.busy:
            raise EngineBusyError("Calls are under way; their cache cannot be released.")
        if self._server is not None and not self._sleeps:
            self._calls.open = False
            await self._server.client.sleep()
            self._sleeps = True

    async def restore_memory(self) -> None:
        if self._server is not None and self._sleeps:
            await self._server.client.wake_up()
            self._sleeps, self._calls.open = False, True

    async def pin(self, version: int, path: str = "") -> None:
        raise CallRefusedError("A vLLM server holds one version.")

    async def unpin(self) -> None: ...

    async def health(self) -> bool:
        return self._server is not None and await self._server.client.healthy()

    async def load(self) -> Load:
        if self._server is None or self._held is None:
            return Load(version=None)
        self.check()
        if await self._server.client.healthy():
            self.steps += 1
        version = self._held.version
        return Load(
            version=version,
            versions_loaded=(version,),
            slots=self._engines.slots,
            running=len(self._calls),
            context=self._context,
            generated_tokens=self.generated_tokens,
        )

    # ---- weights ----

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """Verifies, loads, compares and serves a version. Raises WeightsRefusedError, or EngineGoneError if no version
        can be served any more."""
        async with self._updating:
            announced = manifest if manifest is not None else await asyncio.to_thread(manifests.read, Path(path))
            wanted = _Held(Path(path), version, announced)
            await asyncio.to_thread(self._verify, wanted)
            if self._server is None:
                await self._begin_with(wanted)
            else:
                await self._change_to(self._server, wanted)
            self._held = wanted
            await self._open()

    async def close(self) -> None:
        self._calls.open = False
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    def _verify(self, wanted: _Held) -> None:
        manifests.verify(wanted.path, wanted.manifest)
        config = (wanted.path / CONFIG_FILE).read_bytes()
        if self._held is not None and config != self._config:
            raise WeightsRefusedError(f"Version {wanted.version} is of another architecture than this engine's.")
        self._config = config

    async def _begin_with(self, wanted: _Held) -> None:
        python = self._engines.python.replace("{python}", sys.executable)
        server = self._server = await VllmServer.start(
            python, self._engines, context=self._context, path=str(wanted.path), environment=self._environment
        )
        try:
            await server.until_up(self._engines.load_s)
            await self._compare(server, wanted)
        except BaseException:
            # There is no version to return to: the next attempt starts a new server.
            await self.close()
            raise

    async def _change_to(self, server: VllmServer, wanted: _Held) -> None:
        self._calls.open = False
        await self._calls.abort("")
        await self.restore_memory()
        self._calls.open = False
        # A paused server does not score.
        await server.client.resume()
        try:
            await self._load_and_compare(server, wanted)
        except WeightsRefusedError as refused:
            await self._return_to_held(server, refused)
            await self._open()
            raise

    async def _open(self) -> None:
        if self._parked and self._server is not None:
            await self._server.client.pause()
        self._calls.open = True

    async def _load_and_compare(self, server: VllmServer, wanted: _Held) -> None:
        try:
            await server.client.reload(str(wanted.path))
        except EngineGoneError:
            raise
        except EngineError as failed:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {failed.message}") from failed
        await self._compare(server, wanted)

    async def _return_to_held(self, server: VllmServer, refused: WeightsRefusedError) -> None:
        assert self._held is not None, "a server that runs holds a version"
        try:
            await self._load_and_compare(server, self._held)
        except EngineError as failed:
            raise EngineGoneError(
                f"{refused.message} The server cannot return to version {self._held.version}: {failed.message}"
            ) from failed

    async def _compare(self, server: VllmServer, wanted: _Held) -> None:
        canary = wanted.manifest.canary
        try:
            ours = await asyncio.gather(*(server.client.score(ids, SCORE_WITHIN_S) for ids in canary.ids))
        except EngineRubbishError as rubbish:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {rubbish.message}") from rubbish
        agreement = compare(canary, ours, canary_limit(self._engines, self._config))
        if problem := agreement.problem():
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {problem}.")
        self.agreement = agreement
