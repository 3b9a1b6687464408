"""Handlers are chosen by path and method, and only behind the guard."""

from __future__ import annotations

import logging
import os
import socket
import stat
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from agentrl.http.http_client import HttpClient
from agentrl.http.token_server import Application, Guard, RequestError, Route, listening


async def named(request: Request) -> Response:
    return Response(f"{request.method} {request.path_params.get('name', '')}")


async def broken(request: Request) -> Response:
    raise OSError("/etc/passwd")


def sentence(failed: Exception) -> Response | None:
    return Response(failed.message, failed.status) if isinstance(failed, RequestError) else None


async def test_path_is_answered_by_its_method_and_only_behind_the_guard() -> None:
    routes = [
        Route("/things", "GET", named),
        Route("/things", "POST", named),
        Route("/thing/{name:path}", "GET", named),
        Route("/thing/{name:path}", "DELETE", named),
        Route("/broken", "GET", broken),
    ]
    wanted = {
        ("GET", "/things"): (200, b"GET "),
        ("POST", "/things"): (200, b"POST "),
        ("GET", "/thing/a%2Fb%23c"): (200, b"GET a/b#c"),
        ("DELETE", "/thing/a"): (200, b"DELETE a"),
        ("POST", "/thing/a"): (405, b"/thing/a has other methods than POST."),
        ("GET", "/nothing"): (404, b"There is no path /nothing."),
        ("GET", "/broken"): (500, b"The door failed; its log has the traceback."),
    }
    without = (401, b"The door requires the token of its run.")
    guard = Guard("The door", logging.getLogger("door"), sentence, token="right")
    async with listening(Application(routes, guard)) as url:
        for key, expected in (("right", wanted), ("wrong", dict.fromkeys(wanted, without))):
            client = HttpClient(url, {"Authorization": f"Bearer {key}"})
            for (method, path), answer in expected.items():
                async with client.ask(method, path) as reply:
                    assert (reply.status, await reply.read()) == answer, (method, path)
            await client.close()


def options_at(port: int | None) -> set[int]:
    """The values of TCP_NODELAY of the connections that this process has accepted at a port."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as end:
                    if end.getpeername() and end.getsockname()[1] == port:
                        found.add(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    async with listening(Application([Route("/things", "GET", named)], lambda act: act)) as url:
        client = HttpClient(url, {})
        async with client.ask("GET", "/things") as reply:
            await reply.read()
        assert options_at(urlsplit(url).port) == {1}
        await client.close()
