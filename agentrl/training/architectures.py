"""What is known of the architectures that can be trained.

Invariant: the file imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.images.processing import MODELS

TREE_MODELS = frozenset({"deepseek_v3", "llama", "mistral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Full softmax attention in every layer (unless the configuration differs), logits directly from the head."""
VISION_MODELS = MODELS
"""They read images; their decoders have full softmax attention in every layer."""
LINEAR_MODELS = frozenset(
    {"falcon_h1", "gemma2", "gemma3_text", "gpt_oss", "granite", "lfm2", "mamba2", "minimax", "qwen3_next"}
)
"""A state, a convolution or a window runs along the row, so only whole branches are correct; or the model changes
logits after the head."""
FUSED_MODELS = frozenset({"phi3"})
"""Models with queries, keys and values, or gates and columns, in one matrix."""
EXPERT_MODELS = frozenset({"deepseek_v3", "qwen2_moe", "qwen3_moe"})
"""Models with layers of experts whose weights are one tensor."""


def packs_trees(described: Mapping[str, Any]) -> bool:
    """Whether rows of a model may be packed trees; `described` is its configuration."""
    decoder = described.get("text_config") or described
    windows = decoder.get("use_sliding_window", True) and decoder.get("sliding_window")
    layers = set(decoder.get("layer_types") or ["full_attention"])
    known = described.get("model_type") in TREE_MODELS | VISION_MODELS
    return known and not windows and layers == {"full_attention"}
