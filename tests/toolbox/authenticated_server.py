"""An MCP server over HTTP that requires a token and a tenant: `tests.toolbox.authenticated_server PORT TOKEN`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from mcp.server import MCPServer

server = MCPServer("guarded", log_level="ERROR")


@server.tool()
def whisper() -> str:
    """Returns text that needs the token."""
    return "you may come in"


class Guard:
    """Accepts only requests with the token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._wanted = {(b"authorization", f"Bearer {token}".encode()), (b"x-tenant", b"shop")}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._wanted <= set(scope["headers"]):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)


if __name__ == "__main__":
    uvicorn.run(Guard(server.streamable_http_app(), sys.argv[2]), port=int(sys.argv[1]), log_level="error")
