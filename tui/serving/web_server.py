"""Implements the HTTP server between browser pages and their consoles.

Invariants:
- Every request passes `AccessPolicy` before anything is looked up.
- A page loads nothing from elsewhere.
- At most `MOST` consoles run at once.
- No console outlives its page or this server.

The server of textual-serve does not fit this policy: it waits without a deadline for a console that neither reads nor
ends, one malformed message ends its page, and it prints a failed start on the server. So only its browser files are
used.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from agentrl.errors import ConfigError, UsageError
from tui.serving.access import TOKEN, AccessPolicy, Decision, address
from tui.serving.console_process import ConsoleProcess

MOST = 8
TOO_MANY = f"{MOST} consoles are open already. Close one."
MOST_MESSAGE_BYTES = 1 << 20
WIDTHS, HEIGHTS = (20, 500), (5, 300)
OWN_FILES = {"page.css": "text/css", "page.js": "text/javascript"}
HERE = Path(__file__).parent

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    def __init__(self, access: AccessPolicy, options: Sequence[str]) -> None:
        self._access = access
        self._options = tuple(options)
        self._open: set[web.WebSocketResponse] = set()
        self._assets = _assets()

    def application(self) -> web.Application:
        made = web.Application(middlewares=[self._check], client_max_size=MOST_MESSAGE_BYTES)
        made.router.add_get("/", self._page)
        made.router.add_get("/ws", self._socket)
        made.router.add_get("/own/page.css", self._own)
        made.router.add_get("/own/page.js", self._own)
        made.router.add_static("/static", self._assets)
        made.on_shutdown.append(self._close_all)
        return made

    # ---- access ----

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        verdict = self._access.judge(
            host=request.headers.get("Host", ""),
            origin=request.headers.get("Origin"),
            token=request.query.get(TOKEN),
            cookies=request.cookies,
            is_socket=request.path == "/ws",
        )
        answer: web.StreamResponse
        if verdict.decision is Decision.REFUSED:
            answer = web.Response(status=403, text=f"{verdict.why}\n")
        elif verdict.decision is Decision.REDIRECTED:
            answer = web.Response(status=303, headers={"Location": "/"})
            answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="Strict")
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as refused:
                answer = web.Response(status=refused.status, text=f"{refused.reason}\n")
        if not answer.prepared:
            answer.headers.update(self._headers(request))
        return answer

    def _headers(self, request: web.Request) -> dict[str, str]:
        own = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'"
        # A foreign host name is not repeated in the answer.
        socket = f" ws://{request.host}" if request.host.lower() in self._access.names else ""
        return {
            "Content-Security-Policy": f"{own}; img-src 'self' data:; connect-src 'self'{socket}",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }

    # ---- pages ----

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if len(self._open) >= MOST:
            return web.Response(status=503, text=f"{TOO_MANY}\n")
        page = (HERE / "page.html").read_text()
        return web.Response(text=page.replace("{socket}", f"ws://{request.host}/ws"), content_type="text/html")

    async def _own(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        return web.Response(text=(HERE / name).read_text(), content_type=OWN_FILES[name])

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if len(self._open) >= MOST:
            return web.Response(status=503, text=f"{TOO_MANY}\n")
        page = web.WebSocketResponse(heartbeat=15, max_msg_size=MOST_MESSAGE_BYTES)
        self._open.add(page)
        try:
            await page.prepare(request)
            width = within(request.query.get("width"), WIDTHS, 80)
            height = within(request.query.get("height"), HEIGHTS, 24)
            child = await ConsoleProcess.start(self._options, width, height)
            drawing = asyncio.create_task(_draw(child, page), name=f"console {child.pid}")
            try:
                async for message in page:
                    if message.type is WSMsgType.TEXT:
                        await handle_message(message.data, child, page)
            except TimeoutError:
                # A console that does not read can no longer serve its page: end both.
                pass
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)
                await asyncio.shield(child.end())
        finally:
            self._open.discard(page)
        return page

    async def _close_all(self, _: web.Application) -> None:
        await asyncio.gather(*(page.close() for page in list(self._open)), return_exceptions=True)


async def _draw(child: ConsoleProcess, page: web.WebSocketResponse) -> None:
    try:
        async for piece in child.output():
            await page.send_bytes(piece)
    except ConnectionError:
        return
    finally:
        await page.close()


async def handle_message(text: str, child: ConsoleProcess, page: web.WebSocketResponse) -> None:
    """Handle one message of a page: keys, its size, its focus. Ignores anything else.

    Raises TimeoutError if the console does not read.
    """
    try:
        kind, *more = json.loads(text)
        value: Any = more[0] if more else None
    except (ValueError, TypeError, RecursionError):
        return
    if kind == "stdin" and isinstance(value, str):
        await child.send_keys(value)
    elif kind == "resize" and isinstance(value, dict):
        width, height = within(value.get("width"), WIDTHS, 80), within(value.get("height"), HEIGHTS, 24)
        await child.send_event(type="resize", width=width, height=height)
    elif kind in ("focus", "blur"):
        await child.send_event(type=kind)
    elif kind == "ping":
        await page.send_json(["pong", value])


def within(value: Any, limits: tuple[int, int], default: int) -> int:
    try:
        return max(limits[0], min(limits[1], int(value)))
    except (TypeError, ValueError, OverflowError):
        return default


def _assets() -> Path:
    """xterm.js and its files, from the package textual-serve."""
    found = importlib.util.find_spec("textual_serve")
    if found is None or found.origin is None:
        raise ConfigError("The browser files of the console are missing.", hint="pip install 'agentrl[web]' brings it.")
    return Path(found.origin).parent / "static"


async def serve(listen: str, options: Sequence[str], *, as_json: bool) -> None:
    """Serve until SIGINT or SIGTERM."""
    host, port = address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as taken:
        why = os.strerror(taken.errno).lower() if taken.errno else str(taken)
        hint = "--listen 127.0.0.1:0 takes any free port."
        raise UsageError(f"Cannot listen on {listen}: {why}.", hint=hint) from taken
    access = AccessPolicy(listening.getsockname()[1])
    runner = web.AppRunner(Server(access, options).application(), access_log=None, handle_signals=False)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, shutdown_timeout=5.0).start()
        shown = f"[{host}]" if ":" in host else host
        _print_url(f"http://{shown}:{access.port}/?{TOKEN}={access.token}", as_json=as_json)
        await ended.wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await runner.cleanup()


def _print_url(url: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": url}), flush=True)
    else:
        print(url, flush=True)
        print("Anyone who has this address sees the run. Ctrl-C ends all pages; the run goes on.", file=sys.stderr)
