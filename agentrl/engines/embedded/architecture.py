"""The architecture of a model that this engine's own decoder can compute, from the `config.json` of its directory; no
tensors. All other models are computed by the modules of transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A Qwen3 decoder."""

    model_type: str = "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    max_position_embeddings: int = 32768

    @property
    def theta(self) -> float:
        """Base of the rotary embedding; newer `config.json` files have it one level deeper."""
        return float(self.rope_theta or (self.rope_parameters or {}).get("rope_theta") or 10_000.0)

    @property
    def groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def is_plain(self) -> bool:
        """Whether our own decoder computes exactly this architecture."""
        rope = self.rope_parameters or self.rope_scaling or {}
        return (
            self.hidden_act == "silu"
            and not self.attention_bias
            and not self.use_sliding_window
            and rope.get("rope_type", rope.get("type", "default")) == "default"
            and self.num_attention_heads % self.num_key_value_heads == 0
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the file of weights must have, by the names that Hugging Face uses."""
        hidden, inner, wide = self.hidden_size, self.intermediate_size, self.head_dim
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tie_word_embeddings:
            found["lm_head.weight"] = (self.vocab_size, hidden)
        for layer in range(self.num_hidden_layers):
            parts: dict[str, tuple[int, ...]] = {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (self.num_attention_heads * wide, hidden),
                "self_attn.k_proj": (self.num_key_value_heads * wide, hidden),
                "self_attn.v_proj": (self.num_key_value_heads * wide, hidden),
                "self_attn.o_proj": (hidden, self.num_attention_heads * wide),
                "self_attn.q_norm": (wide,),
                "self_attn.k_norm": (wide,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }
            found |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
        return found


class _Kind(msgspec.Struct, frozen=True):
    model_type: str


def architecture_of(data: bytes, source: Path) -> Architecture | None:
    """The architecture in a `config.json`; None for a model of another kind. Raises ConfigError if this is no
    configuration of a model."""
    try:
        if msgspec.json.decode(data, type=_Kind).model_type != "qwen3":
            return None
        found = msgspec.json.decode(data, type=Architecture)
    except msgspec.MsgspecError as broken:
        raise ConfigError(f"{source} is not a configuration of a model: {broken}.") from broken
    return found if found.is_plain else None
