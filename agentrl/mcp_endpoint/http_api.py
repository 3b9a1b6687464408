"""`/mcpapi` for programs outside of the run: sessions, tools and calls by plain HTTP, described by an OpenAPI document.

Invariants:
- The document is made from the table of paths and the messages that are decoded and encoded.
- 200 means that the tool answered. Each other status has one form of body with a sentence.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from agentrl.mcp_endpoint.outside_sessions import OutsideSessions
from agentrl.tokens.image_marks import shown
from agentrl.toolbox.api_messages import Refusal, RefusalBody, ToolboxError, ToolInfo, refusal_of
from agentrl.toolbox.mcpapi_messages import (
    CallOutsideTool,
    Closed,
    OpenOutsideSession,
    OutsideAnswer,
    OutsideServer,
    OutsideSession,
    OutsideTool,
    Servers,
    Tools,
)
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
PATH = "/mcpapi"
MOST_BODY_BYTES = 4 << 20
BODY_WITHIN_S = 30.0
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


class _RefusedError(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, RefusalBody(error=Refusal(kind=kind, message=message))


Act = Callable[["HttpApi", OutsideSessions, dict[str, str], Any], Awaitable[msgspec.Struct]]


@dataclass(frozen=True)
class _Operation:
    method: str
    path: str
    summary: str
    act: Act
    answer: type[msgspec.Struct]
    body: type[msgspec.Struct] | None
    refusals: dict[int, str]

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", self.path))


class HttpApi:
    """Answers the requests of all programs."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._patterns = [(operation.pattern, operation) for operation in OPERATIONS]

    async def answer(self, request: Request, sessions: OutsideSessions) -> Response:
        try:
            return await self._answer(request, sessions)
        except ClientDisconnect:
            return Response(status_code=499)
        except _RefusedError as refused:
            return _json(refused.body, refused.status)
        except ToolboxError as refused:
            wait_s = math.ceil(refused.retry_after_s)
            return _json(refusal_of(refused), refused.http_status, {"Retry-After": str(wait_s)} if wait_s else {})
        except Exception:  # the boundary: a program gets no traceback
            log.exception("%s %s failed", request.method, request.url.path)
            return _json(RefusalBody(error=Refusal(message=_ALWAYS[500])), 500)

    async def _answer(self, request: Request, sessions: OutsideSessions) -> Response:
        path = request.url.path
        if path == f"{PATH}/openapi.json" and request.method == "GET":
            return _json(document())
        fitting = [(found, each) for pattern, each in self._patterns if (found := pattern.fullmatch(path))]
        if not fitting:
            raise _RefusedError(404, "unknown", f"There is no path {path}; {PATH}/openapi.json has them all.")
        for found, operation in fitting:
            if operation.method == request.method:
                body = await _body(request, operation.body) if operation.body else None
                return _json(await operation.act(self, sessions, found.groupdict(), body))
        raise _RefusedError(405, "method", f"{path} has the methods {', '.join(each.method for _, each in fitting)}.")

    async def servers(self, sessions: OutsideSessions, path: dict[str, str], body: None) -> Servers:
        found = self._toolbox.servers()
        return Servers(servers=tuple(OutsideServer(id=each.id, usable=each.usable, tools=each.tools) for each in found))

    async def tools(self, sessions: OutsideSessions, path: dict[str, str], body: None) -> Tools:
        found = sessions.offered(path.get("server", ""))
        return Tools(tools=tuple(_tool(each, self._toolbox.effect(each)) for each in found))

    async def open(self, sessions: OutsideSessions, path: dict[str, str], body: OpenOutsideSession) -> OutsideSession:
        await sessions.open(body.id, body.servers, body.wait_s)
        return OutsideSession(id=body.id, servers=body.servers)

    async def close(self, sessions: OutsideSessions, path: dict[str, str], body: None) -> Closed:
        await sessions.close_session(path["session"])
        return Closed()

    async def call(self, sessions: OutsideSessions, path: dict[str, str], body: CallOutsideTool) -> OutsideAnswer:
        answer = await sessions.call_in(body.session, body.call, path["tool"], body.arguments, body.timeout_s)
        if answer.status == "ok" or answer.status == "tool_error":
            return OutsideAnswer(
                status=answer.status,
                content=shown(answer.content),
                left_out=answer.left_out,
                latency_s=answer.latency_s,
            )
        raise _RefusedError(_OF_CALL[answer.status], answer.status, answer.content)


OPERATIONS = (
    _Operation("GET", f"{PATH}/servers", "List the tool servers.", HttpApi.servers, Servers, None, {}),
    _Operation("GET", f"{PATH}/tools", "List all tools.", HttpApi.tools, Tools, None, {}),
    _Operation("GET", f"{PATH}/server/{{server}}/tools", "List the tools of a server.", HttpApi.tools, Tools, None, {}),
    _Operation(
        "POST",
        f"{PATH}/session",
        "Open a session with all its servers.",
        HttpApi.open,
        OutsideSession,
        OpenOutsideSession,
        _SESSIONS | _SERVERS,
    ),
    _Operation(
        "DELETE",
        f"{PATH}/session/{{session}}",
        "Close a session and cancel its calls. To close it twice is harmless.",
        HttpApi.close,
        Closed,
        None,
        {},
    ),
    _Operation(
        "POST",
        f"{PATH}/tool/{{tool}}",
        "Call a tool, named SERVER.TOOL, in an open session.",
        HttpApi.call,
        OutsideAnswer,
        CallOutsideTool,
        _SESSIONS | _SERVERS | _CALLS,
    ),
)


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    kinds = {kind for each in OPERATIONS for kind in (each.answer, each.body, RefusalBody) if kind is not None}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    of_kind = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in OPERATIONS:
        statuses = {200: ("Done.", each.answer)}
        statuses |= {status: (what, RefusalBody) for status, what in {**_ALWAYS, **each.refusals}.items()}
        names = re.findall(r"\{(\w+)\}", each.path)
        paths.setdefault(each.path, {})[each.method.lower()] = {
            "summary": each.summary,
            "operationId": f"{each.method.lower()}{re.sub(r'[^a-z]+', '_', each.path.removeprefix(PATH))}".rstrip("_"),
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ],
            **({"requestBody": {"required": True, "content": _content(of_kind[each.body])}} if each.body else {}),
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


def _tool(tool: ToolInfo, effect: str) -> OutsideTool:
    text, schema = tool.description, tool.schema
    return OutsideTool(id=tool.id, server=tool.server, name=tool.name, description=text, schema=schema, effect=effect)


_FORMS = f"{PATH}/openapi.json describes it."


async def _body(request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MOST_BODY_BYTES:
                    raise _RefusedError(413, "too_long", f"A body may have {MOST_BODY_BYTES} bytes at most.")
    except TimeoutError:
        raise _RefusedError(408, "too_slow", f"The body took longer than {BODY_WITHIN_S:g} s.") from None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as wrong:
        raise _RefusedError(422, "bad_request", f"The body has another form: {wrong}. {_FORMS}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise _RefusedError(400, "bad_request", f"The body is no JSON: {wrong}. {_FORMS}") from None


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, headers=headers, media_type="application/json")
