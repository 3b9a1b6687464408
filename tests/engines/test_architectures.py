"""The embedded engine serves what the trainer computes, for each architecture that can be trained."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from agentrl.engines.embedded.slot_scheduler import SlotEngine
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from tests.engines import unverified
from tests.engines.http_requests import ask, engine_of, random_ids, run
from tests.training import families
from tests.training.families import FAMILIES

CLOSE = 1e-4
STATEFUL = {"falcon h1", "lfm 2", "mamba 2", "minimax", "qwen3 next"}


@pytest.fixture
def device() -> str:
    """The device of the engine."""
    return "cpu"


@pytest.fixture
def close() -> float:
    """The largest allowed difference between log-probs of engine and trainer."""
    return CLOSE


def served(directory: Path, name: str, device: str = "cpu") -> tuple[SlotEngine, Learner]:
    kind, changes, _ = FAMILIES[name]
    families.write(directory, kind, changes)
    engine = engine_of(unverified.load(directory, 1, device), slots=6 if name in STATEFUL else 3)
    return engine, Learner(directory, LearnerSettings())


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_of_the_engine_are_those_of_the_trainer(tmp_path: Path, device: str, close: float, name: str) -> None:
    """Conversations of several turns and a group with one prompt. Where slots share prompts, conversations outnumber
    slots."""
    engine, learner = served(tmp_path, name, device)
    chance, vocabulary = random.Random(3), families.SIZES["vocab_size"]
    histories = {f"t.s{seat}": random_ids(random.Random(seat // 2), 23, vocabulary) for seat in range(4)}
    done = []
    with torch.inference_mode():
        for turn in range(2):
            asked = [
                ask(engine, f"{one}/c{turn}", ids, 4 + number, seed=number, temperature=0.7)
                for number, (one, ids) in enumerate(histories.items())
            ]
            run(engine)
            done += asked
            for one, request in zip(histories, asked, strict=True):
                histories[one] = request.ids + random_ids(chance, 3, vocabulary)
        model = engine.model_of(None)
        probe = random_ids(chance, 31, vocabulary)
        scored = model.scores([probe])[0]
    assert scored == pytest.approx(learner.log_probs([probe])[0], abs=close)
    for request in done:
        assert request.error is None
        # Calls sample at another temperature than that of the trainer's log-probs, so compare the logits.
        spread = torch.log_softmax(logits_of(learner, request.ids) / 0.7, dim=-1)
        expected = spread[range(len(spread) - 1), request.ids[1:]][len(request.prompt) - 1 :].tolist()
        assert request.log_probs == pytest.approx(expected, abs=close)
    assert sum(request.cached_tokens for request in done) > (20 if name in STATEFUL else 100)


@torch.no_grad()
def logits_of(learner: Learner, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = learner.model(torch.tensor([ids], device=learner.model.device), use_cache=False).logits[0]
    return found.float().cpu()
