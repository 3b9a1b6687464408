"""The HTTP listener of the toolbox.

Invariant: it is bound before anybody is told of it, and closed when the body is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette

KEEP_ALIVE_S = 120
LEAVE_WITHIN_S = 3
_BACKLOG = 1024


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the unit."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: Starlette, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the body runs; gives the URL. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LEAVE_WITHIN_S,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="toolbox-http")
        try:
            yield f"http://[{host}]:{taken}" if ":" in host else f"http://{host}:{taken}"
        finally:
            server.should_exit = True
            await serving
