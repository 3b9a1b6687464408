"""The embedded engine over HTTP, and the client that samplers use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    EngineError,
    EngineGoneError,
    Generated,
    Sampling,
    VersionNotServedError,
    WeightsRefusedError,
)
from agentrl.http.http_client import HttpClient
from agentrl.tracing import spans, trace_context
from agentrl.tracing.spans import Span
from tests.engines.conftest import TOKEN, Weights
from tests.engines.http_requests import CLOSE
from tests.waiting import PATIENCE_S, aeventually

LENGTH = 1000
LONG = Sampling(max_new_tokens=LENGTH, seed=5)


@pytest.fixture
def slowly(engine: EmbeddedEngine) -> None:
    """Long calls take twenty seconds, so that they do not end before the next order."""
    engine._gather_s = 20.0 / LENGTH


@pytest.fixture
async def raw(url: str) -> AsyncIterator[HttpClient]:
    """A client that sends any body."""
    made = HttpClient(url, {"Authorization": f"Bearer {TOKEN}"})
    yield made
    await made.close()


async def post(raw: HttpClient, path: str, body: object, method: str = "POST") -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with raw.ask(method, path, data) as reply:
        return reply.status, await reply.read()


def assert_exact(weights: Weights, prompt: list[int], answer: Generated) -> None:
    expected = weights.log_probs([*prompt, *answer.ids])[len(prompt) - 1 :]
    assert max(abs(a - b) for a, b in zip(expected, answer.log_probs, strict=True)) <= CLOSE


async def test_a_call_is_a_span_of_the_trace_of_its_caller(client: HttpEngine) -> None:
    seen: list[Span] = []
    spans.set_exporter(seen.append)
    try:
        with spans.span("call", root=trace_context.new()) as call:
            await client.generate(EngineCall("r1/000", [5, 6, 7], Sampling(max_new_tokens=2), deadline_s=30))
    finally:
        spans.set_exporter(None)
    served, _ = seen
    assert (served.name, served.context.trace_id, served.parent) == (
        "generate",
        call.context.trace_id,
        call.context.span_id,
    )
    assert served.attributes == {"agentrl.call": "r1/000", "gen_ai.usage.input_tokens": 3}


async def test_turns_over_http_are_exact_and_reuse_the_cache(client: HttpEngine, first: Weights) -> None:
    ids = [7, 8, 9, 10]
    for turn in range(3):
        answer = await client.generate(
            EngineCall(f"record/c{turn}", ids, Sampling(max_new_tokens=9, seed=turn), deadline_s=20)
        )
        assert_exact(first, ids, answer)
        assert answer.versions == [(1, 9)]
        assert answer.cached_tokens >= (0 if turn == 0 else 12)
        ids = [*ids, *answer.ids, 3, 4, 5]


async def test_sixty_four_at_once_all_end_and_are_exact(client: HttpEngine, first: Weights) -> None:
    """Four times more calls than slots."""

    async def one(number: int) -> None:
        prompt = [5 + number % 8, 20, 30 + number]
        answer = await client.generate(
            EngineCall(f"r{number}/c0", prompt, Sampling(max_new_tokens=12, seed=number), deadline_s=60)
        )
        assert answer.finish == "length"
        assert_exact(first, prompt, answer)

    await asyncio.gather(*(one(number) for number in range(64)))
    load = await client.load()
    assert (load.running, load.waiting, load.generated_tokens) == (0, 0, 64 * 12)


async def test_a_stream_grows_to_the_same_answer(client: HttpEngine) -> None:
    seen = [
        part
        async for part in client.stream(EngineCall("a", [4, 5, 6], Sampling(max_new_tokens=8, seed=1), deadline_s=20))
    ]
    assert [len(part.ids) for part in seen] == sorted(len(part.ids) for part in seen)
    assert (seen[-1].finish, len(seen[-1].ids)) == ("length", 8)
    whole = await client.generate(EngineCall("b", [4, 5, 6], Sampling(max_new_tokens=8, seed=1), deadline_s=20))
    assert whole.ids == seen[-1].ids
    assert all(part.ids == whole.ids[: len(part.ids)] for part in seen)


async def test_without_network_a_stream_is_the_same(engine: EmbeddedEngine) -> None:
    sampling = Sampling(max_new_tokens=8, seed=1)
    seen = [part async for part in engine.stream(EngineCall("a", [4, 5, 6], sampling, deadline_s=20))]
    assert [len(part.ids) for part in seen] == sorted(len(part.ids) for part in seen)
    assert (seen[-1].finish, len(seen[-1].ids)) == ("length", 8)
    async with aclosing(engine.stream(EngineCall("b", [4, 5, 6], LONG, deadline_s=60))) as parts:
        async for _ in parts:
            break

    async def ended() -> bool:
        return not (await engine.load()).running

    await aeventually(ended)


async def test_the_cache_memory_is_released_and_calls_wait_until_it_is_back(client: HttpEngine, first: Weights) -> None:
    sampling = Sampling(max_new_tokens=8)
    call = asyncio.create_task(client.generate(EngineCall("a", [4, 5, 6], LONG, deadline_s=60)))

    async def standing() -> bool:
        """Pause a running call in place, so that it cannot end before the next order."""
        nonlocal call
        if call.done():
            call = asyncio.create_task(client.generate(EngineCall("a", [4, 5, 6], LONG, deadline_s=60)))
        await client.pause("in_place")
        stands = (await client.load()).running == 1
        if not stands:
            await client.resume()
        return stands

    await aeventually(standing)
    with pytest.raises(EngineBusyError, match="under way"):
        await client.release_memory()
    await client.abort("")
    await call
    await client.resume()
    await client.release_memory()
    waits = asyncio.create_task(client.generate(EngineCall("b", [4, 5, 6], sampling, deadline_s=60)))

    async def waiting() -> bool:
        return (await client.load()).waiting == 1

    await aeventually(waiting)
    await client.restore_memory()
    assert_exact(first, [4, 5, 6], await waits)


async def test_closing_a_stream_frees_its_slot(client: HttpEngine) -> None:
    async with aclosing(client.stream(EngineCall("a", [4, 5, 6], LONG, deadline_s=60))) as parts:
        async for _ in parts:
            break
    await aeventually(lambda: idle(client))


async def idle(client: HttpEngine) -> bool:
    load = await client.load()
    return load.running == load.waiting == 0


async def under_way(client: HttpEngine) -> bool:
    return (await client.load()).generated_tokens > 3


@pytest.mark.usefixtures("slowly")
async def test_an_aborted_call_answers_with_what_it_has(client: HttpEngine, first: Weights) -> None:
    call = asyncio.create_task(client.generate(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=60)))
    await aeventually(lambda: under_way(client), every_s=0.001)
    await client.abort("r/c0")
    answer = await call
    assert answer.finish == "abort"
    assert 0 < len(answer.ids) < LENGTH
    assert_exact(first, [4, 5, 6], answer)


async def test_at_the_deadline_the_partial_answer_is_returned(client: HttpEngine) -> None:
    await client.pause("in_place")
    answer = await client.generate(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=0.1))
    assert (answer.finish, answer.ids) == ("abort", [])
    assert await idle(client)
    await client.resume()
    assert (
        await client.generate(EngineCall("r/c1", [4], Sampling(max_new_tokens=2), deadline_s=20))
    ).finish == "length"


@pytest.mark.parametrize("over_http", [True, False])
async def test_a_stream_ends_with_its_output_at_the_deadline(
    engine: EmbeddedEngine, client: HttpEngine, over_http: bool
) -> None:
    subject = client if over_http else engine
    await client.pause("in_place")
    parts = [part async for part in subject.stream(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=0.1))]
    assert (parts[-1].finish, parts[-1].ids) == ("abort", [])
    assert await idle(client)
    await client.resume()


@pytest.mark.usefixtures("slowly")
async def test_a_caller_that_disconnects_frees_its_slot(client: HttpEngine) -> None:
    call = asyncio.create_task(client.generate(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=60)))
    await aeventually(lambda: under_way(client), every_s=0.001)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await aeventually(lambda: idle(client))
    assert (await client.load()).generated_tokens < LENGTH


@pytest.mark.usefixtures("slowly")
async def test_pause_update_and_resume_give_spans_of_versions(
    engine: EmbeddedEngine, client: HttpEngine, second: Weights
) -> None:
    call = asyncio.create_task(client.generate(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=60)))
    await aeventually(lambda: under_way(client), every_s=0.001)
    await client.pause("in_place")
    made = (await client.load()).generated_tokens
    await client.update(str(second.path), 2)
    assert (await client.load()).paused
    assert (await client.load()).version == 2
    engine._gather_s = 0.0
    await client.resume()
    answer = await call
    assert answer.versions == [(1, made), (2, LENGTH - made)]


async def test_a_version_is_pinned_for_an_evaluation(client: HttpEngine, first: Weights, second: Weights) -> None:
    greedy = Sampling(max_new_tokens=6, temperature=0.0)
    await client.pin(1)
    await client.update(str(second.path), 2)
    old = await client.generate(EngineCall("eval/c0", [4, 5, 6], greedy, deadline_s=20, version=1))
    new = await client.generate(EngineCall("train/c0", [4, 5, 6], greedy, deadline_s=20))
    assert (old.ids, old.versions) == (first.greedy([4, 5, 6], 6), [(1, 6)])
    assert (new.ids, new.versions) == (second.greedy([4, 5, 6], 6), [(2, 6)])
    assert (await client.load()).versions_loaded == (1, 2)
    await client.unpin()
    with pytest.raises(VersionNotServedError, match="held are 2"):
        await client.generate(EngineCall("eval/c1", [4, 5, 6], greedy, deadline_s=20, version=1))
    await client.pin(1, str(first.path))
    assert (await client.generate(EngineCall("eval/c1", [4, 5, 6], greedy, deadline_s=20, version=1))).ids == old.ids


async def test_a_sequence_is_scored(client: HttpEngine, first: Weights) -> None:
    ids = [4, 9, 30, 77, 12]
    found = await client.score(ids, deadline_s=20)
    assert max(abs(a - b) for a, b in zip(found, first.log_probs(ids), strict=True)) <= CLOSE


async def test_weights_that_are_wrong_are_refused_over_http(client: HttpEngine, tmp_path: object) -> None:
    with pytest.raises(WeightsRefusedError, match=r"has no manifest\.json"):
        await client.update(str(tmp_path), 3)
    assert (await client.load()).version == 1


PATHS = {
    "/generate": "POST",
    "/abort_request": "POST",
    "/pause_generation": "POST",
    "/continue_generation": "POST",
    "/update_weights_from_disk": "POST",
    "/pin_weights": "POST",
    "/health": "GET",
    "/model_info": "GET",
    "/server_info": "GET",
    "/v1/loads": "GET",
}


async def test_requests_without_the_token_get_no_information(url: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer"}):
        stranger = HttpClient(url, headers)
        for path, method in PATHS.items():
            assert (await post(stranger, path, {}, method))[0] == 401, path
        await stranger.close()


async def test_every_get_answers(raw: HttpClient) -> None:
    for path in ("/health", "/model_info", "/server_info", "/v1/loads"):
        assert (await post(raw, path, b"", "GET"))[0] == 200
    assert (await post(raw, "/unknown", b"", "GET"))[0] == 404
    assert (await post(raw, "/generate", b"", "GET"))[0] == 405


SENSELESS: list[tuple[str, object, int, str]] = [
    ("/generate", b"", 400, "is no JSON"),
    ("/generate", b"{", 400, "is no JSON"),
    ("/generate", b'{"x":' + b"[" * 100_000, 400, "is no JSON"),
    ("/generate", b"\xff\xfe", 400, "is no JSON"),
    ("/generate", {"input_ids": "text"}, 422, "input_ids"),
    ("/generate", {"input_ids": [1.5]}, 422, "input_ids"),
    ("/generate", {"input_ids": []}, 400, "at least one"),
    ("/generate", {"input_ids": [5] * 1024}, 400, "with a context of 1024"),
    ("/generate", {"input_ids": [1], "sampling_params": {"temperature": -1}}, 400, "Temperature"),
    ("/generate", {"input_ids": [1], "sampling_params": {"top_k": -5}}, 400, "Top_k"),
    ("/generate", {"input_ids": [1], "sampling_params": {"regex": "a"}}, 422, "regex"),
    ("/pause_generation", {"mode": "later"}, 422, "mode"),
    ("/update_weights_from_disk", {"model_path": "/", "weight_version": "new"}, 400, "whole number"),
]


async def test_a_malformed_body_is_refused_with_a_sentence(raw: HttpClient) -> None:
    for path, body, expected, sentence in SENSELESS:
        status, answer = await post(raw, path, body)
        assert status == expected, body
        assert sentence in json.loads(answer)["error"]["message"]


async def test_a_body_that_is_too_long_is_refused(raw: HttpClient) -> None:
    status, answer = await post(raw, "/generate", b" " * (33 << 20))
    assert status == 413
    assert b"bytes at most" in answer


async def test_the_loop_answers_while_the_engine_computes(client: HttpEngine) -> None:
    async def computes_all_the_while() -> bool:
        calls = [
            asyncio.create_task(client.generate(EngineCall(f"r{n}/c0", [n, 5], LONG, deadline_s=120)))
            for n in range(16)
        ]
        for _ in range(10):
            assert await client.health()
        await client.abort("")
        return {(await call).finish for call in calls} == {"abort"}

    await aeventually(computes_all_the_while, what="ten answers during calls that have not ended by themselves")


@pytest.mark.usefixtures("slowly")
async def test_calls_end_when_the_engine_is_closed(engine: EmbeddedEngine, client: HttpEngine) -> None:
    call = asyncio.create_task(client.generate(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=60)))
    await aeventually(lambda: under_way(client), every_s=0.001)
    await engine.close()
    answer = await call
    assert answer.finish == "abort"
    assert answer.ids
    with pytest.raises(EngineError, match="does not run"):
        await client.generate(EngineCall("r/c1", [4, 5, 6], LONG, deadline_s=5))
    assert not await client.health()


async def test_a_failed_engine_fails_its_calls_with_the_reason(
    engine: EmbeddedEngine, client: HttpEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._slots, "_admit", broken)
    with pytest.raises(EngineError, match="out of memory"):
        await client.generate(EngineCall("r/c0", [4, 5, 6], LONG, deadline_s=20))
    assert isinstance(engine.failure, RuntimeError)
    with pytest.raises(EngineError, match="out of memory"):
        await client.load()
    assert not await client.health()


async def test_an_order_that_breaks_the_engine_fails_all_waiting_orders(
    first: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(_: object, model: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("agentrl.engines.embedded.slot_scheduler.SlotEngine._fit", too_large)
    engine = EmbeddedEngine(slots=2, context=64)
    engine.start()
    update = asyncio.create_task(engine.update(str(first.path), 1))
    with pytest.raises(EngineGoneError, match="not enough memory"):
        await asyncio.wait_for(update, PATIENCE_S)
    with pytest.raises(EngineGoneError, match="not enough memory"):
        await asyncio.wait_for(engine.load(), PATIENCE_S)
    await engine.close()


async def test_rounds_for_few_calls_are_spaced(first: Weights) -> None:
    engine = EmbeddedEngine(slots=4, context=64, gather_s=0.2)
    engine.start()
    await engine.update(str(first.path), 1)
    began = time.monotonic()
    made = await engine.generate(
        EngineCall("alone", [5, 6, 7], Sampling(max_new_tokens=4, temperature=0.0), deadline_s=60)
    )
    assert made.ids == first.greedy([5, 6, 7], 4)
    assert time.monotonic() - began >= 3 * 0.2
    await engine.close()


async def test_calls_for_half_of_the_slots_are_computed_immediately(first: Weights) -> None:
    """Twenty tokens, each after a wait, would take ten minutes."""
    engine = EmbeddedEngine(slots=4, context=64, gather_s=30.0)
    engine.start()
    await engine.update(str(first.path), 1)
    stays = asyncio.create_task(engine.generate(EngineCall("stays", [5, 6, 8], LONG, deadline_s=100)))
    answer = await engine.generate(
        EngineCall("asked", [5, 6, 9], Sampling(max_new_tokens=20, temperature=0.0), deadline_s=100)
    )
    assert answer.ids == first.greedy([5, 6, 9], 20)
    await engine.abort("stays")
    assert (await stays).finish == "abort"
    await engine.close()


async def test_a_closed_address_fails_immediately() -> None:
    absent = HttpEngine("http://127.0.0.1:9", TOKEN)
    with pytest.raises(EngineGoneError, match="is gone"):
        await asyncio.wait_for(absent.generate(EngineCall("r", [1], LONG, deadline_s=1000)), PATIENCE_S)
    assert not await absent.health()
    await absent.close()


async def test_a_wrong_token_does_not_make_an_engine_dead(url: str) -> None:
    stranger = HttpEngine(url, "wrong")
    with pytest.raises(CallRefusedError, match=r"requires the token of its run\. The token is in http\.token"):
        await stranger.load()
    await stranger.close()
