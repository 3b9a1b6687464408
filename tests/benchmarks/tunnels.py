"""Measures calls to a service on another host: through the tunnels of both hosts, next to the same calls without.

The service and both tunnels are processes of their own on this machine, so there is no network in the figures, only
what encryption and the two further processes cost. A call sends 1,000 tokens and gets 500 with their log-probs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentrl.http.http_client import HttpClient
from agentrl.http.run_hosts import Way
from agentrl.http.token_server import Application, Route, listening
from agentrl.tunnels.authority import Authority
from tests.benchmarks.report import Outcome, median

CALL_S = 0.05
"""The duration of a short completion on a GPU."""
SENT = json.dumps(list(range(100_000, 101_000))).encode()
ANSWER = json.dumps([[-1.2345678, 100_000 + number, None] for number in range(500)]).encode()
LARGE = bytes(8 << 20)
ROUNDS, CALLS, CALLERS, LARGE_CALLS = 5, 40, 32, 8
MOST = 1.1


def measure() -> Outcome:
    outcome = Outcome("calls to an engine on another host")
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = str(uuid.uuid4())
        port = held.enter_context(_service(run))
        way = held.enter_context(_tunnels(Path(folder), run))
        plain, through = asyncio.run(_both(port, way))
    for name, unit in (("one caller", "ms"), (f"{CALLERS} callers", "ms")):
        outcome.within(f"a call of {CALL_S * 1e3:g} ms, {name}", through[name], unit, "without", plain[name], MOST)
    outcome.faster("a call that is answered at once", through["at once"], "ms", "without", plain["at once"])
    outcome.share("bytes of large answers", through["large"], "MB/s", "without", plain["large"], 0)
    return outcome


async def _both(port: int, way: Way) -> tuple[dict[str, float], dict[str, float]]:
    clients = [HttpClient(f"http://127.0.0.1:{port}", {}), HttpClient(f"http://b:{port}", {}, way=way)]
    try:
        rounds = [[await _figures(client) for client in clients] for _ in range(ROUNDS)]
        plain, through = ({key: median([each[at][key] for each in rounds]) for key in rounds[0][0]} for at in (0, 1))
        return plain, through
    finally:
        for client in clients:
            await client.close()


async def _figures(client: HttpClient) -> dict[str, float]:
    async def timed(path: str) -> float:
        began = time.perf_counter()
        async with client.ask("POST", path, SENT) as reply:
            await reply.read()
        return 1e3 * (time.perf_counter() - began)

    async def caller() -> list[float]:
        return [await timed("/call") for _ in range(CALLS // 4)]

    await asyncio.gather(*(timed("/at-once") for _ in range(CALLERS)))  # opens the connections
    many = await asyncio.gather(*(caller() for _ in range(CALLERS)))
    large = [await timed("/large") for _ in range(LARGE_CALLS)]
    return {
        "one caller": median([await timed("/call") for _ in range(CALLS)]),
        f"{CALLERS} callers": median([each for times in many for each in times]),
        "at once": median([await timed("/at-once") for _ in range(CALLS)]),
        "large": len(LARGE) / 1e3 / median(large),
    }


@contextmanager
def _service(run: str) -> Iterator[int]:
    with _process(["tests.benchmarks.tunnels"], run) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _tunnels(folder: Path, run: str) -> Iterator[Way]:
    authority = Authority(folder, run)
    with ExitStack() as held:
        processes: dict[str, subprocess.Popen[bytes]] = {}
        said: dict[str, dict[str, Any]] = {}
        for host in ("a", "b"):
            command = ["daemons.tunnel", "--host", host, "--entrance", str(folder / f"{host}.sock")]
            process = processes[host] = held.enter_context(_process([*command, "--bind", "127.0.0.1"], run))
            assert process.stdout is not None
            said[host] = json.loads(process.stdout.readline())
        peers = {host: f"127.0.0.1:{each['port']}" for host, each in said.items()}
        for host, process in processes.items():
            certificate = authority.issue(host, said[host]["request"])
            told = {"certificate": certificate, "authority": authority.trusted, "peers": peers}
            assert process.stdin is not None
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.flush()
        yield Way(folder / "a.sock", "a")


@contextmanager
def _process(module: list[str], run: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its stdin is closed, which the exit does."""
    env = {**os.environ, "AGENTRL_RUN": run}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", *module], env=env, stdin=pipe, stdout=pipe) as process:
        yield process


async def _serve() -> None:
    async def call(request: Request) -> Response:
        await request.body()
        await asyncio.sleep(CALL_S)
        return Response(ANSWER)

    async def at_once(request: Request) -> Response:
        await request.body()
        return Response(ANSWER)

    async def large(request: Request) -> Response:
        await request.body()
        return Response(LARGE)

    routes = [Route("/call", "POST", call), Route("/at-once", "POST", at_once), Route("/large", "POST", large)]
    async with listening(Application(routes, lambda act: act)) as url:
        print(url.rpartition(":")[2], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
