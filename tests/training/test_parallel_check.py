"""A model that cannot be spread as a run wants is refused before anything starts, with what it can have."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.contradictions import of_parallel
from agentrl.config.parallel import Parallel
from agentrl.engines.embedded.tiny_config import TINY
from agentrl.errors import ConfigError
from agentrl.training.parallel_check import refuse_parallel

EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_experts": 12,
}
WINDOW = {"model_type": "gemma3_text", "num_hidden_layers": 4, "num_key_value_heads": 4}
MODELS = {"tiny": TINY, "experts": EXPERTS, "window": WINDOW, "experts with a window": {**EXPERTS, "sliding_window": 8}}
OF_EXPERTS = "It can have shard, replicate, tensor 2 or 4, context, pipeline up to 6, expert 2 or 3 or 4 or 6 or 12."


@pytest.mark.parametrize(
    ("model", "sizes", "hint"),
    [
        ("tiny", {"tensor": 4}, "It can have shard, replicate, tensor 2, context, pipeline up to 2."),
        ("tiny", {"expert": 2}, "It can have shard, replicate, tensor 2, context, pipeline up to 2."),
        ("experts", {"tensor": 3}, OF_EXPERTS),
        ("experts", {"expert": 5}, OF_EXPERTS),
        ("experts", {"pipeline": 7}, OF_EXPERTS),
        ("window", {"tensor": 2}, "It can have shard, replicate."),
        ("window", {"context": 2}, "It can have shard, replicate."),
        ("experts with a window", {"pipeline": 2}, "It can have shard, replicate, expert 2 or 3 or 4 or 6 or 12."),
    ],
)
def test_what_a_model_cannot_have_is_refused(model: str, sizes: dict[str, int], hint: str) -> None:
    (kind,) = sizes
    with pytest.raises(ConfigError, match=f"training.parallel.{kind}: {sizes[kind]} is not possible") as refused:
        refuse_parallel(sizes, MODELS[model])
    assert refused.value.hint == hint


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("tiny", {"tensor": 2, "context": 8, "pipeline": 2}),
        ("experts", {"tensor": 4, "pipeline": 5}),
        ("experts", {"expert": 6, "shard": 7}),
        ("window", {"shard": 8, "replicate": 4}),
    ],
)
def test_what_a_model_can_have_is_not(model: str, sizes: dict[str, int]) -> None:
    refuse_parallel(sizes, MODELS[model])


def test_two_kinds_that_divide_experts_are_refused() -> None:
    problems = list(of_parallel(Parallel(tensor=2, expert=2), groups=8))
    assert problems == [(("training", "parallel", "expert"), "and tensor both divide the experts: have one of them")]


@pytest.mark.parametrize("kind", Parallel.model_fields)
def test_layers_are_compiled_only_where_ranks_exchange_whole_layers(kind: str) -> None:
    plan = Parallel(**{kind: 2})
    problems = [sentence for _, sentence in of_parallel(plan, groups=8, compiled=True)]
    assert bool(problems) is (kind not in ("shard", "replicate"))
    assert all(f"cannot be combined with training.parallel.{kind}" in sentence for sentence in problems)
    assert not list(of_parallel(plan, groups=8))
