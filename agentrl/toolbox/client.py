"""The client of a toolbox, for samplers and the steward.

Invariants:
- A refusal raises the error that the toolbox raised.
- The client waits longer than the toolbox, so it never gives up a call that still runs there.
- After a broken connection it repeats a call with its id, which the toolbox joins or answers and never runs twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import msgspec

from agentrl.config.http_token import RunToken
from agentrl.http import run_hosts
from agentrl.http.http_client import BodyTooLargeError, ConnectionBrokenError, HttpClient
from agentrl.policies.outcomes import tool_call_within_s
from agentrl.toolbox import mcpapi
from agentrl.toolbox.api_messages import (
    CallAnswer,
    CallTool,
    Opened,
    OpenSession,
    RefusalBody,
    ServerInfo,
    ToolboxError,
    ToolboxGoneError,
    ToolInfo,
    error_of,
)
from agentrl.toolbox.tool_statistics import ToolStatistics

ANSWER_WITHIN_S = 10.0
"""For requests that do not wait for a server."""
LONGEST_CALL_S = 3600.0
"""For a call without a time limit of its own."""
TRIES = 2
NO_NAMES: Mapping[str, str] = MappingProxyType({})
T = TypeVar("T")


class _Servers(msgspec.Struct):
    servers: tuple[ServerInfo, ...]


class _Tools(msgspec.Struct):
    tools: tuple[ToolInfo, ...]


class _Statistics(msgspec.Struct):
    tools: tuple[ToolStatistics, ...]


class ToolboxClient:
    """A connection to one toolbox; a context manager."""

    def __init__(self, url: str, token: str | RunToken) -> None:
        self.url = url
        self._http = HttpClient(url, {}, way=run_hosts.way(), token=token)

    async def __aenter__(self) -> ToolboxClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; sessions stay open."""
        await self._http.close()

    async def servers(self) -> tuple[ServerInfo, ...]:
        return (await self._request(mcpapi.SERVERS, _Servers)).servers

    async def tools(self, server: str = "") -> tuple[ToolInfo, ...]:
        """All tools, or those of one server."""
        operation = mcpapi.TOOLS_OF_SERVER if server else mcpapi.TOOLS
        return (await self._request(operation, _Tools, {"server": server} if server else {})).tools

    async def statistics(self) -> tuple[ToolStatistics, ...]:
        return (await self._request(mcpapi.STATISTICS, _Statistics)).tools

    async def open(
        self, session: str, servers: Iterable[str], *, wait_s: float = 30.0, replays: bool = False
    ) -> Opened:
        """Reserve all servers of an episode. A repeated request returns `created` False.

        Raises QuotaError or UnavailableError (try again later), SessionError, UnknownToolError.
        """
        body = OpenSession(id=session, servers=tuple(servers), wait_s=wait_s, replays=replays)
        return await self._request(mcpapi.OPEN, Opened, body=body, within_s=wait_s + ANSWER_WITHIN_S)

    async def call(
        self, session: str, call: str, server: str, tool: str, arguments: dict[str, Any], *, timeout_s: float = 0.0
    ) -> CallAnswer:
        """Call a tool and return how the call ended. `timeout_s` 0 means the limit of the server.

        Raises QuotaError or UnavailableError (the call did not run; try again later), SessionLostError and SessionError
        (the session is unusable), UnknownToolError, and ToolboxGoneError (it is unknown whether the call ran).
        """
        body = CallTool(session=session, call=call, arguments=arguments, timeout_s=timeout_s)
        within_s = tool_call_within_s(timeout_s or LONGEST_CALL_S)
        return await self._request(mcpapi.CALL, CallAnswer, {"tool": f"{server}.{tool}"}, body=body, within_s=within_s)

    async def close(self, session: str, *, forget: bool = False) -> None:
        """Close a session and cancel its calls. To close it twice is harmless. `forget`: with its calls, so that a
        session with this id can be opened and called again."""
        await self._request(mcpapi.CLOSE, dict, {"session": session}, query="?forget=1" if forget else "")

    async def _request(
        self,
        operation: mcpapi.Operation,
        kind: type[T],
        names: Mapping[str, str] = NO_NAMES,
        *,
        query: str = "",
        body: msgspec.Struct | None = None,
        within_s: float = ANSWER_WITHIN_S,
    ) -> T:
        """Send a request; all requests are idempotent."""
        path = f"{mcpapi.PATH}{operation.at(**names)}{query}"
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(within_s):
                status, answer = await self._send(operation.method, path, data)
        except TimeoutError:
            raise ToolboxGoneError(f"The toolbox at {self.url} did not answer within {within_s:g} s.") from None
        try:
            if status == 200:
                return msgspec.json.decode(answer, type=kind)
            refusal = msgspec.json.decode(answer, type=RefusalBody).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ToolboxError(f"{self.url}{path} answered {status} with an invalid body.") from None
        raise error_of(refusal)

    async def _send(self, method: str, path: str, data: bytes) -> tuple[int, bytes]:
        why = ""
        for _ in range(TRIES):
            try:
                async with self._http.ask(method, path, data) as reply:
                    return reply.status, await reply.read()
            except ConnectionBrokenError as broken:
                why = str(broken)
            except BodyTooLargeError as endless:
                raise ToolboxError(f"{self.url}{path} does not answer as a toolbox: {endless}.") from endless
        raise ToolboxGoneError(f"The toolbox at {self.url} cannot be reached: {why}.")
