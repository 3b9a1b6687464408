"""Implements the common part of the HTTP listeners of a run.

Invariants:
- A listener is bound before its URL is known to others, and closed when the body ends.
- The token is compared in constant time.
- A body is never read beyond its limit.
- Every failure is an answer with a sentence, in the form of the listener; a caller gets no traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeVar

import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.config.http_token import RunToken, accepts
from agentrl.errors import UsageError
from agentrl.tracing import trace_context
from agentrl.tracing.trace_context import TraceContext

KEEP_ALIVE_S = 120
LEAVE_WITHIN_S = 3
MOST_BODY_BYTES = 8 << 20
_BACKLOG = 1024
_TRACE_HEADER = trace_context.HEADER.encode()
B = TypeVar("B")
Act = Callable[[Request], Awaitable[Response]]


class RequestError(UsageError):
    """A request that a listener refuses by itself: its path, its token or its body."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Route(NamedTuple):
    path: str
    """The path; `{name:path}` is a parameter."""
    method: Literal["GET", "POST", "DELETE"]
    act: Act


class Application:
    """Maps paths to handlers. `guard` runs before every handler, and for unknown paths too.

    It replaces the layers of a framework, which cost as much as a short call.
    """

    def __init__(self, routes: Iterable[Route], guard: Callable[[Act], Act]) -> None:
        self._exact: dict[str, dict[str, Act]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Act]] = {}
        for path, method, act in routes:
            pattern, _, parameters = compile_path(path)
            # `re` caches compiled patterns, so equal patterns are one key here.
            methods = self._patterns.setdefault(pattern, {}) if parameters else self._exact.setdefault(path, {})
            methods[method] = guard(act)
        self._unknown = guard(_unknown)
        self._not_so = guard(_not_so)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "listeners speak nothing else"
        act = self._chosen(scope)
        with trace_context.within(_trace_of(scope)):
            response = await act(Request(scope, receive, send))
            await response(scope, receive, send)

    def _chosen(self, scope: Scope) -> Act:
        methods = self._exact.get(scope["path"])
        if methods is None:
            for pattern, methods_of_it in self._patterns.items():
                if match := pattern.match(scope["path"]):
                    scope["path_params"] = match.groupdict()
                    methods = methods_of_it
                    break
        if methods is None:
            return self._unknown
        return methods.get("GET" if scope["method"] == "HEAD" else scope["method"], self._not_so)


def _trace_of(scope: Scope) -> TraceContext | None:
    """The trace of the caller. This header needs no check: a caller without the token is refused anyway."""
    for name, value in scope["headers"]:
        if name == _TRACE_HEADER:
            return trace_context.parse(value.decode("latin-1"))
    return None


async def _unknown(request: Request) -> Response:
    raise RequestError(404, "unknown", f"There is no path {request.url.path}.")


async def _not_so(request: Request) -> Response:
    raise RequestError(405, "method", f"{request.url.path} has other methods than {request.method}.")


class Guard:
    """Checks the token, then turns every failure into an answer. A listener declares the form of its refusals."""

    def __init__(
        self,
        name: str,
        log: logging.Logger,
        refusal: Callable[[Exception], Response | None],
        *,
        token: str | RunToken | None,
        without_token: str = "",
    ) -> None:
        """`refusal` gives the answer to a RequestError or an error of the handlers, and None for an unexpected one.
        `token`: None if the caller was admitted before. `without_token`: the sentence for a request without it."""
        self._name = name
        self._log = log
        self._refusal = refusal
        self._token = token
        self._without_token = without_token or f"{name} requires the token of its run."

    def __call__(self, act: Act) -> Act:
        async def answer(request: Request) -> Response:
            try:
                if self._token is not None and not bears(request, self._token):
                    raise RequestError(401, "token", self._without_token)
                return await act(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as failed:  # noqa: BLE001 - an unexpected error is logged below
                if (refused := self._refusal(failed)) is None:
                    self._log.exception("%s %s failed", request.method, request.url.path)
                    unexpected = RequestError(500, "failed", f"{self._name} failed; its log has the traceback.")
                    refused = self._refusal(unexpected) or Response(status_code=500)
                if refused.status_code == 401:
                    refused.headers["WWW-Authenticate"] = "Bearer"
                return refused

        return answer


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the unit handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the body runs; gives the URL. Port 0 means a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Its connections inherit TCP_NODELAY. asyncio sets it only on sockets made with a protocol number. Without it
        # the body of an answer waits 40 ms for the acknowledgement of its head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        taken: int = listener.getsockname()[1]
        server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                # There is no proxy in front of it, and its callers use neither the server name nor the date.
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LEAVE_WITHIN_S,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
        try:
            yield f"http://[{host}]:{taken}" if ":" in host else f"http://{host}:{taken}"
        finally:
            server.should_exit = True
            await serving


def bears(request: Request, token: str | RunToken) -> bool:
    return accepts(token, request.headers.get("authorization", "").encode())


async def body_of(
    request: Request, kind: type[B], *, most_bytes: int = MOST_BODY_BYTES, within_s: float | None = None
) -> B:
    """The decoded body. Raises RequestError."""
    data = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                data += piece
                if len(data) > most_bytes:
                    raise RequestError(413, "too_long", f"A body may have {most_bytes} bytes at most.")
    except TimeoutError:
        raise RequestError(408, "too_slow", f"The body took longer than {within_s:g} s.") from None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as wrong:
        raise RequestError(422, "bad_request", f"The body has another form: {wrong}.") from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise RequestError(400, "bad_request", f"The body is no JSON: {wrong}.") from wrong
