"""The order in which calls are served, and how they end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch

from agentrl.engines.embedded.decoder import Model
from agentrl.engines.embedded.generation_request import Request, conversation_of
from agentrl.engines.embedded.slot_scheduler import SlotEngine
from agentrl.engines.http_server import weight_versions
from agentrl.engines.interface import CallRefusedError, EngineBusyError, EngineError, Sampling, WeightsRefusedError
from tests.engines.conftest import Weights
from tests.engines.http_requests import ask, assert_exact, engine_of, run


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_an_aborted_call_keeps_its_output_and_others_continue(first: Weights, model: Model) -> None:
    engine = engine_of(model)
    going, aborted = ask(engine, "a", [5, 6, 7], 20), ask(engine, "b", [5, 6, 8], 20)
    for _ in range(6):
        engine.step()
    engine.abort("b")
    assert aborted.finish == "abort"
    assert 0 < len(aborted.output) < 20
    assert_exact(first, aborted)
    run(engine)
    assert (going.finish, len(going.output)) == ("length", 20)
    assert len(aborted.output) < 20


def test_a_waiting_call_and_all_calls_can_be_aborted(model: Model) -> None:
    engine = engine_of(model, slots=1)
    requests = [ask(engine, f"r{n}", [5 + n, 6], 20) for n in range(4)]
    engine.step()
    engine.abort("r2")
    assert (requests[2].finish, requests[2].output) == ("abort", [])
    engine.abort("unknown")
    engine.abort("")
    assert [request.finish for request in requests] == ["abort"] * 4
    assert not engine.busy


def test_the_stop_token_is_part_of_the_output(first: Weights, model: Model) -> None:
    usual = first.greedy([9, 8, 7], 6)
    engine = engine_of(model)
    request = ask(engine, "r", [9, 8, 7], 6, temperature=0.0, stop_token_ids=(usual[3], 10_000))
    run(engine)
    end = usual.index(usual[3]) + 1
    assert (request.finish, request.output) == ("stop", usual[:end])


def test_the_context_ends_a_call_as_its_length_would(first: Weights, model: Model) -> None:
    engine = engine_of(model, context=32)
    request = ask(engine, "r", list(range(20)), 1000)
    run(engine)
    assert (request.finish, len(request.ids)) == ("length", 32)
    assert_exact(first, request)


@pytest.mark.parametrize(
    ("ids", "how", "sentence"),
    [
        ([], {}, "at least one"),
        ([1, 10_000], {}, "ids from 0 to"),
        ([-1], {}, "ids from 0 to"),
        (list(range(32)), {}, "with a context of 32"),
        ([1], {"temperature": -1.0}, "Temperature must be"),
        ([1], {"temperature": math.nan}, "Temperature must be"),
        ([1], {"top_p": 0.0}, "Top_p must be"),
        ([1], {"top_k": -2}, "Top_k must be"),
        ([1], {"min_p": 1.5}, "Min_p must be"),
        ([1], {"repetition_penalty": 0.0}, "Repetition_penalty must be"),
        ([1], {"tokens": -1}, "Max_new_tokens must be"),
    ],
)
def test_calls_that_cannot_be_served_are_refused_with_a_sentence(
    model: Model, ids: list[int], how: dict[str, float], sentence: str
) -> None:
    engine = engine_of(model, context=32)
    with pytest.raises(CallRefusedError, match=sentence):
        ask(engine, "r", ids, int(how.pop("tokens", 4)), **how)
    assert not engine.busy


def test_two_calls_with_one_id_are_refused_but_not_one_after_the_other(model: Model) -> None:
    engine = engine_of(model)
    ask(engine, "r", [1, 2], 4)
    with pytest.raises(CallRefusedError, match="under way already"):
        ask(engine, "r", [1, 2], 4)
    run(engine)
    assert ask(engine, "r", [1, 2], 4).error is None


def test_no_tokens_are_generated_if_none_are_requested(model: Model) -> None:
    engine = engine_of(model)
    request = ask(engine, "r", [1, 2], 0)
    assert (request.finish, request.output) == ("length", [])


def test_before_the_first_weights_nothing_is_served() -> None:
    with pytest.raises(EngineBusyError, match="no weights yet"):
        ask(SlotEngine(slots=2, context=16), "r", [1], 4)


def test_waiting_calls_are_served_in_order(model: Model) -> None:
    engine = engine_of(model, slots=2)
    order: list[str] = []
    for number in range(7):
        request = Request(
            f"r{number}", [number, 3], Sampling(max_new_tokens=3), seed=1, on_end=lambda one: order.append(one.rid)
        )
        engine.submit(request)
    run(engine)
    assert order == [f"r{number}" for number in range(7)]


def test_a_new_conversation_takes_the_slot_that_was_unused_longest(model: Model) -> None:
    engine = engine_of(model, slots=3)
    for name in ("a", "b", "c"):
        ask(engine, f"{name}/c0", [ord(name)] * 20, 2)
        run(engine)
    ask(engine, "d/c0", [100] * 20, 2)
    run(engine)
    assert {slot.conversation for slot in engine.slots} == {"b", "c", "d"}


def test_weights_without_finite_log_probs_fail_only_their_calls(model: Model) -> None:
    broken = replace(model, version=9, norm=torch.full_like(model.norm, math.nan))
    engine = engine_of(broken)
    request = ask(engine, "r", [1, 2], 4)
    run(engine)
    assert isinstance(request.error, EngineError)
    assert "Version 9 gives nan" in request.error.message
    engine.switch(model)
    after = ask(engine, "s", [1, 2], 4)
    run(engine)
    assert after.finish == "length"


def test_weights_of_another_shape_are_refused(model: Model) -> None:
    engine = engine_of(model)
    architecture = msgspec.structs.replace(model.architecture, hidden_size=64)
    other = replace(model, version=3, architecture=architecture)
    with pytest.raises(WeightsRefusedError, match="another architecture"):
        engine.switch(other)
    assert engine.current is model


def test_every_caller_gets_exactly_one_answer(model: Model) -> None:
    engine = engine_of(model, slots=2)
    ended: list[str] = []
    requests = [
        Request(f"r{n}", [n, 1], Sampling(max_new_tokens=6), seed=1, on_end=lambda one: ended.append(one.rid))
        for n in range(6)
    ]
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.pause("retract")
    engine.abort("r3")
    engine.resume()
    engine.step()
    engine.pause("abort")
    engine.fail_all(EngineError("late"))
    assert sorted(ended) == [request.rid for request in requests]


def test_conversation_of_a_rid_and_versions_by_place() -> None:
    assert conversation_of("t/0#r1.s2.a1/c3") == "t/0#r1.s2.a1"
    assert conversation_of("alone") == "alone"
    assert weight_versions([(3, 2), (4, 5)]) == [
        {"version": "3", "start": 0, "end": 2},
        {"version": "4", "start": 2, "end": 7},
    ]
