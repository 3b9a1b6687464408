"""Requests to a slot engine without thread or network, compared with transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentrl.engines.embedded.decoder import Model
from agentrl.engines.embedded.generation_request import Request
from agentrl.engines.embedded.slot_scheduler import SlotEngine
from agentrl.engines.interface import Sampling
from tests.engines.conftest import Weights

CLOSE = 1e-5


def engine_of(model: Model, *, slots: int = 8, context: int = 256) -> SlotEngine:
    made = SlotEngine(slots=slots, context=context)
    made.switch(model)
    return made


def run(engine: SlotEngine, *, most: int = 10_000, before_each: Callable[[], None] = lambda: None) -> None:
    for _ in range(most):
        if not engine.busy:
            return
        before_each()
        engine.step()
    raise AssertionError("the engine still computes after many rounds")


def ask(engine: SlotEngine, rid: str, ids: list[int], tokens: int = 12, *, seed: int = 0, **how: Any) -> Request:
    version, images = how.pop("version", None), how.pop("images", {})
    request = Request(rid, ids, Sampling(max_new_tokens=tokens, **how), seed=seed, images=images)
    engine.submit(request, version)
    return request


def assert_exact(weights: Weights, request: Request, temperature: float = 1.0) -> None:
    assert request.error is None
    assert len(request.output) == len(request.log_probs) == sum(count for _, count in request.versions)
    expected = weights.log_probs(request.ids, temperature)[len(request.prompt) - 1 :]
    assert max(abs(a - b) for a, b in zip(expected, request.log_probs, strict=True)) <= CLOSE


def random_ids(chance: random.Random, length: int, vocabulary: int) -> list[int]:
    return [chance.randrange(vocabulary) for _ in range(length)]
