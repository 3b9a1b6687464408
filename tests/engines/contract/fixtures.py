"""The engines under the contract: each test gets one that serves version 1 and is idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from agentrl.config.engines import Engines
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.http_server import build_app
from agentrl.engines.interface import EngineCall, Generated, Sampling
from agentrl.engines.sglang.sglang_engine import SglangEngine
from agentrl.http.free_ports import free_port
from agentrl.http.token_server import listening
from tests.engines.conftest import Weights
from tests.engines.contract import servers
from tests.waiting import aeventually

TOKEN = "a-token-for-tests-only"
CONTEXT = 256


@dataclass
class Subject:
    """An engine under test."""

    kind: str
    url: str
    client: HttpEngine
    gives_memory: bool = True
    """Whether it can release the memory of its cache."""

    @property
    def keeps_cache(self) -> bool:
        """Whether a call that is paused in place continues with the cache of other weights."""
        return self.kind == "sglang"

    async def put(self, weights: Weights) -> None:
        """Update the weights while no call is running. A finished call may stay in the cache of an SGLang server for a
        moment. A server with such a call takes the weights but reports a failure, so flush its cache first."""
        if self.kind == "sglang":
            await self.client.flush()
        await self.client.update(str(weights.path), weights.version)


@pytest.fixture(scope="session")
def sglang_arguments() -> Sequence[str]:
    return servers.ON_PROCESSORS


@pytest.fixture(scope="session")
def sglang_python() -> str:
    return servers.python()


@pytest.fixture(scope="session")
def tolerance() -> float:
    """The limit of differences to the log-probs of transformers in float32."""
    return 1e-4


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(
    first: Weights,
    sglang_arguments: Sequence[str],
    sglang_python: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SglangEngine]:
    """One SGLang server for all tests, because it starts slowly."""
    token_file = tmp_path_factory.mktemp("sglang") / "token"
    token_file.write_text(TOKEN)
    engine = SglangEngine(
        Engines(
            kind="sglang", slots=16, python=sglang_python, args=tuple(sglang_arguments), load_s=servers.UP_WITHIN_S
        ),
        context=CONTEXT,
        port=free_port(),
        token=TOKEN,
        token_file=token_file,
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        await engine.update(str(first.path), 1)
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def sglang_url(server: SglangEngine) -> str:
    return server.url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedded_url(first: Weights) -> AsyncIterator[str]:
    engine = EmbeddedEngine(slots=16, context=CONTEXT)
    engine.start()
    await engine.update(str(first.path), 1)
    async with listening(build_app(engine, TOKEN)) as url:
        yield url
    await engine.close()


@pytest.fixture(params=["embedded", pytest.param("sglang", marks=pytest.mark.sglang)])
def address(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Kind and URL of an engine. Its server starts with the first test that needs it."""
    return request.param, request.getfixturevalue(f"{request.param}_url")


@pytest_asyncio.fixture(loop_scope="session")
async def subject(address: tuple[str, str], first: Weights, sglang_arguments: Sequence[str]) -> AsyncIterator[Subject]:
    kind, url = address
    client = HttpEngine(url, TOKEN)
    subject = Subject(kind, url, client, kind == "embedded" or "--enable-memory-saver" in sglang_arguments)
    if (await client.load()).version != 1:
        await subject.put(first)
    yield subject
    await client.restore_memory()
    await _leave_nothing(client)


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: SglangEngine) -> AsyncIterator[HttpEngine]:
    """The client of the SGLang server that all tests share."""
    made = HttpEngine(server.url, TOKEN)
    yield made
    await _leave_nothing(made)


async def begun(client: HttpEngine, rid: str, ids: Sequence[int], sampling: Sampling) -> asyncio.Task[Generated]:
    """Start a call and wait for its first tokens. The call is streamed, because on a busy machine a poll of the load
    may miss a short call."""
    first = asyncio.Event()

    async def whole() -> Generated:
        parts = []
        async for part in client.stream(EngineCall(rid, ids, sampling, deadline_s=120)):
            parts.append(part)
            first.set()
        return parts[-1]

    call = asyncio.create_task(whole(), name=rid)
    waiting = asyncio.create_task(first.wait())
    try:
        await asyncio.wait([call, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if not first.is_set():
        await call
    return call


async def _leave_nothing(client: HttpEngine) -> None:
    """Ends the calls of a test, also after a failure, and the tasks that wait for them."""
    await client.resume()
    await client.abort("")
    await aeventually(lambda: _idle(client))
    await client.close()


async def _idle(client: HttpEngine) -> bool:
    load = await client.load()
    return load.running == load.waiting == 0
