"""Every architecture that is declared trainable gives the loss and gradient of the unmerged computation.

The architectures are those of transformers, with random weights and few parameters.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.chat.template import Template
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.model_check import LINEAR_MODELS, TREE_MODELS
from tests.chat import families as chat_families
from tests.training import families
from tests.training.families import FAMILIES
from tests.training.test_packing import agree, packed, reference, two_groups
from tests.training.trees import batch_of

LIMIT = 2e-5
"""Stock norms and rotations compute in float32, also in a model of float64. Experts have no kernel for float64."""


def learner_of(directory: Path, kind: str, changes: dict[str, Any], *, generation: bytes = b"") -> Learner:
    families.write(directory, kind, changes)
    if generation:
        (directory / "generation_config.json").write_bytes(generation)
    experts = any("num_experts_per_tok" in part for part in changes)
    return Learner(directory, LearnerSettings(), dtype=torch.float32 if experts else torch.float64)


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_loss_and_gradient_are_those_of_the_unmerged_computation(tmp_path: Path, name: str) -> None:
    kind, changes, layout = FAMILIES[name]
    learner = learner_of(tmp_path, kind, changes)
    assert learner.layout == layout
    batch = batch_of(two_groups(random.Random(11)))
    agree(packed(learner, batch), reference(learner, batch), LIMIT)


def test_the_architectures_of_the_families_are_declared() -> None:
    kinds = {kind for kind, _, _ in FAMILIES.values()}
    assert kinds == TREE_MODELS | LINEAR_MODELS


def test_what_is_published_has_the_chat_template_and_the_stops_of_the_model(tmp_path: Path) -> None:
    family = chat_families.FAMILIES["llama"]
    family.write(tmp_path / "model")
    size = Template.of(tmp_path / "model").tokenizer.size
    generation = (tmp_path / "model" / "generation_config.json").read_bytes()
    learner = learner_of(tmp_path / "model", "llama", {"vocab_size": size}, generation=generation)
    learner.save(tmp_path / "published")
    before, after = Template.of(tmp_path / "model"), Template.of(tmp_path / "published")
    assert after.stop_ids == before.stop_ids
    assert len(after.stop_ids) == 2
    assert after.first("Sell.", [], "What?") == before.first("Sell.", [], "What?")
