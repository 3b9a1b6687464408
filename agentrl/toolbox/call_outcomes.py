"""One call to a server, and the classification of its end.

Invariants:
- Only this module decides whose fault a failed call is, by the configuration of its server.
- A timeout shorter than the server's own is no evidence against the tool.
- If a crash hits several calls, it is the infrastructure's fault.
- A server gets the trace of each call in its metadata, as MCP defines it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
import msgspec

from agentrl.config.data_plane import ToolServer
from agentrl.policies.outcomes import AnswerStatus, Blame, tool_fault
from agentrl.toolbox.api_messages import CallAnswer
from agentrl.toolbox.mcp_connection import (
    CALL_KEY,
    SESSION_KEY,
    CallRejectedError,
    CallTimedOutError,
    Connection,
    ConnectionFailedError,
    ServerFaultError,
    SessionForgottenError,
)
from agentrl.toolbox.result_text import cut, declared_fault, images_of, text_of
from agentrl.tracing import spans, trace_context

METHOD = "tools/call"


async def call_server(
    connection: Connection,
    tool: str,
    arguments: dict[str, Any],
    config: ToolServer,
    *,
    session: str,
    call: str,
    timeout_s: float,
) -> CallAnswer:
    """Call a tool; every failure of the server becomes an answer. Raises SessionForgottenError."""
    with spans.span(f"{METHOD} {tool}", kind="client", mcp__method__name=METHOD, gen_ai__tool__name=tool) as span:
        span.set(gen_ai__operation__name="execute_tool", gen_ai__tool__call__id=call)
        meta = {SESSION_KEY: session, CALL_KEY: call} if config.session == "keyed" else {}
        answer = await _called(connection, tool, arguments, config, meta | trace_meta(), timeout_s=timeout_s)
        if answer.status not in ("ok", "tool_error"):
            span.fail(answer.status)
        return answer


def trace_meta() -> dict[str, str]:
    """The current trace, under the key that MCP has for it."""
    context = trace_context.current()
    return {} if context is None else {trace_context.HEADER: context.header()}


async def _called(
    connection: Connection,
    tool: str,
    arguments: dict[str, Any],
    config: ToolServer,
    meta: Mapping[str, str],
    *,
    timeout_s: float,
) -> CallAnswer:
    means: Blame
    try:
        result = await connection.call(tool, arguments, meta=meta, timeout_s=timeout_s)
    except CallTimedOutError as late:
        means = config.timeout_means if timeout_s >= config.timeout_s else "infrastructure"
        return _failed("timeout", late.message, timeout_means=means)
    except CallRejectedError as rejected:
        return _failed("tool_error", rejected.message, most_chars=config.result_max_chars)
    except ServerFaultError as failed:
        return _failed(
            "lost", failed.message, "server", crash_means=config.crash_means, most_chars=config.result_max_chars
        )
    except SessionForgottenError:
        raise
    except ConnectionFailedError as gone:
        means = config.crash_means if gone.alone else "infrastructure"
        lost = _failed("lost", gone.message, "server", crash_means=means)
        return msgspec.structs.replace(lost, alone=gone.alone)
    return _of_result(result, config.result_max_chars)


def _of_result(result: types.CallToolResult, most_chars: int) -> CallAnswer:
    images = images_of(result)
    content, left_out = cut(text_of(result, images), most_chars)
    if not result.is_error:
        return CallAnswer(status="ok", content=content, images=images, left_out=left_out)
    fault = "infrastructure" if declared_fault(result) == "infrastructure" else tool_fault("tool_error")
    return CallAnswer(status="tool_error", error_class=fault, content=content, left_out=left_out)


def _failed(
    status: AnswerStatus,
    sentence: str,
    reason: str = "",
    *,
    timeout_means: Blame = "infrastructure",
    crash_means: Blame = "infrastructure",
    most_chars: int = 16_384,
) -> CallAnswer:
    fault = tool_fault(status, reason, timeout_means=timeout_means, crash_means=crash_means)
    content, left_out = cut(sentence, most_chars)
    return CallAnswer(status=status, error_class=fault, content=content, reason=reason, left_out=left_out)
