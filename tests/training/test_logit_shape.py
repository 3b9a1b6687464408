"""Heads with a factor or a cap: in chunks what the model itself computes, with the gradient of finite differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from agentrl.training import pair_scores as module
from agentrl.training.model_check import LINEAR_MODELS, TREE_MODELS
from agentrl.training.pair_scores import PLAIN, LogitShape, pair_scores, shape_of
from tests.training.families import SIZES
from tests.training.test_architectures import learner_of
from tests.training.test_pair_scores import WORDS, given

SHAPED: dict[str, tuple[dict[str, Any], LogitShape]] = {
    "gemma2": ({"sliding_window": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0}, LogitShape(1.0, 2.0)),
    "gemma3_text": ({"sliding_window": 8, "query_pre_attn_scalar": 8}, PLAIN),
    "cohere": ({"logit_scale": 0.25}, LogitShape(0.25)),
    "granite": ({"logits_scaling": 4.0}, LogitShape(0.25)),
    "llama": ({}, PLAIN),
}


@pytest.mark.parametrize("shape", [LogitShape(0.5), LogitShape(1.0, 3.0), LogitShape(2.0, 1.5)])
def test_the_gradient_of_a_shaped_head_is_that_of_finite_differences(
    monkeypatch: pytest.MonkeyPatch, shape: LogitShape
) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", 2 * WORDS)
    *floats, temperatures, asked, target = given(torch.float64, bias=True)

    def scores(*parts: Any) -> torch.Tensor:
        return pair_scores(*parts, temperatures, asked, target, shape)[0]

    assert torch.autograd.gradcheck(scores, tuple(floats))


@pytest.mark.parametrize("kind", SHAPED)
def test_log_probs_are_those_of_the_logits_of_the_model(tmp_path: Path, kind: str) -> None:
    changes, shape = SHAPED[kind]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    assert shape_of(config) == shape
    if kind not in TREE_MODELS | LINEAR_MODELS:
        return
    learner = learner_of(tmp_path, kind, changes)
    ids = [3, 14, 15, 92, 65, 35]
    with torch.no_grad():
        logits = learner.model(input_ids=torch.tensor([ids])).logits[0, :-1]
        expected = logits.double().log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    assert learner.log_probs([ids])[0] == pytest.approx(expected.tolist(), abs=1e-5)


def test_models_that_share_tokens_are_known_and_others_are_computed_from_whole_logits() -> None:
    for kind in TREE_MODELS:
        assert shape_of(transformers.AutoConfig.for_model(kind)) is not None, kind
    assert shape_of(transformers.AutoConfig.for_model("mamba2")) is None
