"""Handlers are chosen by path and method, and only behind the guard."""

from __future__ import annotations

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
