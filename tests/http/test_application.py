"""Handlers are chosen by path and method, and only behind the guard."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from agentrl.http.http_client import HttpClient
from agentrl.http.token_server import Act, Application, Route, listening


async def named(request: Request) -> Response:
    return Response(f"{request.method} {request.path_params.get('name', '')}")


def guarded(act: Act) -> Act:
    async def answer(request: Request) -> Response:
        return await act(request) if request.headers.get("key") == "right" else Response(status_code=401)

    return answer


async def test_path_is_answered_by_its_method_and_only_behind_the_guard() -> None:
    routes = [
        Route("/things", "GET", named),
        Route("/things", "POST", named),
        Route("/thing/{name:path}", "GET", named),
        Route("/thing/{name:path}", "DELETE", named),
    ]
    wanted = {
        ("GET", "/things"): (200, b"GET "),
        ("POST", "/things"): (200, b"POST "),
        ("GET", "/thing/a%2Fb%23c"): (200, b"GET a/b#c"),
        ("DELETE", "/thing/a"): (200, b"DELETE a"),
        ("POST", "/thing/a"): (405, b""),
        ("GET", "/nothing"): (404, b""),
    }
    async with listening(Application(routes, guarded)) as url:
        for key, expected in (("right", wanted), ("wrong", dict.fromkeys(wanted, (401, b"")))):
            client = HttpClient(url, {"Key": key})
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
