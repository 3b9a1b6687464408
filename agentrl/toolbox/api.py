"""The HTTP API of the toolbox: `/mcpapi`.

Invariants:
- Every request needs the token of the run.
- A call that ran is answered with 200, whatever its result; everything else has another status and a sentence.
- A caller that disconnects does not end its call.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from agentrl.config.http_token import RunToken
from agentrl.http import kept_traces
from agentrl.http.token_server import Act, Application, BodyError, Route, bears, body_of
from agentrl.policies.replay_verdicts import ToolEffect
from agentrl.toolbox.api_messages import (
    BadRequestError,
    CallTool,
    OpenSession,
    Refusal,
    RefusalBody,
    ToolboxError,
    ToolInfo,
    WrongTokenError,
    refusal_of,
)
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool in a list; callers use its `id`."""

    id: str
    server: str
    name: str
    description: str
    schema: dict[str, Any]
    effect: ToolEffect | Literal[""] = ""
    """The effect that the server declares; empty if it declares none."""


def build_app(toolbox: Toolbox, token: str | RunToken) -> Application:
    handlers = _Handlers(toolbox)
    table = (
        Route("/mcpapi/servers", "GET", handlers.servers),
        Route("/mcpapi/tools", "GET", handlers.tools),
        Route("/mcpapi/server/{server:path}/tools", "GET", handlers.tools),
        Route("/mcpapi/statistics", "GET", handlers.statistics),
        Route("/mcpapi/session", "POST", handlers.open),
        Route("/mcpapi/session/{id:path}", "DELETE", handlers.close),
        Route("/mcpapi/tool/{tool:path}", "POST", handlers.call),
        kept_traces.ROUTE,
    )
    return Application(table, lambda act: _guarded(token, act))


class _Handlers:
    """One method for each path."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    async def servers(self, request: Request) -> Response:
        return _json({"servers": self._toolbox.servers()})

    async def tools(self, request: Request) -> Response:
        found = self._toolbox.tools(request.path_params.get("server", ""))
        return _json({"tools": [_entry(tool) for tool in found]})

    async def statistics(self, request: Request) -> Response:
        return _json({"tools": self._toolbox.statistics.all()})

    async def open(self, request: Request) -> Response:
        return _json(await self._toolbox.open(await body_of(request, OpenSession)))

    async def close(self, request: Request) -> Response:
        await self._toolbox.close(request.path_params["id"])
        if request.query_params.get("forget"):
            self._toolbox.forget(request.path_params["id"])
        return _json({})

    async def call(self, request: Request) -> Response:
        return _json(await self._toolbox.call(request.path_params["tool"], await body_of(request, CallTool)))


def _entry(tool: ToolInfo) -> ToolEntry:
    return ToolEntry(
        id=tool.id,
        server=tool.server,
        name=tool.name,
        description=tool.description,
        schema=tool.schema,
        effect=tool.effect,
    )


def _guarded(token: str | RunToken, act: Act) -> Act:
    """Check the token, then turn every error into an answer with a sentence."""

    async def answer(request: Request) -> Response:
        if not bears(request, token):
            wrong = WrongTokenError("The toolbox needs the token of its run.")
            return _refused(wrong, {"WWW-Authenticate": "Bearer"})
        try:
            return await act(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except BodyError as wrong:
            return _refused(BadRequestError(wrong.message), {})
        except ToolboxError as refused:
            wait_s = refused.retry_after_s
            return _refused(refused, {"Retry-After": f"{wait_s:.1f}"} if wait_s else {})
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            body = RefusalBody(error=Refusal(message="The toolbox failed unexpectedly; its log has the traceback."))
            return _json(body, 500)

    return answer


def _refused(error: ToolboxError, headers: dict[str, str]) -> Response:
    return _json(refusal_of(error), error.http_status, headers)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, headers=headers, media_type="application/json")
