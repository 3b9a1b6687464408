"""Faults of engines, tools and the store during an episode: each has one outcome, and nothing of it is trained."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.http_server import build_app
from agentrl.http import http_client
from agentrl.http.token_server import listening
from agentrl.rollout.chat_format import ChatFormat
from agentrl.store import accounting, database, indexes
from agentrl.store.mongod_server import Mongod
from tests.engines import unverified
from tests.rollout.actors import Prompt
from tests.rollout.conftest import TOKEN, Stage, configuration, unruly_tools
from tests.store.mongod import server_in
from tests.waiting import aeventually

RUBBISH = {
    "a web page": b"<html>It works!</html>",
    "nothing": b"",
    "other JSON": b'{"choices": [{"text": "3"}]}',
    "noise": bytes(range(256)) * 100,
}


@asynccontextmanager
async def babbling(body: bytes, *, endless: bool = False) -> AsyncIterator[str]:
    """The address of a server that answers every request with 200 and this body, or repeats the body endlessly."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                length = 1 << 40 if endless else len(body)
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode())
                while endless:
                    writer.write(body)
                    await writer.drain()
                writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("reply", RUBBISH.values(), ids=RUBBISH)
async def test_an_engine_that_answers_rubbish_fails_the_attempt_and_is_named(stage: Stage, reply: bytes) -> None:
    async with babbling(reply) as url:
        await stage.engine(lambda prompt: "never", url=url)
        await stage.task(n=1)
        async with stage.sampler():
            record = await stage.one()
    assert (record.status, record.outcome, record.outcome_class) == ("failed", "engine_rubbish", "infrastructure")
    assert record.error.startswith("engine-0.1: ")
    assert record.score is None, "a failed attempt has no score, not the score 0"
    assert {call.status for call in await stage.calls()} == {"failed"}
    assert not await stage.data()
    assert not await stage.open_ends()


async def test_an_endless_answer_of_an_engine_is_abandoned(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MOST_BODY_BYTES", 4 << 20)
    async with babbling(b" " * 65536, endless=True) as url:
        await stage.engine(lambda prompt: "never", url=url)
        await stage.task(n=1)
        async with stage.sampler():
            record = await stage.one()
    assert (record.status, record.outcome) == ("failed", "engine_rubbish")
    assert "more than 4 MiB" in record.error


async def test_calls_of_an_engine_that_answers_rubbish_end_at_another_engine(stage: Stage) -> None:
    async with babbling(RUBBISH["other JSON"]) as url:
        await stage.engine(lambda prompt: "never", url=url)
        await stage.engine(lambda prompt: "<answer>3</answer>")
        await stage.task(n=16)
        async with stage.sampler():
            records = await stage.ended(count=16)
    assert {(record.status, record.outcome, record.score) for record in records} == {("scored", "answered", 1.0)}
    calls = await stage.calls()
    assert {call.engine for call in calls if call.status == "done"} == {"engine-1.1"}
    failed = [call for call in calls if call.status == "failed"]
    assert len({call.record for call in failed}) == len(failed), "no record calls the broken engine twice"


async def test_a_tool_that_returns_fifty_megabytes_is_read_by_both_its_ends(stage: Stage) -> None:
    stage.config = configuration(**unruly_tools(result_max_chars=400, timeout_s=60))
    await stage.toolbox()
    big = f"<tool_call>big(chars={50 << 20})</tool_call>"
    engine = await stage.engine(lambda prompt: big if len(prompt.answers) == 1 else "<answer>3</answer>")
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.score, record.turns) == ("answered", 1.0, 2)
    (call,) = await stage.tool_calls()
    assert (call.status, len(call.result)) == ("ok", 400)
    seen = engine.prompts[1].answers[1]
    assert (seen[0], seen[-1]) == ("<", ">")
    assert "characters left out" in seen


async def test_a_result_that_fills_the_context_ends_the_episode_at_that_limit(stage: Stage) -> None:
    """The result is also larger than a document holds inline."""
    stage.config = configuration(**unruly_tools(result_max_chars=300_000, timeout_s=60))
    await stage.toolbox()
    await stage.engine(lambda prompt: f"<tool_call>big(chars={1 << 20})</tool_call>")
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.status, record.outcome, record.outcome_class) == ("scored", "context_full", "limit")
    (call,) = await stage.tool_calls()
    assert call.status == "ok"
    assert len(call.result) < 100_000, "the rest is in chunks"
    assert await stage.db.count("Chunk", {"document": call.id}) == 1
    assert (await stage.data())[0].capped


