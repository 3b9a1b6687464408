"""`/mcpapi` for programs outside of the run: sessions, tools and calls by plain HTTP, described by an OpenAPI document.

Invariants:
- The document is made from the table of operations and the messages that are decoded and encoded.
- 200 means that the tool answered. Each other status has one form of body with a sentence.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agentrl.http.token_server import Application, Guard, RequestError, body_of
from agentrl.mcp_endpoint.outside_sessions import OutsideSessions
from agentrl.tokens.image_marks import shown
from agentrl.toolbox import api, mcpapi
from agentrl.toolbox.api_messages import CallTool, RefusalBody
from agentrl.toolbox.mcpapi import (
    Closed,
    OpenOutsideSession,
    Operation,
    OutsideAnswer,
    OutsideServer,
    OutsideSession,
    Servers,
    Tools,
)
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
MOST_BODY_BYTES = 4 << 20
BODY_WITHIN_S = 30.0
DOCUMENT = Operation("GET", "/openapi.json")
_OF_CALL = {"timeout": HTTPStatus.GATEWAY_TIMEOUT, "lost": HTTPStatus.BAD_GATEWAY, "cancelled": HTTPStatus.CONFLICT}
_ALWAYS = {
    400: "The body is no JSON.",
    401: "The token is missing or wrong.",
    404: "There is no such path, server or tool.",
    405: "The path has other methods.",
    408: "The body came too slowly.",
    413: "The body is too long.",
    422: "The body is JSON of another form.",
    500: "The toolbox failed; its log has the traceback.",
}
_SESSIONS = {409: "The session is not open, was closed or lost, or has other servers.", 429: "A quota is used up."}
_SERVERS = {503: "The server does not serve now."}
_CALLS = {502: "The server failed during the call.", 504: "The call took too long."}
B = TypeVar("B")


class _Described(NamedTuple):
    """What the document says about an operation."""

    summary: str
    answer: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None
    refusals: Mapping[int, str] = MappingProxyType({})


OPERATIONS = {
    mcpapi.SERVERS: _Described("List the tool servers.", Servers),
    mcpapi.TOOLS: _Described("List all tools.", Tools),
    mcpapi.TOOLS_OF_SERVER: _Described("List the tools of a server.", Tools),
    mcpapi.OPEN: _Described(
        "Open a session with all its servers.", OutsideSession, OpenOutsideSession, _SESSIONS | _SERVERS
    ),
    mcpapi.CLOSE: _Described("Close a session and cancel its calls. To close it twice is harmless.", Closed),
    mcpapi.CALL: _Described(
        "Call a tool, named SERVER.TOOL, in an open session.", OutsideAnswer, CallTool, _SESSIONS | _SERVERS | _CALLS
    ),
}


def build_app(toolbox: Toolbox, sessions: OutsideSessions) -> Application:
    """Answers the requests of one program, which has shown its token."""
    handlers = _Handlers(toolbox, sessions)
    acts = {
        mcpapi.SERVERS: handlers.servers,
        mcpapi.TOOLS: handlers.tools,
        mcpapi.TOOLS_OF_SERVER: handlers.tools,
        mcpapi.OPEN: handlers.open,
        mcpapi.CLOSE: handlers.close,
        mcpapi.CALL: handlers.call,
        DOCUMENT: handlers.document,
    }
    return Application(api.routes(acts), Guard("The toolbox", log, api.refusal, token=None))


def without_token(sentence: str) -> Response:
    """The answer to a request of no known program."""
    refused = api.refusal(RequestError(401, "token", sentence))
    assert refused is not None
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused


class _Handlers:
    """One method for each operation."""

    def __init__(self, toolbox: Toolbox, sessions: OutsideSessions) -> None:
        self._toolbox = toolbox
        self._sessions = sessions

    async def document(self, request: Request) -> Response:
        return api.json(document())

    async def servers(self, request: Request) -> Response:
        servers = self._toolbox.servers()
        return api.json(
            Servers(servers=tuple(OutsideServer(id=row.id, usable=row.usable, tools=row.tools) for row in servers))
        )

    async def tools(self, request: Request) -> Response:
        tools = self._sessions.offered(request.path_params.get("server", ""))
        return api.json(Tools(tools=tuple(mcpapi.entry(tool, self._toolbox.effect(tool)) for tool in tools)))

    async def open(self, request: Request) -> Response:
        body = await _body(request, OpenOutsideSession)
        await self._sessions.open(body.id, body.servers, body.wait_s)
        return api.json(OutsideSession(id=body.id, servers=body.servers))

    async def close(self, request: Request) -> Response:
        await self._sessions.close_session(request.path_params["session"])
        return api.json(Closed())

    async def call(self, request: Request) -> Response:
        body, tool = await _body(request, CallTool), request.path_params["tool"]
        answer = await self._sessions.call_in(body.session, body.call, tool, body.arguments, body.timeout_s)
        if answer.status == "ok" or answer.status == "tool_error":
            return api.json(
                OutsideAnswer(
                    status=answer.status,
                    content=shown(answer.content),
                    left_out=answer.left_out,
                    latency_s=answer.latency_s,
                )
            )
        raise RequestError(_OF_CALL[answer.status], answer.status, answer.content)


async def _body(request: Request, kind: type[B]) -> B:
    return await body_of(request, kind, most_bytes=MOST_BODY_BYTES, within_s=BODY_WITHIN_S)


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    kinds = {kind for row in OPERATIONS.values() for kind in (row.answer, row.body, RefusalBody) if kind is not None}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    of_kind = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for (method, path), row in OPERATIONS.items():
        statuses = {200: ("Done.", row.answer)}
        statuses |= {status: (what, RefusalBody) for status, what in {**_ALWAYS, **row.refusals}.items()}
        names = re.findall(r"\{(\w+)\}", path)
        paths.setdefault(f"{mcpapi.PATH}{path}", {})[method.lower()] = {
            "summary": row.summary,
            "operationId": f"{method.lower()}{re.sub(r'[^a-z]+', '_', path)}".rstrip("_"),
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ],
            **({"requestBody": {"required": True, "content": _content(of_kind[row.body])}} if row.body else {}),
            "responses": {
                str(status): {"description": what, "content": _content(of_kind[kind])}
                for status, (what, kind) in sorted(statuses.items())
            },
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tools of an agentrl run", "version": "1"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
