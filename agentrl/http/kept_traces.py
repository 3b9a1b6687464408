"""Keeps whole traces: the process that has the root span tells the servers that it called which traces are kept.

Invariants:
- A server that does not answer, or does not have this route, delays nothing; its spans of the trace are lost.
- These calls themselves belong to no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agentrl.http.http_client import BodyTooLargeError, ConnectionBrokenError, HttpClient
from agentrl.http.token_server import Route, body_of
from agentrl.tracing import spans, trace_context

PATH = "/traces/keep"
EVERY_S = 1.0
WITHIN_S = 2.0

log = logging.getLogger("traces")


class KeepBody(msgspec.Struct):
    traces: list[str]


async def announce() -> None:
    """Tells servers which traces are kept, until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        await announce_now()


async def announce_now() -> None:
    by_server: dict[HttpClient, list[str]] = defaultdict(list)
    for trace, peers in spans.unannounced().items():
        for peer in peers:
            if isinstance(peer, HttpClient):
                by_server[peer].append(trace)
    with trace_context.within(None):
        await asyncio.gather(*(_tell(server, traces) for server, traces in by_server.items()))


async def _tell(server: HttpClient, traces: list[str]) -> None:
    with contextlib.suppress(ConnectionBrokenError, BodyTooLargeError, TimeoutError):
        async with asyncio.timeout(WITHIN_S), server.ask("POST", PATH, msgspec.json.encode(KeepBody(traces))) as reply:
            await reply.read()


async def _keep(request: Request) -> Response:
    spans.keep((await body_of(request, KeepBody)).traces)
    return Response(status_code=200)


ROUTE = Route(PATH, "POST", _keep)
"""For servers that have spans of their callers' traces."""