async def test_a_prompt_longer_than_the_context_of_an_engine_is_refused_once(
    stage: Stage, model_dir: Path, words: ChatFormat
) -> None:
    """The run allows more tokens than the engine has room for. That is a mistake of the configuration, not of the
    policy."""
    engine = EmbeddedEngine(slots=4, context=64)
    engine.start()
    try:
        await unverified.serve(engine, model_dir, 1)
        async with listening(build_app(engine, TOKEN)) as url:
            await stage.register("engine", "engine-0", url, version=1, slots=4)
            await stage.task("what costs a pear? " * 100, n=1)
            async with stage.sampler():
                record = await stage.one()
    finally:
        await engine.close()
    assert (record.status, record.outcome) == ("failed", "engine_failed")
    assert "64" in record.error, "the error names the size of the context"
    assert len(await stage.calls()) == 1, "a refused call is not repeated"


# ---- a store that does not answer ----


@pytest.fixture(scope="module")
def own_server() -> Iterator[tuple[Mongod, str]]:
    """A server for these tests alone, because they make it stand still."""
    directory = tempfile.TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True)
    with directory as root, server_in(Path(root) / "mongo") as started:
        yield started


@asynccontextmanager
async def playing_on(stage: Stage, url: str, name: str, *, within_s: float) -> AsyncIterator[database.Database]:
    """Move the stage to another server. Yields a connection for samplers, whose operations may take `within_s`."""
    stage.db = database.connect(url, name, within_s=60)
    samplers = database.connect(url, name, within_s=within_s)
    await indexes.ensure(stage.db)
    try:
        async with stage.stack:
            yield samplers
    finally:
        await samplers.close()
        await stage.db.close()


class Talker:
    """Three turns: two calls that cannot be read, and the answer."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, prompt: Prompt) -> str:
        self.asked += 1
        return "<tool_call>look(" + "!" * len(prompt.answers) if len(prompt.answers) < 3 else "<answer>3</answer>"


@asynccontextmanager
async def standing_still(server: Mongod) -> AsyncIterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_store_that_is_slow_for_seconds_delays_episodes_and_fails_none(
    stage: Stage, own_server: tuple[Mongod, str]
) -> None:
    server, url = own_server
    async with playing_on(stage, url, "slow", within_s=30) as samplers:
        says = Talker()
        await stage.engine(says)
        for _ in range(4):
            await stage.task(n=8)
        async with stage.sampler(concurrency=8, db=samplers) as sampler:
            await aeventually(lambda: says.asked >= 10)
            async with standing_still(server):

                async def stands() -> bool:
                    before = sampler.ended
                    await asyncio.sleep(1)
                    return sampler.ended == before

                # Answers that the server has already sent still arrive; after them all episodes wait.
                await aeventually(stands, what="episodes to stand still")
            records = await stage.ended(count=32)
        assert {(record.status, record.outcome) for record in records} == {("scored", "answered")}
        assert not await stage.open_ends()
        assert not (await accounting.account(stage.db)).problems


async def test_a_store_that_is_away_for_longer_than_an_operation_costs_attempts_and_leaves_nothing_open(
    stage: Stage, own_server: tuple[Mongod, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.2)
    server, url = own_server
    async with playing_on(stage, url, "away", within_s=2.0) as samplers:
        says = Talker()
        await stage.engine(says)
        for _ in range(4):
            await stage.task(n=8)
        async with stage.sampler(concurrency=8, db=samplers):
            await aeventually(lambda: says.asked >= 10)
            async with standing_still(server):
                await asyncio.sleep(3)  # longer than any operation waits
            records = await stage.ended(count=32, within_s=120)
        ends = {(record.status, record.outcome) for record in records}
        assert ends <= {("scored", "answered"), ("failed", "store_failed")}
        assert ("scored", "answered") in ends
        assert not [record for record in records if record.status == "failed" and record.score is not None]
        assert not await stage.open_ends()
        assert not (await accounting.account(stage.db)).problems
