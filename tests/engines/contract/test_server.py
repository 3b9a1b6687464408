"""A real SGLang server under its unit: refusals, updates, and its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from agentrl.engines import manifest as manifests
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import (
    EngineBusyError,
    EngineCall,
    EngineError,
    EngineGoneError,
    Generated,
    Sampling,
    WeightsRefusedError,
)
from agentrl.engines.server_engine import Held
from agentrl.engines.sglang.server_process import SglangServer
from agentrl.engines.sglang.sglang_engine import SglangEngine
from tests.engines.conftest import Weights
from tests.engines.contract.fixtures import TOKEN, begun
from tests.engines.contract.servers import UP_WITHIN_S
from tests.waiting import aeventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900), pytest.mark.sglang]
PROMPT = [7, 8, 9, 10]
GREEDY = Sampling(max_new_tokens=5, temperature=0.0)
LONG = Sampling(max_new_tokens=240, temperature=2.0)
TRIES = 5


async def serves(server: SglangEngine, client: HttpEngine, weights: Weights, version: int) -> None:
    """Check that the server answers calls with these weights and this version."""
    made = await client.generate(EngineCall("asked", PROMPT, GREEDY, deadline_s=60))
    assert made.ids == weights.greedy(PROMPT, 5)[: len(made.ids)]
    assert {found for found, _ in made.versions} == {version}
    assert (await server.load()).version == version


@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
async def test_files_that_are_not_as_announced_are_refused_before_the_server_sees_them(
    server: SglangEngine, client: HttpEngine, first: Weights, second: Weights, tmp_path: Path, how: str
) -> None:
    await server.update(str(first.path), 1)
    announced = second.manifest()
    directory = Path(shutil.copytree(second.path, tmp_path / "v2"))
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    match how:
        case "cut":
            file.write_bytes(whole[: len(whole) // 2])
        case "changed":
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case _:
            file.unlink()
    with pytest.raises(WeightsRefusedError, match=r"model\.safetensors"):
        await server.update(str(directory), 2, announced)
    await serves(server, client, first, 1)


async def test_weights_with_another_canary_are_replaced_by_the_version_before(
    server: SglangEngine, client: HttpEngine, first: Weights, second: Weights, tmp_path: Path
) -> None:
    await server.update(str(first.path), 1)
    directory = Path(shutil.copytree(second.path, tmp_path / "v2"))
    true = second.manifest()
    wrong = msgspec.structs.replace(true, canary=first.manifest().canary)
    manifests.write(directory, wrong)
    with pytest.raises(WeightsRefusedError, match="the canary differs"):
        await server.update(str(directory), 2, wrong)
    await serves(server, client, first, 1)
    await server.update(str(directory), 2, true)
    await serves(server, client, second, 2)


async def test_a_stale_cache_and_unchanged_weights_are_refused(
    server: SglangEngine, client: HttpEngine, first: Weights, second: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.update(str(first.path), 1)
    load, inner = server._load_into, server._server
    assert inner is not None
    flush, stale = inner.client.flush, [True]

    async def without_flush(running: SglangServer, wanted: Held, *, flush: bool) -> None:
        await load(running, wanted, flush=flush and not stale)
        stale.clear()

    async def no_flush(within_s: float = 60) -> None:
        if not stale:
            await flush(within_s)

    monkeypatch.setattr(server, "_load_into", without_flush)
    monkeypatch.setattr(inner.client, "flush", no_flush)
    with pytest.raises(WeightsRefusedError, match="with a cache that was computed before"):
        await server.update(str(second.path), 2)
    monkeypatch.undo()
    await serves(server, client, first, 1)

    async def nothing(running: SglangServer, wanted: Held, *, flush: bool) -> None:
        """Load nothing, like a server that reports new weights which it does not have."""

    true = second.manifest()
    old = [first.log_probs(ids) for ids in true.canary.ids]
    known = msgspec.structs.replace(true, canary=msgspec.structs.replace(true.canary, before=old))
    with monkeypatch.context() as patch:
        patch.setattr(server, "_load_into", nothing)
        with pytest.raises((WeightsRefusedError, EngineGoneError), match="of the version before"):
            await server.update(str(second.path), 2, known)
    await server.update(str(first.path), 1)


async def updated_during_a_call(
    server: SglangEngine, client: HttpEngine, first: Weights, second: Weights
) -> tuple[Generated, list[Generated], int]:
    """Returns the call, the calls that began during the update, and how many calls the server refused meanwhile."""
    await server.update(str(first.path), 1)
    call = await begun(client, "long", PROMPT, LONG)
    update = asyncio.create_task(server.update(str(second.path), 2))
    between: list[Generated] = []
    refusals = 0

    async def asked_until_it_is_there() -> bool:
        nonlocal refusals
        try:
            between.append(await client.generate(EngineCall("between", PROMPT, GREEDY, deadline_s=60)))
        except EngineBusyError:
            refusals += 1
        return update.done()

    await aeventually(asked_until_it_is_there, within_s=UP_WITHIN_S, every_s=0)
    await update
    return await call, between, refusals


@pytest.mark.parametrize(("way", "calls"), [("group", "retract"), ("group", "in_place"), ("files", "abort")])
async def test_calls_go_on_after_a_load_with_the_version_of_each_token_and_none_begins_during_it(
    server: SglangEngine,
    client: HttpEngine,
    first: Weights,
    second: Weights,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    calls: str,
) -> None:
    monkeypatch.setattr(server, "_way", way)
    monkeypatch.setattr(server, "_engines", server._engines.model_copy(update={"at_update": calls}))
    for _ in range(TRIES):
        made, between, refusals = await updated_during_a_call(server, client, first, second)
        assert server._way == way, "it fell back to files"
        if calls == "abort" or len(made.versions) > 1:
            break  # otherwise the call ended before the load began
    assert [version for version, _ in made.versions] == ([1] if calls == "abort" else [1, 2])
    before = made.versions[0][1]
    if calls == "retract":
        # The cache of the weights before is not used any more.
        ids = [*PROMPT, *made.ids]
        expected = [first.log_probs(ids, 2.0), second.log_probs(ids, 2.0)]
        kept = [*expected[0][3 : 3 + before], *expected[1][3 + before :]]
        assert max(abs(a - b) for a, b in zip(kept, made.log_probs, strict=True)) < 1e-3
    # A call that the load stopped at once has no token.
    assert all([version for version, _ in one.versions] in ([1], [1, 2], [2]) or not one.ids for one in between)
    # Otherwise the first of these calls may wait for the whole update.
    assert refusals or calls != "abort"
    await serves(server, client, second, 2)


async def test_the_cache_is_flushed_as_soon_as_no_call_is_in_it(server: SglangEngine, client: HttpEngine) -> None:
    async def held() -> asyncio.Task[Generated] | None:
        """A call that is paused in place; None if it had all its tokens before the pause, as on a busy machine."""
        call = await begun(client, "long", PROMPT, LONG)
        await server.pause("in_place")
        # The load does not show the call: the server updates it every few steps, and a paused server makes no steps.
        try:
            await client.flush(0)
        except EngineBusyError as busy:
            refusals.append(busy.message)
            return call
        await server.resume()
        await call
        return None

    refusals = list[str]()
    call = await aeventually(held, every_s=0)
    assert "did not flush its cache" in refusals[-1]
    flush = asyncio.create_task(client.flush(60))
    await server.resume()
    await call
    await flush


async def test_a_paused_engine_is_still_paused_after_an_update(
    server: SglangEngine, client: HttpEngine, first: Weights, second: Weights
) -> None:
    await server.update(str(first.path), 1)
    before = await begun(client, "stands", PROMPT, LONG)
    await server.pause("in_place")
    await server.update(str(second.path), 2)
    call = asyncio.create_task(client.generate(EngineCall("waits", PROMPT, GREEDY, deadline_s=120)))
    done, _ = await asyncio.wait([call], timeout=0.5)
    assert not done
    await server.resume()
    assert (await call).ids
    assert {version for version, _ in (await before).versions} <= {1, 2}


async def test_no_token_of_refused_weights_leaves_the_server(
    server: SglangEngine, client: HttpEngine, first: Weights, second: Weights
) -> None:
    await server.update(str(first.path), 1)
    wrong = msgspec.structs.replace(second.manifest(), canary=first.manifest().canary)
    streamed = await begun(client, "streamed", PROMPT, LONG)
    whole = asyncio.create_task(client.generate(EngineCall("whole", PROMPT, LONG, deadline_s=120)))
    await aeventually(lambda: _running(client, 2))
    with pytest.raises(WeightsRefusedError, match="the canary differs"):
        await server.update(str(second.path), 2, wrong)
    for answer in await asyncio.gather(streamed, whole, return_exceptions=True):
        if isinstance(answer, EngineError):
            assert "refused" in answer.message
        else:
            # This call had its last token before the update.
            assert isinstance(answer, Generated)
            assert {version for version, _ in answer.versions} == {1}
    await serves(server, client, first, 1)


async def _running(client: HttpEngine, count: int) -> bool:
    load = await client.load()
    return load.running + load.waiting >= count


async def test_the_token_is_in_no_command_line(server: SglangEngine) -> None:
    leader = psutil.Process(server.pid)
    for process in [leader, *leader.children(recursive=True)]:
        assert TOKEN not in " ".join(process.cmdline())
        assert TOKEN not in process.environ().values()


async def test_the_death_of_a_server_is_noticed_and_no_process_is_left(server: SglangEngine) -> None:
    """The last test: it leaves no server."""
    assert server.pid is not None
    leader = psutil.Process(server.pid)
    others = leader.children(recursive=True)
    assert others
    os.kill(leader.pid, signal.SIGKILL)

    def is_noticed() -> bool:
        try:
            server.check()
        except EngineGoneError:
            return True
        return False

    await aeventually(is_noticed)
    with pytest.raises(EngineGoneError, match="ended with -9"):
        server.check()
    with pytest.raises(EngineGoneError):
        await server.load()
    await server.close()
    await aeventually(
        lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in others)
    )


async def test_a_server_that_cannot_start_fails_immediately(tmp_path: Path, sglang_python: str) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    server = await SglangServer.start(
        sglang_python,
        ["--no-such-argument"],
        port=1,
        token=TOKEN,
        token_file=token_file,
        environment=dict(os.environ),
    )
    with pytest.raises(EngineGoneError, match="ended with 2"):
        await server.until_up(600)
    await server.close()
