"""The HTTP API of the toolbox, `/mcpapi`, for samplers and the steward.

Invariants:
- Every request needs the token of the run.
- A call that ran is answered with 200, whatever its result; everything else has another status and a sentence.
- A caller that disconnects does not end its call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agentrl.config.http_token import RunToken
from agentrl.http import kept_traces
from agentrl.http.token_server import Act, Application, Guard, RequestError, Route, body_of
from agentrl.toolbox import mcpapi
from agentrl.toolbox.api_messages import (
    CallTool,
    OpenSession,
    Refusal,
    RefusalBody,
    ToolboxError,
    refusal_of,
)
from agentrl.toolbox.mcpapi import Operation, Tools
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")


def build_app(toolbox: Toolbox, token: str | RunToken) -> Application:
    handlers = _Handlers(toolbox)
    acts = {
        mcpapi.SERVERS: handlers.servers,
        mcpapi.TOOLS: handlers.tools,
        mcpapi.TOOLS_OF_SERVER: handlers.tools,
        mcpapi.STATISTICS: handlers.statistics,
        mcpapi.OPEN: handlers.open,
        mcpapi.CLOSE: handlers.close,
        mcpapi.CALL: handlers.call,
    }
    return Application([*routes(acts), kept_traces.ROUTE], Guard("The toolbox", log, refusal, token=token))


class _Handlers:
    """One method for each path."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    async def servers(self, request: Request) -> Response:
        return json({"servers": self._toolbox.servers()})

    async def tools(self, request: Request) -> Response:
        found = self._toolbox.tools(request.path_params.get("server", ""))
        return json(Tools(tools=tuple(mcpapi.entry(tool, tool.effect) for tool in found)))

    async def statistics(self, request: Request) -> Response:
        return json({"tools": self._toolbox.statistics.all()})

    async def open(self, request: Request) -> Response:
        return json(await self._toolbox.open(await body_of(request, OpenSession)))

    async def close(self, request: Request) -> Response:
        await self._toolbox.close(request.path_params["session"])
        if request.query_params.get("forget"):
            self._toolbox.forget(request.path_params["session"])
        return json({})

    async def call(self, request: Request) -> Response:
        return json(await self._toolbox.call(request.path_params["tool"], await body_of(request, CallTool)))


# ---- what all listeners of `/mcpapi` share ----


def routes(acts: Mapping[Operation, Act]) -> list[Route]:
    """The routes of a listener that offers these operations."""
    return [
        Route(mcpapi.PATH + operation.path.replace("}", ":path}"), operation.method, act)
        for operation, act in acts.items()
    ]


def refusal(failed: Exception) -> Response | None:
    match failed:
        case RequestError():
            return json(RefusalBody(error=Refusal(kind=failed.kind, message=failed.message)), failed.status)
        case ToolboxError():
            wait_s = math.ceil(failed.retry_after_s)
            return json(refusal_of(failed), failed.http_status, {"Retry-After": str(wait_s)} if wait_s else {})
        case _:
            return None


def json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, headers=headers, media_type="application/json")
