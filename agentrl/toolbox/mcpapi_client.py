"""Tools over plain HTTP, from the `/mcpapi` of another run or of another product that answers alike.

Invariants:
- A connection has one session there for each server whose tools it calls; it opens them late and closes them all.
- A refused call waits as long as the other side asks, within its own deadline.
- A call has one id for all its requests, so it never runs twice.
- Memory for an answer is bounded, and an answer of another form is a fault of the server.
- A call that was given up ends there with its time limit or with its session.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

import httpx2
import mcp_types as types
import msgspec
from mcp.client.subscriptions import ListenNotSupportedError

from agentrl.config.data_plane import MCPAPI_ADDRESS
from agentrl.toolbox import mcpapi
from agentrl.toolbox.api_messages import CallTool, RefusalBody, UnknownToolError
from agentrl.toolbox.http_peer import JSON, HttpPeer
from agentrl.toolbox.mcp_connection import (
    EFFECT_KEY,
    CallRejectedError,
    CallTimedOutError,
    Connection,
    ConnectionFailedError,
    ServerFaultError,
    SessionForgottenError,
)
from agentrl.toolbox.mcpapi import Closed, OpenOutsideSession, OutsideAnswer, Tools

MOST_TOOLS = 10_000
MOST_MESSAGE_CHARS = 500
CLOSED_WITHIN_S = 5.0
WAIT_S = 1.0
"""The pause before the next request, if the refusal names no time."""
LEAST_S = 0.1
_T = TypeVar("_T")


class McpapiConnection(Connection):
    """A connection to a `/mcpapi`; it ends when one of its sessions is lost or its token is refused."""

    def __init__(self, name: str, peer: HttpPeer, address: str) -> None:
        super().__init__(name, peer)
        self._http = peer
        self._address = address

    def _new_client(self) -> AbstractAsyncContextManager[Any]:
        return _Client(self, self._http.http_client(), self._address)

    def list_again(self, client: Any) -> None:
        self._in_background(self._list_again(client))


class _FailedRequestError(RuntimeError):
    """The answer does not have the documented form."""


class _BrokenRequestError(_FailedRequestError):
    """No complete answer: it is unknown whether the request was served."""


class _RefusedError(_FailedRequestError):
    """An answer with a status other than 200."""

    def __init__(self, status: int, kind: str, sentence: str, wait_s: float) -> None:
        super().__init__(sentence)
        self.status, self.kind, self.wait_s = status, kind, wait_s


class _Client:
    """Provides the part of the SDK's client that a connection uses."""

    server_info = None

    def __init__(self, connection: McpapiConnection, http: httpx2.AsyncClient, address: str) -> None:
        match = MCPAPI_ADDRESS.fullmatch(address)
        assert match is not None, "the run file is checked"
        self._base, self._server = match[1], unquote(match[2] or "")
        self._connection = connection
        self._http = http
        self._server_of: dict[str, str] = {}
        self._sessions: dict[str, str] = {}
        """The id of the session at each server, once its opening was requested."""
        self._opened: set[str] = set()
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> _Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        closing = [self._request(mcpapi.CLOSE, Closed, {"session": session}) for session in self._sessions.values()]
        try:
            async with asyncio.timeout(CLOSED_WITHIN_S):
                await asyncio.gather(*closing, return_exceptions=True)
        except TimeoutError:
            pass  # The other side closes sessions without calls by itself.
        finally:
            await self._http.aclose()

    def listen(self, **ignored: object) -> NoReturn:
        raise ListenNotSupportedError(None)

    async def list_tools(self, *, cursor: str | None = None) -> types.ListToolsResult:
        """Raises RuntimeError."""
        operation = mcpapi.TOOLS_OF_SERVER if self._server else mcpapi.TOOLS
        names = {"server": self._server} if self._server else {}
        try:
            found = (await self._request(operation, Tools, names)).tools
        except _RefusedError as refused:
            raise RuntimeError(self._sentence(refused)) from None
        if len(found) > MOST_TOOLS:
            raise RuntimeError(f"it lists more than {MOST_TOOLS} tools")
        self._server_of = {each.id: each.server for each in found}
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=each.name if self._server else each.id,
                    description=each.description,
                    input_schema=each.schema or {"type": "object"},
                    _meta={EFFECT_KEY: each.effect},
                )
                for each in found
            ]
        )

    async def call_tool(
        self, tool: str, arguments: dict[str, Any], *, read_timeout_seconds: float, meta: Mapping[str, Any]
    ) -> types.CallToolResult:
        ends_at = asyncio.get_running_loop().time() + read_timeout_seconds
        id = f"{self._server}.{tool}" if self._server else tool
        session = await self._session(self._server_of.get(id, self._server), ends_at)
        call = uuid.uuid4().hex

        def ask(left_s: float) -> Coroutine[Any, Any, OutsideAnswer]:
            body = CallTool(session=session, call=call, arguments=arguments, timeout_s=left_s)
            return self._request(mcpapi.CALL, OutsideAnswer, {"tool": id}, body)

        try:
            answer = await self._patiently(ask, ends_at)
        except _RefusedError as refused:
            self._raise(tool, refused, late=_left(ends_at) <= 0.1 * read_timeout_seconds)
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=answer.content)]
        return types.CallToolResult(content=content, is_error=answer.status != "ok")

    async def _session(self, server: str, ends_at: float) -> str:
        """The session at this server, which the first call opens. Raises ConnectionFailedError."""

        def ask(left_s: float) -> Coroutine[Any, Any, Any]:
            body = OpenOutsideSession(id=session, servers=(server,), wait_s=left_s)
            return self._request(mcpapi.OPEN, msgspec.Raw, {}, body)

        try:
            async with asyncio.timeout_at(ends_at), self._opening:
                session = self._sessions.setdefault(server, uuid.uuid4().hex)
                if server not in self._opened:
                    await self._patiently(ask, ends_at)
                    self._opened.add(server)
                return session
        except TimeoutError:
            raise ConnectionFailedError(f"{self._connection.name} opened no session in time.") from None
        except _RefusedError as refused:
            raise self._given_up(f"it opened no session: {self._sentence(refused)}") from None
        except _FailedRequestError as failed:
            raise ConnectionFailedError(f"{self._connection.name} opened no session: {failed}.") from None

    async def _patiently(self, ask: Callable[[float], Coroutine[Any, Any, _T]], ends_at: float) -> _T:
        """Repeat a request that was refused for now, until the deadline, and once one whose answer broke off."""
        broken = False
        while True:
            try:
                return await ask(max(LEAST_S, _left(ends_at)))
            except _BrokenRequestError as failed:
                if broken:
                    raise ConnectionFailedError(f"{self._connection.name}: {failed}.") from None
                broken = True
            except _RefusedError as refused:
                if refused.status not in (429, 503):
                    if broken and refused.status in (404, 409):
                        # The session is lost, and the first request may have run in it.
                        raise self._given_up(f"its answer broke off, then it lost the session: {refused}") from None
                    raise
                if refused.wait_s >= _left(ends_at):
                    raise ConnectionFailedError(f"{self._connection.name} took no call in time: {refused}.") from None
                await asyncio.sleep(refused.wait_s)

    def _raise(self, tool: str, refused: _RefusedError, *, late: bool) -> NoReturn:
        match refused.status:
            case 401 | 403:
                raise self._given_up(self._sentence(refused)) from None
            case 404 if refused.kind == UnknownToolError.kind:
                self._connection.list_again(self)
                raise CallRejectedError(f"{tool}: {refused}.") from None
            case 409 if refused.kind == "cancelled":
                raise self._given_up(f"it closed the session during a call: {refused}") from None
            case 404 | 409:
                self._connection.give_up(f"it has lost the session: {refused}")
                raise SessionForgottenError(f"{self._connection.name} has lost the session: {refused}.") from None
            case 413 | 422:
                raise CallRejectedError(f"{tool}: {refused}.") from None
            case 504 if late:
                raise CallTimedOutError(f"{tool} did not answer in time: {refused}.") from None
            case _:
                raise ServerFaultError(f"{tool} failed: {refused}.") from None

    def _given_up(self, why: str) -> ConnectionFailedError:
        self._connection.give_up(why)
        return ConnectionFailedError(f"{self._connection.name} is gone: {why}.")

    def _sentence(self, refused: _RefusedError) -> str:
        if refused.status not in (401, 403):
            return str(refused)
        return f"it refused the token, check tools.{self._connection.name}.token ({refused})"

    async def _request(
        self,
        operation: mcpapi.Operation,
        kind: type[_T],
        names: Mapping[str, str],
        body: msgspec.Struct | None = None,
    ) -> _T:
        """Raises _FailedRequestError."""
        method, path = operation.method, operation.at(**names)
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": JSON, "Accept": JSON}
        data = b""
        try:
            async with self._http.stream(method, f"{self._base}{path}", content=content, headers=headers) as answer:
                is_json = answer.headers.get("content-type", "").lower().startswith(JSON)
                if is_json:
                    # The peer bounds only JSON.
                    data = b"".join([piece async for piece in answer.aiter_bytes()])
        except httpx2.TransportError as broken:
            raise _BrokenRequestError(f"it cannot be reached ({str(broken) or type(broken).__name__})") from None
        except (httpx2.StreamError, httpx2.HTTPError) as broken:
            if isinstance(broken.__cause__, httpx2.TransportError):
                raise _BrokenRequestError(str(broken)) from None
            raise _FailedRequestError(str(broken)) from None
        if answer.status_code != 200:
            raise _refused(answer, data if is_json else b"")
        if not is_json:
            raise _FailedRequestError(f"{method} {path} was answered without JSON")
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise _FailedRequestError(f"{method} {path} was answered in another form ({wrong})") from None


def _refused(answer: httpx2.Response, data: bytes) -> _RefusedError:
    try:
        error = msgspec.json.decode(data, type=RefusalBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        error = RefusalBody().error
    message = error.message[:MOST_MESSAGE_CHARS].rstrip(".")
    given = answer.headers.get("retry-after", "")
    wait_s = float(given) if given.isascii() and given.isdecimal() else error.retry_after_s or WAIT_S
    sentence = f"it answered {answer.status_code}" + (f", {message}" if message else "")
    return _RefusedError(answer.status_code, error.kind, sentence, max(LEAST_S, wait_s))


def _left(ends_at: float) -> float:
    return ends_at - asyncio.get_running_loop().time()
