"""The guard in front of an SGLang server: it stops requests on memory that the server would die of.

The processor build gives up no memory, so a small application stands behind the door here; `make test-gpu` has the
server itself behind it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import CallRefusedError, EngineBusyError, EngineError
from agentrl.engines.sglang.guarded_server import (
    ADAPTER,
    OPEN,
    RELEASE,
    RESTORE,
    Guard,
    Message,
    Receive,
    Send,
    _answer,
)
from agentrl.http.token_server import listening
from tests.waiting import PATIENCE_S, aeventually

TOKEN = "a-token-for-tests-only"
FLUSH = "/flush_cache"


class Behind:
    """The application behind the guard: remembers its requests. Like the server, it flushes no cache while busy."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.is_busy = False
        self.fails: dict[str, int] = {}
        """The status that a path answers; 0 raises an error."""
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.reached.append(scope["path"])
        self.bodies.append((await receive())["body"])
        # Let other requests run.
        await asyncio.sleep(0)
        if scope["path"] == "/generate":
            await self.goes_on.wait()
        status = self.fails.get(scope["path"], 400 if scope["path"] == FLUSH and self.is_busy else 200)
        if not status:
            raise RuntimeError("It broke.")
        await _answer(send, status, "")


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture(params=[True])
async def client(behind: Behind, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HttpEngine]:
    """A client of an open guard. The parameter says whether the server can release memory."""
    file = tmp_path / "http.token"
    file.write_text(f"{TOKEN}\n")
    async with listening(Guard(behind, token_file=file, gives_memory=request.param)) as url:
        client = HttpEngine(url, TOKEN)
        await client.order(OPEN)
        yield client
        await client.close()


async def test_a_busy_server_gets_no_release_of_memory(behind: Behind, client: HttpEngine) -> None:
    behind.is_busy = True
    with pytest.raises(EngineBusyError, match="under way"):
        await client.release_memory()
    await client.order("/generate")
    assert behind.reached == [FLUSH, "/generate"]


async def test_calls_wait_until_there_is_memory_again(behind: Behind, client: HttpEngine) -> None:
    await client.release_memory()
    call = asyncio.create_task(client.order("/generate"))
    assert await client.health(), "the server answers all other requests"
    await client.restore_memory()
    await call
    assert [path for path in behind.reached if path != "/health"] == [FLUSH, RELEASE, RESTORE, "/generate"]


@pytest.mark.parametrize(("path", "status"), [(RELEASE, 500), (RELEASE, 0), (FLUSH, 0)])
async def test_restoring_memory_without_a_release_is_harmless(
    behind: Behind, client: HttpEngine, path: str, status: int
) -> None:
    behind.fails[path] = status
    with pytest.raises(EngineError):
        await client.release_memory()
    await asyncio.wait_for(client.order("/generate"), PATIENCE_S)
    behind.fails.clear()
    await client.release_memory()
    assert behind.reached[-1] == RELEASE, "a release that failed is tried again"


async def test_calls_wait_while_memory_is_not_restored(behind: Behind, client: HttpEngine) -> None:
    await client.release_memory()
    call = asyncio.create_task(client.order("/generate"))
    behind.fails[RESTORE] = 500
    with pytest.raises(EngineError):
        await client.restore_memory()
    assert await client.health()
    assert "/generate" not in behind.reached
    behind.fails.clear()
    await client.restore_memory()
    await asyncio.wait_for(call, PATIENCE_S)


async def test_a_call_that_has_not_reached_the_scheduler_prevents_a_release(behind: Behind, client: HttpEngine) -> None:
    behind.goes_on.clear()
    call = asyncio.create_task(client.order("/generate"))
    await aeventually(lambda: "/generate" in behind.reached)
    with pytest.raises(EngineBusyError, match="under way"):
        await client.release_memory()
    assert behind.reached == ["/generate"]
    behind.goes_on.set()
    await call
    await client.release_memory()
    assert behind.reached == ["/generate", FLUSH, RELEASE]


async def test_a_repeated_message_is_executed_once(behind: Behind, client: HttpEngine) -> None:
    await client.restore_memory()
    await asyncio.gather(client.release_memory(), client.release_memory())
    await asyncio.gather(client.restore_memory(), client.restore_memory())
    await aeventually(lambda: _is_open(client))
    assert [path for path in behind.reached if path != "/generate"] == [FLUSH, RELEASE, RESTORE]


async def _is_open(client: HttpEngine) -> bool:
    await client.order("/generate")
    return True


@pytest.mark.parametrize("client", [False], indirect=True)
async def test_a_server_without_memory_saver_names_the_missing_argument(behind: Behind, client: HttpEngine) -> None:
    with pytest.raises(CallRefusedError, match="started without --enable-memory-saver"):
        await client.release_memory()
    await client.restore_memory()
    await client.order("/generate")
    assert behind.reached == ["/generate"]


async def test_calls_are_computed_by_the_adapter_that_changes_between_them_only(
    behind: Behind, client: HttpEngine
) -> None:
    await client.order("/generate", {"rid": "a"})
    await client.order(ADAPTER, {"name": "v1"})
    behind.goes_on.clear()
    call = asyncio.create_task(client.order("/generate", {"rid": "b", "lora_path": "of the caller"}))
    await aeventually(lambda: len(behind.bodies) == 2)
    with pytest.raises(EngineBusyError, match="their adapter cannot be changed"):
        await client.order(ADAPTER, {"name": "v2"})
    behind.goes_on.set()
    await call
    await client.order(ADAPTER, {"name": "v2"})
    await client.order("/generate", {"rid": "c"})
    assert [json.loads(body).get("lora_path") for body in behind.bodies] == [None, "v1", "v2"]
    # A malformed call ends with its answer and does not delay the next adapter.
    await client._send("POST", "/generate", b"[" * 100_000, PATIENCE_S)
    await client.order(ADAPTER, {"name": "v3"})
