"""The embedded engine on a GPU samples with the log-probs that the trainer computes there, for each kind of model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from agentrl.engines.embedded.generation_request import Request
from tests.engines import unverified
from tests.engines.http_requests import ask, engine_of, random_ids, run
from tests.engines.test_architectures import test_log_probs_of_the_engine_are_those_of_the_trainer  # noqa: F401
from tests.training import families
from tests.training.families import FAMILIES


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.fixture
def close() -> float:
    """GPU kernels add in another order than processors."""
    return 1e-3


def test_greedy_tokens_equal_those_of_processors(tmp_path: Path) -> None:
    """Long and short prompts share few slots. Some calls have penalties and limits of the distribution."""
    kind, changes, _ = FAMILIES["qwen3"]
    families.write(tmp_path, kind, changes)
    found: list[list[Request]] = []
    for device in ("cpu", "cuda"):
        engine, chance = engine_of(unverified.load(tmp_path, 1, device), slots=3), random.Random(1)
        with torch.inference_mode():
            asked = [
                ask(engine, f"r{number}/c0", random_ids(chance, 5 + 17 * number, families.SIZES["vocab_size"]), **rule)
                for number, rule in enumerate(
                    (
                        {"temperature": 0.0},
                        {"temperature": 0.0, "frequency_penalty": 0.5},
                        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
                        {"temperature": 1.0},
                    )
                )
            ]
            run(engine)
        found.append(asked)
    for one, other in zip(*found, strict=True):
        assert one.output == other.output
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-3)
