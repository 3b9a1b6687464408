"""The slot engine computes what transformers computes, however the work is cut into pieces and slots."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from agentrl.engines.embedded import slot_scheduler as slots_module
from agentrl.engines.embedded.decoder import Model
from agentrl.engines.embedded.generation_request import Request
from agentrl.engines.interface import EngineError
from tests.engines.conftest import Weights
from tests.engines.http_requests import CLOSE, ask, assert_exact, engine_of, random_ids, run


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_turns_of_a_conversation_reuse_the_cache(first: Weights, model: Model) -> None:
    engine, chance = engine_of(model), random.Random(1)
    ids, computed = random_ids(chance, 40, first.vocabulary), 0
    for turn in range(5):
        request = ask(engine, f"record/c{turn}", ids, seed=turn)
        run(engine)
        assert_exact(first, request)
        assert request.cached_tokens == computed
        # The last sampled token was never computed; everything before it was.
        computed = len(request.ids) - 1
        ids = request.ids + random_ids(chance, 7, first.vocabulary)


@pytest.mark.parametrize("most_prompt_tokens", [13, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_many_conversations_in_few_shuffled_slots(
    first: Weights, model: Model, monkeypatch: pytest.MonkeyPatch, most_prompt_tokens: int, temperature: float
) -> None:
    """Groups with one prompt, turns of uneven length, aborts, more conversations than slots, slots in any order."""
    monkeypatch.setattr(slots_module, "MAX_PROMPT_TOKENS", most_prompt_tokens)
    engine, chance = engine_of(model, slots=5), random.Random(most_prompt_tokens)
    done: list[Request] = []
    histories = {
        f"t{group}.{seat}": ids
        for group in range(4)
        for ids in [random_ids(chance, 20 + 9 * group, first.vocabulary)]
        for seat in range(4)
    }

    def disturb() -> None:
        chance.shuffle(engine.slots)
        if chance.random() < 0.1 and engine.running:
            engine.abort(chance.choice(engine.running).rid)

    for turn in range(3):
        requests = {
            name: ask(engine, f"{name}/c{turn}", ids, chance.randrange(1, 12), seed=turn, temperature=temperature)
            for name, ids in chance.sample(sorted(histories.items()), len(histories))
        }
        run(engine, before_each=disturb)
        done += requests.values()
        histories = {
            name: request.ids + random_ids(chance, chance.randrange(1, 9), first.vocabulary)
            for name, request in requests.items()
        }
    for request in done:
        if request.output:
            assert_exact(first, request, temperature)
    assert {request.finish for request in done} == {"length", "abort"}
    assert sum(request.cached_tokens for request in done) > 300


def test_greedy_tokens_are_those_of_transformers(first: Weights, model: Model) -> None:
    engine, chance = engine_of(model), random.Random(2)
    prompts = [random_ids(chance, length, first.vocabulary) for length in (3, 17, 40, 17)]
    requests = [ask(engine, f"r{n}", ids, 10, temperature=0.0) for n, ids in enumerate(prompts)]
    run(engine)
    for ids, request in zip(prompts, requests, strict=True):
        assert request.output == first.greedy(ids, 10)
        assert_exact(first, request)


def test_the_prompt_of_a_group_is_computed_once(first: Weights, model: Model) -> None:
    engine = engine_of(model)
    ids = random_ids(random.Random(3), 100, first.vocabulary)
    requests = [ask(engine, f"task.s{seat}/c0", ids, 4, seed=seat) for seat in range(8)]
    run(engine)
    assert sorted(request.cached_tokens for request in requests) == [0] + [99] * 7
    for request in requests:
        assert_exact(first, request)


def test_a_seed_gives_the_same_tokens_beside_any_other_calls(first: Weights, model: Model) -> None:
    ids = random_ids(random.Random(4), 30, first.vocabulary)
    outputs = []
    for others in (0, 3, 6):
        engine = engine_of(model)
        for number in range(others):
            ask(engine, f"other{number}", random_ids(random.Random(number), 50, first.vocabulary), 30, seed=number)
        request = ask(engine, "mine", ids, 20, seed=77, top_p=0.9)
        run(engine)
        outputs.append(request.output)
    assert outputs[0] == outputs[1] == outputs[2]
    engine = engine_of(model)
    different = ask(engine, "mine", ids, 20, seed=78)
    run(engine)
    assert different.output != outputs[0]


def test_an_update_in_flight_splits_versions_and_recomputes_the_cache(
    first: Weights, second: Weights, model: Model, newer: Model
) -> None:
    engine, chance = engine_of(model), random.Random(5)
    requests = [ask(engine, f"r{n}", random_ids(chance, 20 + n, first.vocabulary), 20, seed=n) for n in range(4)]
    for _ in range(8):
        engine.step()
    engine.switch(newer)
    run(engine)
    for request in requests:
        (old, before), (new, after) = request.versions
        assert (old, new, before + after) == (1, 2, 20)
        ids, start = request.ids, len(request.prompt) - 1
        expected = first.log_probs(ids)[start : start + before] + second.log_probs(ids)[start + before :]
        assert max(abs(a - b) for a, b in zip(expected, request.log_probs, strict=True)) <= CLOSE
    # The next turn uses nothing that the old weights computed.
    again = ask(engine, "r0/c1", requests[0].ids, 4)
    run(engine)
    assert_exact(second, again)


def test_a_call_that_names_a_version_never_mixes(first: Weights, second: Weights, model: Model, newer: Model) -> None:
    engine, chance = engine_of(model), random.Random(6)
    ids = random_ids(chance, 30, first.vocabulary)
    pinned = ask(engine, "pinned/c0", ids, 16, seed=1, version=1)
    free = ask(engine, "free/c0", ids, 16, seed=2)
    for _ in range(5):
        engine.step()
    engine.pin(engine.model_of(1))
    engine.switch(newer)
    run(engine)
    assert pinned.versions == [(1, 16)]
    assert_exact(first, pinned)
    assert [version for version, _ in free.versions] == [1, 2]
    later = ask(engine, "pinned/c1", [*pinned.ids, 3], 8, version=1)
    other = ask(engine, "free/c1", [*free.ids, 3], 8)
    run(engine)
    assert_exact(first, later)
    assert later.cached_tokens > 30
    assert_exact(second, other)
    assert engine.versions_loaded == (1, 2)
    engine.pin(None)
    assert engine.versions_loaded == (2,)
    with pytest.raises(EngineError, match="Version 1 is not held here; held are 2"):
        ask(engine, "late", ids, version=1)


def test_pausing_in_place_and_with_retraction_changes_no_token(first: Weights, model: Model) -> None:
    ids = random_ids(random.Random(7), 30, first.vocabulary)
    outputs = []
    for mode in ("none", "in_place", "retract"):
        engine = engine_of(model, slots=2)
        requests = [ask(engine, f"r{n}", ids[n:], 15, seed=n) for n in range(4)]
        for _ in range(5):
            engine.step()
        if mode != "none":
            engine.pause(mode)  # type: ignore[arg-type]
            sofar = [list(request.output) for request in requests]
            engine.step()
            assert [request.output for request in requests] == sofar
            assert bool(engine.running) == (mode == "in_place")
            engine.resume()
        run(engine)
        outputs.append([request.output for request in requests])
        for request in requests:
            assert_exact(first, request)
    assert outputs[0] == outputs[1] == outputs[2]


def test_the_whole_sequence_is_scored_as_transformers_does(first: Weights, model: Model) -> None:
    ids = random_ids(random.Random(8), 120, first.vocabulary)
    expected = first.log_probs(ids)
    assert max(abs(a - b) for a, b in zip(expected, model.scores([ids])[0], strict=True)) <= CLOSE
    assert model.scores([ids[:1], ids])[0] == []
