"""Small random models of the architectures of transformers that are trained and served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.training.trees import VOCABULARY

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
STATES: dict[str, Any] = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
}
DELTA: dict[str, Any] = {
    "shared_expert_intermediate_size": 24,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
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
    "phi 3": ("phi3", {}, "tree"),
    "granite": ("granite", {"logits_scaling": 2.0, "embedding_multiplier": 3.0}, "linear"),
    "falcon h1": ("falcon_h1", STATES, "linear"),
    "lfm 2": ("lfm2", {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}, "linear"),
    "mamba 2": ("mamba2", {**STATES, "head_dim": 8, "num_heads": 8, "state_size": 8, "n_groups": 2}, "linear"),
    "minimax": ("minimax", {"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 16}, "linear"),
    "qwen3 next": ("qwen3_next", {**EXPERTS, **DELTA}, "linear"),
    "gpt-oss": ("gpt_oss", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}, "linear"),
}


def write(directory: Path, kind: str, changes: dict[str, Any]) -> None:
    """Writes a model of this kind with random weights."""
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
