"""One call of a tool server: its turn, its connection, the breaker's permit, and the second call of a doubtful failure.

Invariants:
- A permit of the breaker is given back on every way out.
- A call that did not run because its server forgot the connection is tried once more; a call that may have run is not.
- The breaker neither stops nor counts replays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from agentrl.policies.status_tables import BreakerStatus
from agentrl.toolbox.api_messages import CallAnswer, QuotaError, ToolInfo, UnavailableError
from agentrl.toolbox.call_outcomes import call_server
from agentrl.toolbox.call_registry import Call
from agentrl.toolbox.mcp_connection import Connection, SessionForgottenError
from agentrl.toolbox.sessions import MOST_FAILURE_CHARS, Lease, Server

TRIES = 2
"""How often to try a call that did not run because its server had forgotten the connection."""


def refuse_if_broken(server: Server) -> None:
    """Refuse calls to a server whose breaker is open instead of queueing them."""
    if server.breaker.wait_s(time.monotonic()) > 0.0:
        raise _broken(server)


def _broken(server: Server) -> UnavailableError:
    wait_s = server.breaker.wait_s(time.monotonic())
    return UnavailableError(
        f"{server.name} failed too often; it gets no calls for {wait_s:.1f} s.", retry_after_s=max(0.1, wait_s)
    )


async def call_in_turn(call: Call, tool: ToolInfo, lease: Lease, requested_s: float, *, replays: bool) -> CallAnswer:
    """Waits for a turn of the server. A ToolboxError means that the call did not run."""
    server = lease.server
    server.waiting += 1
    try:
        async with asyncio.timeout(float(server.config.queue_s)):
            await server.turns.acquire()
    except TimeoutError:
        busy = f"{server.name} was busy for {server.config.queue_s:g} s with {server.at_once} calls at once"
        raise QuotaError(f"{busy} (tools.{server.name}.calls).", retry_after_s=1.0) from None
    finally:
        server.waiting -= 1
    server.running += 1
    try:
        limit_s = server.config.timeout_s
        timeout_s = min(limit_s, requested_s) if requested_s > 0.0 else limit_s
        # No breaker, no statistics and no second call for a replay, because it says nothing about the tool in episodes.
        with_connection = _called if replays else _call_with_breaker
        for _ in range(TRIES):
            connection = await lease.connection()
            # The lease decides whether a forgotten session may have another connection.
            with contextlib.suppress(SessionForgottenError):
                return await with_connection(call, tool, server, connection, timeout_s)
        raise UnavailableError(f"{server.name} forgets its connections at once.", retry_after_s=1.0)
    finally:
        server.running -= 1
        server.turns.release()


async def _call_with_breaker(
    call: Call, tool: ToolInfo, server: Server, connection: Connection, timeout_s: float
) -> CallAnswer:
    permit = server.breaker.admit(time.monotonic())
    if permit is None:
        raise _broken(server)
    limit_s = server.config.timeout_s
    try:
        answer = await _called(call, tool, server, connection, timeout_s)
        # A shorter time limit of the caller is no evidence against the server.
        hurried = answer.status == "timeout" and timeout_s < limit_s
        if hurried:
            answer = server.retry.unproven(answer, "no: hurried")
        elif server.breaker.state(time.monotonic()) is not BreakerStatus.CLOSED:
            answer = server.retry.unproven(answer, "no: breaker")
        else:
            answer = await server.retry.judge(call, tool, answer, timeout_s)
    except BaseException:
        server.breaker.abandoned(permit)
        raise
    now = time.monotonic()
    if hurried:
        server.breaker.abandoned(permit)
    else:
        server.breaker.ended(permit, now, failed=answer.error_class == "infrastructure")
    if answer.error_class == "infrastructure":
        server.last_failure = answer.content[:MOST_FAILURE_CHARS]
    broken = answer.error_class == "infrastructure" and server.breaker.state(now) is not BreakerStatus.CLOSED
    return msgspec.structs.replace(answer, breaker_open=broken)


async def _called(call: Call, tool: ToolInfo, server: Server, connection: Connection, timeout_s: float) -> CallAnswer:
    """Call the server and measure. A silent connection of many sessions is checked."""
    began = time.monotonic()
    answer = await call_server(
        connection,
        tool.name,
        call.arguments,
        server.config,
        session=call.session,
        call=call.id,
        timeout_s=timeout_s,
    )
    if answer.status in ("timeout", "lost") and server.config.session != "process":
        connection.doubt()
    return msgspec.structs.replace(answer, latency_s=time.monotonic() - began)
