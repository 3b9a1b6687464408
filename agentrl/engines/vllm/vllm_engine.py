"""One vLLM server as an engine: its calls, and what its updates need besides those of other servers.

Invariant: before new weights are loaded, calls under way end with the tokens that they have, so each answer has one
version, and refused weights never generate a token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from agentrl.config.engines import Engines
from agentrl.engines.forwarding_engine import ForwardingEngine, Piece
from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    EngineError,
    EngineGoneError,
    Load,
    PauseMode,
    VersionNotServedError,
    WeightsRefusedError,
)
from agentrl.engines.server_engine import SCORE_WITHIN_S, Held, ServerEngine, vocabulary
from agentrl.engines.vllm.server_process import VllmServer

SLEEPS = "--enable-sleep-mode"


class VllmEngine(ServerEngine[VllmServer], ForwardingEngine):
    """Implements `UnitEngine` and `ServableEngine`."""

    def __init__(self, engines: Engines, *, context: int, environment: Mapping[str, str] | None = None) -> None:
        ServerEngine.__init__(self, engines, context=context, environment=environment)
        ForwardingEngine.__init__(self, engines, context=context)
        self._sleeps = False

    # ---- calls ----

    def _answer(self, call: EngineCall) -> tuple[int, AsyncIterator[Piece]]:
        server, held = self._serving(call.version)
        self._check_ids(call.ids)
        return held.version, server.client.generate(call.rid, call.ids, call.sampling)

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
    ) -> list[float]:
        server, _ = self._serving(version)
        self._check_ids(ids)
        return await server.client.score(ids, deadline_s) if len(ids) > 1 else []

    @property
    def _version(self) -> int | None:
        return None if self._server is None or self._held is None else self._held.version

    def _serving(self, version: int | None) -> tuple[VllmServer, Held]:
        if self._server is None or self._held is None or not self._accepts:
            raise EngineBusyError("The engine has no weights yet, or loads some.")
        if version not in (None, self._held.version):
            raise VersionNotServedError(f"Version {version} is not held here; held is {self._held.version}.")
        return self._server, self._held

    def _check_ids(self, ids: Sequence[int]) -> None:
        size, most = vocabulary(self._config) or 0, self._context - 1
        if not ids or len(ids) > most or not all(0 <= token < size for token in ids):
            raise CallRefusedError(f"A sequence must be ids from 0 to {size - 1}, 1 to {most} of them.")

    # ---- orders ----

    async def release_memory(self) -> None:
        if SLEEPS not in self._engines.args:
            raise CallRefusedError(f"This server cannot release memory: it was started without {SLEEPS}.")
        if self.busy:
            raise EngineBusyError("Calls are under way; their cache cannot be released.")
        if self._server is not None and not self._sleeps:
            self._accepts = False
            await self._server.client.sleep()
            self._sleeps = True

    async def restore_memory(self) -> None:
        if self._server is not None and self._sleeps:
            await self._server.client.wake_up()
            self._sleeps, self._accepts = False, True

    async def health(self) -> bool:
        return self._server is not None and await self._server.client.healthy()

    async def load(self) -> Load:
        if self._server is not None and self._held is not None:
            self.check()
            if await self._server.client.healthy():
                self.steps += 1
        return await super().load()

    async def close(self) -> None:
        self._accepts = False
        await super().close()

    # ---- what differs from other servers ----

    async def _start(self, python: str, wanted: Held) -> VllmServer:
        return await VllmServer.start(
            python, self._engines, context=self._context, path=str(wanted.path), environment=self._environment
        )

    async def _pause(self, server: VllmServer, mode: PauseMode) -> None:
        if mode == "abort":
            await self.abort("")
        await server.client.pause()

    async def _shut(self, server: VllmServer, wanted: Held) -> None:
        self._accepts = False
        await self.abort("")
        await self.restore_memory()
        self._accepts = False
        # A paused server does not score.
        await server.client.resume()

    async def _load_weights(self, server: VllmServer, wanted: Held, *, returning: bool) -> None:
        try:
            await server.client.reload(str(wanted.path))
        except EngineGoneError:
            raise
        except EngineError as failed:
            raise WeightsRefusedError(f"Version {wanted.version} is refused: {failed.message}") from failed

    async def _score(self, server: VllmServer, wanted: Held, ids: Sequence[int], start: int) -> list[float]:
        return await server.client.score(ids, SCORE_WITHIN_S)

    async def _open(self, server: VllmServer) -> None:
        if self._parked:
            await server.client.pause()
        self._accepts = True
