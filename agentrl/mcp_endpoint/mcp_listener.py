"""The HTTP listener at which the toolbox is an MCP server: `/mcp` has all tools, `/mcp/SERVER` those of one server.

Only protocol versions with sessions are spoken, because a stateful tool server needs to know which calls belong
together. A client that knows later versions as well falls back.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Mapping

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.config.outside_access import OutsideAccess
from agentrl.config.secrets import bearer_token
from agentrl.errors import ConfigError
from agentrl.http.token_server import listening
from agentrl.mcp_endpoint import http_api
from agentrl.mcp_endpoint.outside_sessions import OutsideSessions
from agentrl.tokens.image_marks import shown
from agentrl.toolbox import mcpapi
from agentrl.toolbox.api_messages import ToolboxError, ToolInfo
from agentrl.toolbox.mcp_connection import EFFECT_KEY
from agentrl.toolbox.toolbox import Toolbox

log = logging.getLogger("toolbox")
PATH = "/mcp"
MOST_BODY_BYTES = 4 << 20
_VERSIONS = tuple(HANDSHAKE_PROTOCOL_VERSIONS)
_HOSTS = ("127.0.0.1", "localhost")
_SECURITY = TransportSecuritySettings(
    allowed_hosts=[f"{host}:*" for host in _HOSTS], allowed_origins=[f"http://{host}:*" for host in _HOSTS]
)
"""A web page in a user's browser can also reach loopback, under a host name that the page chose."""


def tokens_of(access: OutsideAccess) -> dict[str, str]:
    """The token of each program. Raises ConfigError."""
    tokens = {name: bearer_token(f"outside.tokens.{name}", secret) for name, secret in access.references().items()}
    if len(set(tokens.values())) < len(tokens):
        raise ConfigError("outside.tokens has the same token twice.")
    return tokens


@contextlib.asynccontextmanager
async def mcp_listening(toolbox: Toolbox, access: OutsideAccess, tokens: Mapping[str, str]) -> AsyncIterator[str]:
    """Serve the programs with these tokens, by name, while the body runs; gives the URL."""
    opening: set[str] = set()
    programs = {name: _Program(OutsideSessions(name, toolbox, access, opening), toolbox, access) for name in tokens}
    async with contextlib.AsyncExitStack() as running:
        for program in programs.values():
            await running.enter_async_context(program.running())
        url = await running.enter_async_context(listening(_Listener(toolbox, programs, tokens), port=access.port))
        yield f"{url}{PATH}"


class _Program:
    """The MCP server of one program, whose connections no other program can use."""

    def __init__(self, sessions: OutsideSessions, toolbox: Toolbox, access: OutsideAccess) -> None:
        self._toolbox = toolbox
        self.sessions = sessions
        self._server = Server("agentrl", on_list_tools=self._list, on_call_tool=self._call)
        self._manager = StreamableHTTPSessionManager(
            self._server,
            security_settings=_SECURITY,
            session_idle_timeout=access.idle_s,
            max_request_body_size=MOST_BODY_BYTES,
            max_sessions=access.sessions,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self._manager.run():
                yield
        except BaseExceptionGroup as group:
            # Errors of the body reach the caller unchanged.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            await self.sessions.close("")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE" and (connection := _connection(Request(scope))):
            await self.sessions.close(connection)

    async def _list(
        self, context: ServerRequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        server = _server_of(context)
        return types.ListToolsResult(
            tools=[_listed(tool, server, self._toolbox.effect(tool)) for tool in self.sessions.offered(server)]
        )

    async def _call(self, context: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        server = _server_of(context)
        tool = f"{server}.{params.name}" if server else params.name
        connection = _connection(context.request) if isinstance(context.request, Request) else ""
        try:
            answer = await self.sessions.call(connection, tool, params.arguments or {})
        except ToolboxError as refused:
            wait = f" Try again after {refused.retry_after_s:.1f} s." if refused.retry_after_s else ""
            return _result(f"{refused}{wait}", is_error=True)
        except Exception:  # the boundary: the SDK would send the text of the exception to the program
            log.exception("a call of %s failed", tool)
            return _result("The toolbox failed unexpectedly; its log has the traceback.", is_error=True)
        return _result(shown(answer.content), is_error=answer.status != "ok")


class _Listener:
    """Checks token, path and protocol version, then hands the request to the MCP server of the program."""

    def __init__(self, toolbox: Toolbox, programs: Mapping[str, _Program], tokens: Mapping[str, str]) -> None:
        self._toolbox = toolbox
        self._programs = programs
        self._apis = {name: http_api.build_app(toolbox, program.sessions) for name, program in programs.items()}
        self._tokens = {name: f"Bearer {token}".encode() for name, token in tokens.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        given = request.headers.get("authorization", "").encode()
        # Compares all of them, so the time taken does not reveal a near match.
        names = [name for name, token in self._tokens.items() if hmac.compare_digest(given, token)]
        over_http = request.url.path.startswith(f"{mcpapi.PATH}/")
        answer: ASGIApp | None = None
        if not names:
            sentence = "A token of the run file (outside.tokens) is needed."
            answer = http_api.without_token(sentence) if over_http else _refusal(401, sentence)
        elif over_http:
            answer = self._apis[names[0]]
        elif not self._exists(request.url.path):
            answer = _refusal(404, f"The tools are at {PATH}, those of one server at {PATH}/SERVER.")
        elif (
            request.headers.get("mcp-protocol-version", HANDSHAKE_PROTOCOL_VERSIONS[0])
            not in HANDSHAKE_PROTOCOL_VERSIONS
        ):
            answer = _refusal(
                400, f"Bad Request: Unsupported protocol version; supported: {HANDSHAKE_PROTOCOL_VERSIONS}"
            )
        if answer is not None:
            await answer(scope, receive, send)
        else:
            await self._programs[names[0]].serve(scope, receive, send)

    def _exists(self, path: str) -> bool:
        server = path.removeprefix(f"{PATH}/")
        return path in (PATH, f"{PATH}/") or (server != path and server in self._toolbox.all_servers)


def _server_of(context: ServerRequestContext) -> str:
    """The server that the path names; empty for all."""
    path = context.request.url.path if isinstance(context.request, Request) else PATH
    return path[len(PATH) + 1 :]


def _connection(request: Request) -> str:
    return request.headers.get(MCP_SESSION_ID_HEADER, "")


def _listed(tool: ToolInfo, server: str, effect: str) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=effect == "pure",
        idempotent_hint=True if effect == "pure" else None,
        open_world_hint=effect == "outside",
    )
    return types.Tool(
        name=tool.name if server else tool.id,
        description=tool.description,
        input_schema=tool.schema or {"type": "object"},
        annotations=hints if effect else None,
        _meta={EFFECT_KEY: effect} if effect else None,
    )


def _result(text: str, *, is_error: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)


def _refusal(status: int, sentence: str) -> Response:
    error = {"code": types.INVALID_REQUEST, "message": sentence}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status, headers)
