"""An MCP server with the official SDK, version 1 or 2, over streamable HTTP and SSE at once: `SCRIPT PORT`.

It runs in environments of its own, so it imports nothing of this checkout.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

try:
    from mcp.server import MCPServer as Server
    from mcp.server.mcpserver import Context
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server

from mcp.server.streamable_http import EventMessage, EventStore


class Events(EventStore):
    """All events, for clients that resume a stream."""

    def __init__(self) -> None:
        self._all: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._all.append((stream_id, message))
        return str(len(self._all) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        stream, _ = self._all[int(last_event_id)]
        for number, (of, message) in enumerate(self._all):
            if number > int(last_event_id) and of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def make() -> tuple[Any, Any]:
    try:
        server = Server("both", event_store=Events(), retry_interval=50, log_level="ERROR")
        return server, server.streamable_http_app()
    except TypeError:
        server = Server("both", log_level="ERROR")
        return server, server.streamable_http_app(event_store=Events(), retry_interval=50)


server, app = make()
authorizations: list[str] = []


@server.tool()
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


@server.tool()
async def big(size: int) -> str:
    """Returns a long text."""
    return "<" + "x" * (size - 2) + ">"


@server.tool()
async def resumed(context: Context) -> str:
    """Closes the stream of its own answer, which the client must resume."""
    await context.close_sse_stream()
    return "after the break"


async def _redirect(request: Request) -> Response:
    return RedirectResponse(request.query_params["to"], status_code=307)


async def _note(request: Request) -> Response:
    authorizations.append(request.headers.get("authorization", ""))
    return PlainTextResponse("\n".join(authorizations))


app.routes.extend(server.sse_app().routes)
app.routes.append(Route("/redirect", _redirect, methods=["GET", "POST"]))
app.routes.append(Route("/note", _note, methods=["GET", "POST"]))

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", timeout_graceful_shutdown=1)
