"""The client with foreign servers: SGLang's answers, malformed answers and incomplete answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    EngineError,
    EngineGoneError,
    Sampling,
)
from tests.waiting import PATIENCE_S

ANSWER: dict[str, Any] = {
    "text": "ab",
    "output_ids": [11, 12, 13],
    "meta_info": {
        "id": "x",
        "finish_reason": {"type": "stop", "matched": 13},
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "cached_tokens": 1,
        "weight_version": "5",
        "weight_versions": [{"version": "4", "start": 0, "end": 2}, {"version": "5", "start": 2, "end": 3}],
        "output_token_logprobs": [[-0.5, 11, "a"], [-1.5, 12, None], [-2.5, 13, None]],
        "e2e_latency": 0.1,
    },
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[HttpEngine]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    engine = HttpEngine(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "token")
    try:
        yield engine
    finally:
        await engine.close()
        listener.close()


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


def answering(body: bytes, status: int = 200) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    return serve


async def ask(engine: HttpEngine, deadline_s: float = 5.0) -> Any:
    return await engine.generate(EngineCall("r", [1, 2], Sampling(), deadline_s=deadline_s))


async def test_versions_by_place_become_spans() -> None:
    async with server(answering(json.dumps(ANSWER).encode())) as engine:
        answer = await ask(engine)
    assert answer.ids == [11, 12, 13]
    assert answer.log_probs == [-0.5, -1.5, -2.5]
    assert answer.versions == [(4, 2), (5, 1)]
    assert (answer.finish, answer.cached_tokens) == ("stop", 1)


async def test_a_single_version_covers_all_tokens() -> None:
    meta = {key: value for key, value in ANSWER["meta_info"].items() if key != "weight_versions"}
    async with server(answering(json.dumps({**ANSWER, "meta_info": meta}).encode())) as engine:
        assert (await ask(engine)).versions == [(5, 3)]


def scored(*ids: int) -> bytes:
    pairs = [[None if not place else -1.0, one, None] for place, one in enumerate(ids)]
    return changed(output_token_logprobs=[], weight_versions=[], input_token_logprobs=pairs)


async def test_the_last_id_of_a_vocabulary_may_come_back_as_0() -> None:
    async with server(answering(scored(5, 0, 6, 0))) as engine:
        assert await engine.score([5, 9, 6, 9], deadline_s=60, vocabulary=10) == [-1.0] * 3
        for others in (None, 11):
            with pytest.raises(EngineError, match="another sequence"):
                await engine.score([5, 9, 6, 9], deadline_s=60, vocabulary=others)


@pytest.mark.parametrize("ids", [(5, 0, 6, 9), (5, 9, 0, 9), (5, 0, 6, 8), (5, 0, 6), (5, 0, 6, 0, 0)])
async def test_scores_of_another_sequence_are_refused(ids: tuple[int, ...]) -> None:
    async with server(answering(scored(*ids))) as engine:
        with pytest.raises(EngineError, match="another sequence"):
            await engine.score([5, 9, 6, 9], deadline_s=60, vocabulary=10)


def changed(**meta: Any) -> bytes:
    return json.dumps({**ANSWER, "meta_info": {**ANSWER["meta_info"], **meta}}).encode()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "cannot be read"),
        (b"<html>busy</html>", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"meta_info": {}}' + b"x" * 50_000, "cannot be read"),
        (b'{"meta_info": {}}', "unknown finish reason"),
        (json.dumps({**ANSWER, "output_ids": [11, 12]}).encode(), "log-probs of other tokens"),
        (changed(output_token_logprobs=[[-0.5, 11, None], [None, 12, None], [-1.0, 13, None]]), "of other tokens"),
        (changed(output_token_logprobs=[[float("nan"), 11, None]]), "cannot be read"),
        (changed(weight_versions=[{"version": "4", "start": 0, "end": 2}]), "a version for each token"),
        (changed(weight_versions=None, weight_version="default"), "not a number"),
        (changed(finish_reason={"type": "exploded"}), "unknown finish reason"),
    ],
)
async def test_a_malformed_answer_is_an_engine_error(body: bytes, sentence: str) -> None:
    async with server(answering(body)) as engine:
        with pytest.raises(EngineError, match=sentence):
            await ask(engine)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, EngineError), (502, EngineError), (503, EngineBusyError), (400, CallRefusedError), (404, CallRefusedError)],
)
async def test_the_status_decides_the_class_of_the_error(status: int, kind: type[EngineError]) -> None:
    async with server(answering(b'{"error": {"message": "because"}}', status)) as engine:
        with pytest.raises(kind, match="because"):
            await ask(engine)
    async with server(answering(b"plain words", status)) as engine:
        with pytest.raises(kind, match=f"status {status}"):
            await ask(engine)


async def test_an_answer_that_breaks_off_means_that_the_engine_is_gone() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"text":')
        await writer.drain()

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)

    async def no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        await writer.drain()

    for serve in (half, nothing, no_http):
        async with server(serve) as engine:
            with pytest.raises(EngineGoneError):
                await ask(engine)


async def test_a_call_to_a_silent_server_fails_soon_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.engines.http_engine.ABORT_GRACE_S", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        await reader.read()

    async with server(silent) as engine:
        with pytest.raises(EngineError, match="did not answer"):
            await asyncio.wait_for(ask(engine, 0.1), PATIENCE_S)


async def test_a_connection_that_the_server_closed_is_replaced() -> None:
    """A server may close a kept connection between two calls; the call is sent again on a new one."""
    served = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        body = json.dumps(ANSWER).encode()
        await request_of(reader)
        served += 1
        # The answer does not announce that the server closes the connection.
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    async with server(once) as engine:
        for _ in range(5):
            assert (await ask(engine)).ids == [11, 12, 13]
    assert served == 5
