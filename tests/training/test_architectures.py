"""Every architecture that is declared trainable gives the loss and gradient of the unmerged computation.

The architectures are those of transformers, with random weights and few parameters.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from agentrl.chat.template import Template
from agentrl.training.learner import Learner, LearnerSettings
from agentrl.training.model_check import LINEAR_MODELS, TREE_MODELS
from tests.chat import families as chat_families
from tests.training.test_packing import agree, packed, reference, two_groups
from tests.training.trees import VOCABULARY, batch_of

LIMIT = 2e-5
"""Stock norms and rotations compute in float32, also in a model of float64. Experts have no kernel for float64."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY + 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
WINDOW: dict[str, Any] = {"sliding_window": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama 3": ("llama", {}, "tree"),
    "mistral": ("mistral", {"sliding_window": None}, "tree"),
    "mistral with a window": ("mistral", WINDOW, "linear"),
    "qwen2.5": ("qwen2", {}, "tree"),
    "qwen2 moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 24}, "tree"),
    "qwen3": ("qwen3", {}, "tree"),
    "qwen3 with tied embeddings": ("qwen3", {"tie_word_embeddings": True}, "tree"),
    "qwen3 moe": ("qwen3_moe", EXPERTS, "tree"),
    "deepseek v3": ("deepseek_v3", LATENT, "tree"),
    "gemma 2": ("gemma2", {**WINDOW, "query_pre_attn_scalar": 8}, "linear"),
    "gemma 3": ("gemma3_text", {**WINDOW, "query_pre_attn_scalar": 8}, "linear"),
    "gpt-oss": ("gpt_oss", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}, "linear"),
}


def learner_of(directory: Path, kind: str, changes: dict[str, Any], *, generation: bytes = b"") -> Learner:
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
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
    assert kinds >= TREE_MODELS, "each one that shares tokens is proven"
    assert kinds <= TREE_MODELS | LINEAR_MODELS


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
