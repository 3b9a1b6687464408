"""A server of another process that has spans of its callers' traces, as engines and toolboxes have."""

from __future__ import annotations

import asyncio
import sys

from starlette.requests import Request
from starlette.responses import Response

from agentrl.http import kept_traces
from agentrl.http.token_server import Act, Application, Route, bears, listening
from agentrl.tracing import otlp_export, spans

TOKEN = "a-token-for-tests-only"


async def work(request: Request) -> Response:
    with spans.span("serve", kind="server"):
        return Response(status_code=200)


def guarded(act: Act) -> Act:
    async def answer(request: Request) -> Response:
        return await act(request) if bears(request, TOKEN) else Response(status_code=401)

    return answer


async def main(receiver: str) -> None:
    otlp_export.start(receiver, {}, "engine", {})
    async with listening(Application([Route("/work", "POST", work), kept_traces.ROUTE], guarded)) as url:
        print(url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
