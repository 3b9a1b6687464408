"""The contract of engines, for the embedded one and a real SGLang server with the same weights."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    Generated,
    PauseMode,
    Sampling,
    VersionNotServedError,
)
from tests.engines.conftest import Weights
from tests.engines.contract.fixtures import CONTEXT, Subject, begun
from tests.waiting import aeventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]
PROMPT = [7, 8, 9, 10]
LONG = 200
EPISODE = "task#r1.s0.a1"


def end_of(weights: Weights) -> int:
    """The end-of-sequence token. SGLang always stops at it, so every call names it, as samplers do."""
    end: int = weights.reference.config.eos_token_id
    return end


def sampling(weights: Weights, tokens: int, *stops: int, temperature: float = 1.0) -> Sampling:
    return Sampling(max_new_tokens=tokens, stop_token_ids=(end_of(weights), *stops), temperature=temperature)


def distance(expected: Sequence[float], found: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(expected, found, strict=True))


def assert_exact(weights: Weights, prompt: list[int], made: Generated, limit: float, temperature: float = 1.0) -> None:
    expected = weights.log_probs([*prompt, *made.ids], temperature)[len(prompt) - 1 :]
    assert distance(expected, made.log_probs) <= limit


NAMES = itertools.count()


async def endless(subject: Subject, weights: Weights) -> asyncio.Task[Generated]:
    """Start a call that runs for a while. It is greedy: the likeliest tokens of these weights never end the call, but
    sampled ones might. Its name is new, because SGLang aborts a name once more, two seconds after its stream."""
    return await begun(subject.client, f"long{next(NAMES)}", PROMPT, sampling(weights, LONG, temperature=0.0))


async def test_greedy_tokens_and_their_log_probs_are_those_of_the_model(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    made = await subject.client.generate(
        EngineCall("greedy", PROMPT, sampling(first, 12, temperature=0.0), deadline_s=60)
    )
    assert made.ids == first.greedy(PROMPT, 12)[: len(made.ids)]
    assert made.ids[-1] == end_of(first) or len(made.ids) == 12
    assert made.versions == [(1, len(made.ids))]
    # Greedy calls return log-probs at temperature 1.
    assert_exact(first, PROMPT, made, tolerance)


async def test_limits_cut_the_distribution_and_not_the_log_probs(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    likeliest = first.greedy(PROMPT, 12)
    for name, how in (("k", {"top_k": 1}), ("p", {"top_p": 1e-4}), ("m", {"min_p": 1.0})):
        asked = msgspec.structs.replace(sampling(first, 12), **how)
        made = await subject.client.generate(EngineCall(f"cut-{name}", PROMPT, asked, deadline_s=60))
        assert made.ids == likeliest[: len(made.ids)], name
        assert_exact(first, PROMPT, made, tolerance)


@pytest.mark.parametrize(
    ("per_time", "once", "factor"), [(-0.4, 0.0, 1.0), (0.3, -2.0, 1.0), (0.0, 0.0, 0.5)], ids=["each", "any", "scaled"]
)
async def test_penalties_count_the_output_of_the_call(
    subject: Subject, first: Weights, tolerance: float, per_time: float, once: float, factor: float
) -> None:
    how = {"frequency_penalty": per_time, "presence_penalty": once, "repetition_penalty": factor}
    asked = msgspec.structs.replace(sampling(first, 16, temperature=0.0), **how)
    made = await subject.client.generate(EngineCall("penalized", PROMPT, asked, deadline_s=60))
    expected = []
    for place in range(len(made.ids)):
        logits = first.logits([*PROMPT, *made.ids[:place]])
        for token, count in Counter(made.ids[:place]).items():
            value = logits[token] - per_time * count - once
            logits[token] = value / factor if value > 0 else value * factor
        spread = logits.log_softmax(-1)
        assert made.ids[place] == int(spread.argmax())
        expected.append(float(spread[made.ids[place]]))
    assert distance(expected, made.log_probs) <= tolerance
    assert made.ids != first.greedy(PROMPT, 16)[: len(made.ids)], "the penalties changed no token"


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
async def test_log_probs_have_the_temperature_of_the_sampling(
    subject: Subject, first: Weights, temperature: float, tolerance: float
) -> None:
    calls = [
        subject.client.generate(
            EngineCall(f"t/c{number}", PROMPT, sampling(first, 16, temperature=temperature), deadline_s=60)
        )
        for number in range(4)
    ]
    for made in await asyncio.gather(*calls):
        assert_exact(first, PROMPT, made, tolerance, temperature)


async def test_the_cache_of_a_conversation_changes_no_result(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    ids = [*PROMPT, *range(20, 60)]
    for turn in range(3):
        made = await subject.client.generate(EngineCall(f"{EPISODE}/c{turn}", ids, sampling(first, 8), deadline_s=60))
        assert_exact(first, ids, made, tolerance)
        assert made.cached_tokens >= (len(ids) // 2 if turn else 0)
        ids = [*ids, *made.ids, 3, 4, 5]


async def test_sequences_are_scored_as_the_model_scores_them(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    ids = [5 + place * 7 % 200 for place in range(30)]
    found = await subject.client.score(ids, deadline_s=60)
    assert distance(first.log_probs(ids), found) <= tolerance
    # Asked again, with everything cached.
    assert await subject.client.score(ids, deadline_s=60) == pytest.approx(found, abs=tolerance)


async def test_the_last_id_of_the_vocabulary_is_scored_like_any_other(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    last = first.reference.config.vocab_size - 1
    ids = [*PROMPT, last, 20, last]
    found = await subject.client.score(ids, deadline_s=60, vocabulary=last + 1)
    assert distance(first.log_probs(ids), found) <= tolerance


async def test_a_stop_token_ends_the_call_and_is_part_of_it(subject: Subject, first: Weights) -> None:
    expected = first.greedy(PROMPT, 8)
    stop = expected[3]
    made = await subject.client.generate(
        EngineCall("stop", PROMPT, sampling(first, 8, stop, temperature=0.0), deadline_s=60)
    )
    assert made.finish == "stop"
    assert made.ids == expected[: expected.index(stop) + 1]


async def test_the_length_ends_the_call(subject: Subject, first: Weights) -> None:
    made = await subject.client.generate(
        EngineCall("length", PROMPT, sampling(first, 3, temperature=0.0), deadline_s=60)
    )
    assert (made.finish, made.ids) == ("length", first.greedy(PROMPT, 3))


async def test_a_stream_grows_to_the_whole_answer(subject: Subject, first: Weights) -> None:
    greedy = sampling(first, 10, temperature=0.0)
    parts = [part async for part in subject.client.stream(EngineCall("stream", PROMPT, greedy, deadline_s=60))]
    whole = parts[-1]
    assert whole.ids == first.greedy(PROMPT, 10)[: len(whole.ids)]
    assert all(part.ids == whole.ids[: len(part.ids)] for part in parts)
    assert all(len(part.log_probs) == len(part.ids) for part in parts)
    assert whole.versions == [(1, len(whole.ids))]


async def test_an_aborted_call_returns_its_output_and_affects_no_other(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    async def aborted() -> tuple[Generated, Generated]:
        """A second call, whose rid begins with that of the first."""
        name = f"{EPISODE}/c{next(NAMES)}"
        call = await begun(subject.client, name, PROMPT, sampling(first, LONG, temperature=0.0))
        other = asyncio.create_task(
            subject.client.generate(EngineCall(f"{name}0", PROMPT, sampling(first, 30, temperature=0.0), deadline_s=60))
        )
        await subject.client.abort(name)
        made, untouched = await call, await other
        assert made.finish not in ("stop", "length"), "it ended before the abort"
        return made, untouched

    made, untouched = await aeventually(aborted)
    assert made.finish == "abort"
    assert len(made.ids) < LONG
    if made.ids:
        assert_exact(first, PROMPT, made, tolerance)
    assert untouched.finish in ("length", "stop")


async def test_a_call_is_aborted_at_its_deadline_and_returns_its_output(subject: Subject, first: Weights) -> None:
    async def late() -> Generated:
        long = sampling(first, LONG, temperature=0.0)
        made = await subject.client.generate(EngineCall(f"late/c{next(NAMES)}", PROMPT, long, deadline_s=0.05))
        assert made.finish not in ("stop", "length"), "it ended before the engine checked its deadline"
        return made

    made = await aeventually(late)
    assert made.finish == "abort"
    assert len(made.ids) < LONG


async def test_a_stream_is_aborted_at_its_deadline_and_ends_with_its_output(subject: Subject, first: Weights) -> None:
    async def late() -> Generated:
        long, name = sampling(first, LONG, temperature=0.0), f"late-stream/c{next(NAMES)}"
        parts = [part async for part in subject.client.stream(EngineCall(name, PROMPT, long, deadline_s=0.05))]
        assert parts[-1].finish not in ("stop", "length"), "it ended before anybody looked at the deadline"
        return parts[-1]

    made = await aeventually(late)
    assert made.finish == "abort"
    assert len(made.ids) < LONG


async def updated_midway(subject: Subject, first: Weights, second: Weights, mode: PauseMode) -> Generated:
    if (await subject.client.load()).version != 1:
        await subject.put(first)
    call = await endless(subject, first)
    await subject.client.pause(mode)
    await subject.client.update(str(second.path), 2, keep_cache=mode == "in_place")
    await subject.client.resume()
    made = await call
    assert len(made.versions) > 1, "it ended before the pause"
    return made


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_call_continues_with_new_weights(
    subject: Subject, first: Weights, second: Weights, mode: PauseMode, tolerance: float
) -> None:
    made = await aeventually(lambda: updated_midway(subject, first, second, mode))
    assert [version for version, _ in made.versions] == [1, 2]
    before = made.versions[0][1]
    assert sum(count for _, count in made.versions) == len(made.ids)
    old = first.log_probs([*PROMPT, *made.ids])[len(PROMPT) - 1 :]
    new = second.log_probs([*PROMPT, *made.ids])[len(PROMPT) - 1 :]
    assert distance(old[:before], made.log_probs[:before]) <= tolerance
    if mode == "retract" or not subject.keeps_cache:
        # The cache was computed again, so the new weights have read the whole sequence.
        assert distance(new[before:], made.log_probs[before:]) <= tolerance
    assert (await subject.client.load()).version == 2


async def test_pausing_by_abort_ends_the_running_calls(subject: Subject, first: Weights) -> None:
    async def paused() -> Generated:
        await subject.client.resume()
        call = await endless(subject, first)
        await subject.client.pause("abort")
        made = await call
        assert made.finish not in ("stop", "length"), "it ended before the pause"
        return made

    assert (await aeventually(paused)).finish == "abort"
    later = asyncio.create_task(subject.client.generate(EngineCall("later", PROMPT, sampling(first, 2), deadline_s=60)))
    await subject.client.resume()
    assert (await later).ids


async def test_after_an_update_nothing_is_left_of_the_old_weights(
    subject: Subject, first: Weights, second: Weights, tolerance: float
) -> None:
    ids = [*PROMPT, *range(20, 60)]
    await subject.client.generate(EngineCall(f"{EPISODE}/c0", ids, sampling(first, 4), deadline_s=60))
    await subject.put(second)
    made = await subject.client.generate(
        EngineCall(f"{EPISODE}/c1", ids, sampling(first, 8, temperature=0.0), deadline_s=60)
    )
    assert made.versions == [(2, len(made.ids))]
    assert made.ids == second.greedy(ids, 8)[: len(made.ids)]
    assert_exact(second, ids, made, tolerance)


async def test_a_version_that_is_not_served_is_never_answered_for(subject: Subject, first: Weights) -> None:
    with pytest.raises(VersionNotServedError):
        await subject.client.generate(EngineCall("pinned", PROMPT, sampling(first, 4), deadline_s=60, version=7))
    made = await subject.client.generate(EngineCall("pinned", PROMPT, sampling(first, 4), deadline_s=60, version=1))
    assert {version for version, _ in made.versions} == {1}


async def test_a_prompt_that_leaves_no_room_is_refused(subject: Subject, first: Weights) -> None:
    with pytest.raises(CallRefusedError, match=str(CONTEXT)):
        await subject.client.generate(EngineCall("long", [5] * (CONTEXT + 20), sampling(first, 4), deadline_s=60))
    assert (await subject.client.generate(EngineCall("next", PROMPT, sampling(first, 2), deadline_s=60))).ids


async def test_reports_have_state_version_and_load(subject: Subject, first: Weights) -> None:
    assert await subject.client.health()
    load = await subject.client.load()
    assert (load.version, load.slots, load.running) == (1, 16, 0)

    async def counted() -> bool:
        """SGLang updates its counts rarely, and a call may have ended by then."""
        call = await endless(subject, first)
        try:
            while not call.done():
                if (await subject.client.load()).running:
                    return True
            return False
        finally:
            await subject.client.abort("")
            await call

    await aeventually(counted)


async def test_memory_is_released_only_without_calls_and_later_calls_wait(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    if not subject.gives_memory:
        with pytest.raises(CallRefusedError, match="started without --enable-memory-saver"):
            await subject.client.release_memory()
    else:
        await aeventually(lambda: refused_under_way(subject, first))
        await aeventually(lambda: releases_memory(subject.client))
    late = asyncio.create_task(subject.client.generate(EngineCall("late", PROMPT, sampling(first, 8), deadline_s=60)))
    if subject.gives_memory:
        done, _ = await asyncio.wait([late], timeout=0.2)
        assert not done, "no call is computed without a cache"
    # A second order changes nothing, and neither does an order to an engine that released no memory.
    await subject.client.restore_memory()
    await subject.client.restore_memory()
    assert_exact(first, PROMPT, await late, tolerance)


async def refused_under_way(subject: Subject, weights: Weights) -> bool:
    """False if the call ended before the pause."""
    await subject.client.restore_memory()
    call = await endless(subject, weights)
    await subject.client.pause("in_place")
    refused = not await releases_memory(subject.client)
    await subject.client.resume()
    await subject.client.abort("")
    await call
    return refused


async def releases_memory(client: HttpEngine) -> bool:
    """Release the memory. Returns False if the engine is busy: an aborted call may run for another moment."""
    with contextlib.suppress(EngineBusyError):
        await client.release_memory()
        return True
    return False


async def test_only_the_token_of_the_run_passes(subject: Subject, first: Weights) -> None:
    stranger = HttpEngine(subject.url, "wrong")
    for request in (
        stranger.load,
        stranger.resume,
        lambda: stranger.generate(EngineCall("x", PROMPT, Sampling(), deadline_s=5)),
    ):
        with pytest.raises(CallRefusedError, match="requires the token of its run"):
            await request()
    assert not await stranger.health()
    await stranger.close()


async def test_sixty_four_calls_at_once_all_end_and_are_exact(
    subject: Subject, first: Weights, tolerance: float
) -> None:
    """Four times more calls than it decodes at the same time."""
    prompts = [[5 + number % 8, 20, 30 + number] for number in range(64)]
    made = await asyncio.gather(
        *(
            subject.client.generate(EngineCall(f"many{number}/c0", prompt, sampling(first, 6), deadline_s=120))
            for number, prompt in enumerate(prompts)
        )
    )
    for prompt, one in zip(prompts, made, strict=True):
        assert_exact(first, prompt, one, tolerance)
