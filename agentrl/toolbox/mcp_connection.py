"""One MCP client, and the task that owns it.

Invariants:
- One task enters and leaves a client.
- A connection ends once, with a reason, and ends all its calls.
- A call has a deadline, whatever the server does.
- A failed call raises one of five errors, which decide whose fault it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, Literal, cast, get_args

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from pydantic import ValidationError

from agentrl.errors import AgentrlError
from agentrl.policies.replay_verdicts import ToolEffect
from agentrl.toolbox.api_messages import ToolInfo
from agentrl.toolbox.http_peer import SENT, HttpPeer, Sent
from agentrl.toolbox.result_text import text_of
from agentrl.toolbox.stdio_transport import TOO_LONG, ServerProcess

log = logging.getLogger("toolbox")
START_WITHIN_S = 60.0
ANSWER_WITHIN_S = 5.0
"""How long an idle server may take to list its tools."""
BUSY_AT_MOST_S = 60.0
"""How long a server that writes or computes may take."""
LEAVE_WITHIN_S = 10.0
_LATE_S = 2.0
_MOST_TOOLS = 10_000
SESSION_KEY = "agentrl/session"
"""Key in the metadata of a call: the session, for keyed servers."""
EFFECT_KEY = "agentrl/effect"
"""Key in the metadata of a listed tool: what its calls change."""
EXAMPLE_KEY = "agentrl/example"
"""Key in the metadata of a listed tool: arguments with which it can be tried."""
HEALTH_SESSION = "~health"
"""The session of health checks in a keyed server."""
MOST_WHY_CHARS = 300
CALL_KEY = "agentrl/call"
"""Key in the metadata of a call: its id, which is never sent twice."""


class ConnectionFailedError(AgentrlError):
    """The server cannot be reached, or its connection ended."""

    alone = False
    """No other call ran that could have killed the server."""


class SessionForgottenError(ConnectionFailedError):
    """The server does not know the connection any more. The call did not run."""


class CallTimedOutError(AgentrlError):
    """The server did not answer in time."""


class ServerFaultError(AgentrlError):
    """The server answered the call with an internal error."""


class CallRejectedError(AgentrlError):
    """The server rejected the arguments or the tool, or the answer is too long."""


class _Running:
    """One call under way."""

    __slots__ = ("alone",)

    def __init__(self) -> None:
        self.alone = True


class Connection:
    """A connection from `open` to `close`; `gone` is set at its end, `why` has the reason."""

    def __init__(self, name: str, peer: ServerProcess | HttpPeer) -> None:
        self.name = name
        self.peer = peer
        self._stop = asyncio.Event()
        self._client: Client | None = None
        self._entered = False
        self._task: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self.pid: Callable[[], int | None] = lambda: peer.pid if isinstance(peer, ServerProcess) else None
        self.gone = asyncio.Event()
        self.why = ""
        self.version = ""
        """Name and version, as the server reports them."""
        self.tools: tuple[ToolInfo, ...] = ()
        self.on_tools: Callable[[tuple[ToolInfo, ...]], None] = lambda tools: None
        """Called when the server reports that its list of tools has changed."""
        self._following: set[asyncio.Task[None]] = set()
        self._running: set[_Running] = set()
        self._answered = 0
        self.calls = 0
        """Number of calls so far: a process without calls may serve another session."""
        self.purpose = ""
        """Why it was opened, if not for an episode."""
        self.retired = False
        """An operator replaces it: no new session gets it, and its end does not count as a death."""
        self.opened_at = 0.0

    @property
    def is_calling(self) -> bool:
        return bool(self._running)

    @property
    def is_over(self) -> bool:
        """Whether the client and its process have ended."""
        return self._task.done() if self._task is not None else bool(self.why)

    @property
    def story(self) -> str:
        """What is known of the server: how it ended, or that it is running, and its last lines."""
        return self.peer.story

    async def open(self, within_s: float = START_WITHIN_S) -> None:
        """Start, shake hands, list the tools. Raises ConnectionFailedError."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=f"connection to {self.name}")
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(ready)
        except TimeoutError:
            story = self.peer.story
            await self.close()
            raise ConnectionFailedError(f"{self.name} did not answer within {within_s:g} s ({story}).") from None
        except BaseException:
            await self.close()
            raise
        finally:
            ready.cancel()
        self.opened_at = time.monotonic()

    async def call(
        self, tool: str, arguments: dict[str, Any], *, meta: Mapping[str, Any], timeout_s: float
    ) -> types.CallToolResult:
        """Raises CallTimedOutError, ServerFaultError, CallRejectedError, or a kind of ConnectionFailedError."""
        if self._client is None or self.gone.is_set():
            raise ConnectionFailedError(self._gone_sentence())
        running = _Running()
        self._running.add(running)
        if len(self._running) > 1:
            for other in self._running:
                other.alone = False
        self.calls += 1
        began = time.monotonic()
        sent = Sent()
        of_this_call = SENT.set(sent)
        try:
            # The SDK's timeout begins after the request was written; this one also covers a server that does not read.
            async with asyncio.timeout(timeout_s + _LATE_S):
                answer = await self._client.call_tool(
                    tool, arguments, read_timeout_seconds=timeout_s, meta=cast(types.RequestParamsMeta, dict(meta))
                )
                self._answered += 1
                return answer
        except MCPError as failed:
            self._raise_if_refused(tool, sent)
            if failed.code == types.REQUEST_TIMEOUT and time.monotonic() - began >= 0.9 * timeout_s:
                raise CallTimedOutError(f"{tool} did not answer within {timeout_s:g} s.") from None
            raise self._classified(tool, failed, running) from None
        except TimeoutError:
            raise CallTimedOutError(f"{tool} did not answer within {timeout_s:g} s.") from None
        except (RuntimeError, ValidationError) as broken:
            # The answer is not a tool result, or violates the schema of the tool.
            raise ServerFaultError(f"{tool} sent an invalid answer: {broken}") from broken
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream) as closed:
            self._raise_if_refused(tool, sent)
            raise self._gone(running) from closed
        finally:
            SENT.reset(of_this_call)
            self._running.discard(running)

    async def check(self, tool: str, arguments: dict[str, Any], *, within_s: float) -> str:
        """Call a tool, or list the tools if it is empty, beside the calls of sessions. Returns what is wrong, or an
        empty text.
        """
        what = tool or "the list of its tools"
        if self._client is None or self.gone.is_set():
            return self._gone_sentence()
        try:
            async with asyncio.timeout(within_s):
                if not tool:
                    await self._client.list_tools()
                    return ""
                meta = cast(types.RequestParamsMeta, {SESSION_KEY: HEALTH_SESSION})
                answer = await self._client.call_tool(tool, arguments, meta=meta)
        except TimeoutError:
            return f"{what} did not answer within {within_s:g} s"
        except (
            MCPError,
            RuntimeError,
            ValidationError,
            anyio.ClosedResourceError,
            anyio.BrokenResourceError,
        ) as broken:
            return f"{what} failed: {_innermost(broken)}"
        return f"{what} failed: {text_of(answer)[:MOST_WHY_CHARS]}" if answer.is_error else ""

    def doubt(self) -> None:
        """Check the connection after a failed call, and end it if the server neither answers nor works."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(), name=f"check {self.name}")

    def give_up(self, why: str) -> None:
        """Stop using the connection; `close` waits for its end."""
        self._end_with(why)
        self.gone.set()
        self._stop.set()

    async def close(self, why: str = "it was closed") -> None:
        """End the client and its process. Returns when they ended, or after the time limit."""
        self._end_with(why)
        self._stop.set()
        for task in (self._checking, *self._following):
            if task is not None:
                task.cancel()
        if self._task is not None:
            if not self._entered:
                self._task.cancel()  # it may still wait for the server's first message
            await asyncio.wait([self._task], timeout=LEAVE_WITHIN_S)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=LEAVE_WITHIN_S)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        """Enter and leave the client, in one task."""
        try:
            async with self._new_client() as client:
                self.tools = await self._list(client)
                if (info := client.server_info) is not None:
                    self.version = f"{info.name} {info.version}".strip()
                self._client = client
                self._in_background(self._follow_tools(client))
                self._entered = True
                if not ready.done():
                    ready.set_result(None)
                await self._wait_for_end()
        except asyncio.CancelledError:
            raise
        except Exception as broken:  # the boundary: a dead server raises many kinds of errors, nested in groups
            self._end_with(self.peer.story if self.peer.ended.is_set() else _innermost(broken))
            log.debug("%s ended", self.name, exc_info=broken)
        finally:
            self._client = None
            self._end_with("it ended")
            self.gone.set()
            if not ready.done():
                ready.set_exception(ConnectionFailedError(self._gone_sentence()))

    def _new_client(self) -> AbstractAsyncContextManager[Any]:
        return Client(self.peer.connected(), cache=None, message_handler=self._hear)

    async def _wait_for_end(self) -> None:
        waits = [
            asyncio.create_task(event.wait(), name=f"{what} of {self.name}")
            for what, event in (("stop", self._stop), ("end", self.peer.ended))
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        # Calls end at once; leaving the client may take seconds.
        self._end_with(self.peer.story)
        self.gone.set()

    async def _list(self, client: Client) -> tuple[ToolInfo, ...]:
        tool_infos: list[ToolInfo] = []
        cursor: str | None = None
        while len(tool_infos) < _MOST_TOOLS:
            page = await client.list_tools(cursor=cursor)
            tool_infos += [
                ToolInfo(
                    server=self.name,
                    name=tool.name,
                    description=tool.description or "",
                    schema=tool.input_schema,
                    effect=_declared_effect(tool),
                    reads_only=_reads_only(tool.annotations),
                    example=_example(tool),
                )
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if not page.tools or not cursor:
                break
        return tuple(tool_infos)

    async def _check(self) -> None:
        client = self._client
        if client is None:
            return
        try:
            await self._answer_or_work(client)
        except asyncio.CancelledError:
            raise
        except Exception as broken:  # the boundary: any error means that the server did not answer
            late = f"no answer within {ANSWER_WITHIN_S:g} s"
            # The owner of the connection logs its end.
            log.debug("%s is given up", self.name, exc_info=broken)
            self.give_up(
                f"it did not answer a check ({late if isinstance(broken, TimeoutError) else _innermost(broken)})"
            )

    async def _answer_or_work(self, client: Client) -> None:
        """Returns when the server answers. Raises TimeoutError if it is silent and idle, or busy for too long.

        A server with one loop answers nothing while it works on the calls of many episodes.
        """
        began = time.monotonic()
        listing = asyncio.create_task(client.list_tools(), name=f"list tools of {self.name}")
        try:
            while True:
                answered, before = self._answered, self.peer.activity
                await asyncio.wait([listing], timeout=ANSWER_WITHIN_S)
                if listing.done():
                    listing.result()
                    return
                works = self._answered > answered or self.peer.activity.since(before, ANSWER_WITHIN_S)
                if not works or time.monotonic() - began > BUSY_AT_MOST_S:
                    raise TimeoutError
        finally:
            listing.cancel()

    # ---- changes of the tools ----

    async def _hear(self, message: object) -> None:
        """Handle a message of the server. Servers of older protocols report changes without a subscription."""
        if isinstance(message, types.ToolListChangedNotification) and self._client is not None:
            # A request within this handler would wait for its own answer.
            self._in_background(self._list_again(self._client))

    async def _follow_tools(self, client: Client) -> None:
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    await self._list_again(client)
        except (ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError) as unsupported:
            log.debug("changes of the tools of %s are not followed: %s", self.name, unsupported)

    async def _list_again(self, client: Client) -> None:
        try:
            async with asyncio.timeout(BUSY_AT_MOST_S):
                self.tools = await self._list(client)
        except (MCPError, TimeoutError, RuntimeError, ValidationError, anyio.ClosedResourceError) as broken:
            log.warning("%s changed its tools and does not list them: %s", self.name, _innermost(broken))
        else:
            self.on_tools(self.tools)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=f"tools of {self.name}")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    def _raise_if_refused(self, tool: str, sent: Sent) -> None:
        """Raise the error of a call that the server did not take."""
        if sent.forgotten:
            raise SessionForgottenError(self._gone_sentence()) from None
        if sent.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise CallRejectedError(f"{tool}: the arguments are longer than the server takes.") from None

    def _classified(self, tool: str, failed: MCPError, running: _Running) -> AgentrlError:
        match failed.code:
            case types.CONNECTION_CLOSED if self.gone.is_set() or self.peer.ended.is_set():
                return self._gone(running)
            case types.INVALID_PARAMS | types.METHOD_NOT_FOUND:
                return CallRejectedError(f"{tool}: {failed.message}")
            case _ if failed.code == TOO_LONG:
                return CallRejectedError(f"{tool}: {failed.message}")
            case _:
                return ServerFaultError(f"{tool} failed: {failed.message} ({failed.code})")

    def _gone(self, running: _Running) -> ConnectionFailedError:
        error = ConnectionFailedError(self._gone_sentence())
        error.alone = running.alone and not self.retired
        return error

    def _gone_sentence(self) -> str:
        what = "is gone" if self.opened_at else "did not come up"
        advice = "" if self.opened_at else self.peer.advice
        return f"{self.name} {what}: {(self.why or self.peer.story).rstrip('.')}.{advice}"

    def _end_with(self, why: str) -> None:
        """Keep the first reason."""
        self.why = self.why or why


def _declared_effect(tool: types.Tool) -> ToolEffect | Literal[""]:
    """The effect that a tool declares.

    The effect that it declares is believed, because the operator chose the server, unless a standard hint contradicts
    it. Those hints can only make a replay more careful: a tool that only reads may still depend on its session.
    """
    hints = tool.annotations
    writes = hints is not None and hints.read_only_hint is False
    if hints is not None and writes and hints.open_world_hint is True:
        return "outside"
    declared = (tool.meta or {}).get(EFFECT_KEY)
    if declared == "pure" and writes:
        return "session"
    for effect in get_args(ToolEffect):
        if declared == effect:
            return cast(ToolEffect, effect)
    return ""


def _reads_only(hints: types.ToolAnnotations | None) -> bool:
    """Whether the hints say that a tool changes nothing. An idempotent tool does not count, because it may still delete
    something once."""
    if hints is None:
        return False
    return hints.read_only_hint is True or (hints.idempotent_hint is True and hints.destructive_hint is False)


def _example(tool: types.Tool) -> dict[str, Any] | None:
    found = (tool.meta or {}).get(EXAMPLE_KEY)
    return found if isinstance(found, dict) else None


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
