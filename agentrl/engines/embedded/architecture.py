"""The architecture of a model, from the `config.json` of its directory; no tensors.

Invariant: a model that this engine would compute wrongly is refused with a sentence, never approximated.
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
        """Base of the rotary embedding; newer directories keep it one level deeper."""
        return float(self.rope_theta or (self.rope_parameters or {}).get("rope_theta") or 10_000.0)

    @property
    def groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def problem(self) -> str:
        """Empty, or why this engine cannot compute the model."""
        rope = self.rope_parameters or self.rope_scaling or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        for wrong, sentence in (
            (self.model_type != "qwen3", f"model_type is {self.model_type!r}, and only 'qwen3' is supported"),
            (self.attention_bias, "attention_bias is not supported"),
            (self.hidden_act != "silu", f"hidden_act is {self.hidden_act!r}, and only 'silu' is supported"),
            (self.use_sliding_window, "sliding windows are not supported"),
            (kind != "default", f"the rotary embedding is {kind!r}, and only 'default' is supported"),
            (self.num_attention_heads % self.num_key_value_heads != 0, "heads do not divide by key-value heads"),
        ):
            if wrong:
                return sentence
        return ""

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


def parse_architecture(data: bytes, source: Path) -> Architecture:
    """Raises ConfigError if this engine cannot compute the model."""
    try:
        found = msgspec.json.decode(data, type=Architecture)
    except msgspec.MsgspecError as broken:
        raise ConfigError(f"{source} is not a configuration of a model: {broken}.") from broken
    if problem := found.problem():
        raise ConfigError(f"The embedded engine cannot run {source.parent}: {problem}.")
    return found
