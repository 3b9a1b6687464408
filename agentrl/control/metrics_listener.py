"""Serves `/metrics` on loopback, if the configuration has `metrics.port`.

Invariants:
- A scrape reads the coordinator's state at that moment, and needs the token.
- A configuration whose port is taken, or whose token is missing, is refused before it is in force.
- If a restarted coordinator finds its port taken, it tries again every two seconds, and works without it meanwhile;
  the row of the run has the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agentrl.config.metrics import Metrics
from agentrl.config.run import RunConfig
from agentrl.config.secrets import bearer_token
from agentrl.errors import ConfigError
from agentrl.protocol.control_commands import StatusReport
from agentrl.transport.addresses import why_not_free

if TYPE_CHECKING:
    from starlette.types import ASGIApp

RETRY_S = 2.0
PATH = "/metrics"
log = logging.getLogger(__name__)
Snapshot = Callable[[], tuple[StatusReport, Mapping[str, Mapping[str, float]]]]
"""The rows of the run, and the newest metrics by unit."""


class MetricsListener:
    """`changed` is called when `trouble` changes."""

    def __init__(self, snapshot: Snapshot, changed: Callable[[], None] = lambda: None) -> None:
        self._snapshot = snapshot
        self._changed = changed
        self._wanted = Metrics()
        self._serving: asyncio.Task[None] | None = None
        self.url = ""
        """The URL for scrapes; empty if there is none."""
        self.trouble = ""
        """The reason why `/metrics` is not served although the configuration has a port; empty if it is served."""

    def check(self, config: RunConfig) -> None:
        """Refuse a configuration whose port is taken or whose token is missing. Changes nothing."""
        wanted = config.metrics
        if not wanted.port:
            return
        _token_of(wanted)
        address = f"tcp://127.0.0.1:{wanted.port}"
        if wanted.port != self._wanted.port and (why := why_not_free(address)):
            raise ConfigError(
                f"Nothing can listen on {address}: {why}.",
                hint="Choose another port in metrics.port, or see `ss -ltnp`.",
            )

    def configure(self, config: RunConfig) -> None:
        """Listen on the configured port only."""
        if config.metrics == self._wanted:
            return
        before, self._wanted = self._serving, config.metrics
        self.close()
        self._serving = asyncio.create_task(self._serve(before, config.metrics), name="metrics")

    def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self._serving = None

    async def _serve(self, before: asyncio.Task[None] | None, wanted: Metrics) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._show("")
        while wanted.port:
            try:
                await self._listen(wanted, _token_of(wanted))
            except OSError as refused:
                why = (refused.strerror or str(refused)).lower()
                self._show(f"{PATH} is not served: nothing can listen on 127.0.0.1:{wanted.port}: {why}.")
            except ConfigError as refused:
                self._show(f"{PATH} is not served: {refused.message}")
            await asyncio.sleep(RETRY_S)

    def _show(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.error("%s The coordinator tries again every %g s.", trouble, RETRY_S)
            self._changed()

    async def _listen(self, wanted: Metrics, token: str) -> None:
        # Imported here: a coordinator without the port starts without them.
        from agentrl.http.token_server import listening

        async with contextlib.AsyncExitStack() as opened:
            url = await opened.enter_async_context(listening(self._application(token), port=wanted.port))
            self.url = f"{url}{PATH}"
            opened.callback(setattr, self, "url", "")
            self._show("")
            log.info("the metrics of the run are at %s", self.url)
            await asyncio.Event().wait()

    def _application(self, token: str) -> ASGIApp:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, Response

        from agentrl.control.exported_metrics import RunCollector
        from agentrl.http.token_server import Application, Guard, RequestError, Route

        async def scrape(request: Request) -> Response:
            registry = CollectorRegistry()
            registry.register(RunCollector(*self._snapshot()))
            encode, kind = choose_encoder(request.headers.get("accept", ""))
            return Response(encode(registry), headers={"content-type": kind})

        def refusal(failed: Exception) -> Response | None:
            return PlainTextResponse(failed.message, failed.status) if isinstance(failed, RequestError) else None

        without = "The token of the run file (metrics.token) is needed."
        guard = Guard("The coordinator", log, refusal, token=token, without_token=without)
        return Application([Route(PATH, "GET", scrape)], guard)


def _token_of(wanted: Metrics) -> str:
    assert wanted.token is not None, "the configuration has both port and token"
    return bearer_token("metrics.token", wanted.token)
