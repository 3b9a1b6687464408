"""How some architectures change logits after their head: by a factor, and by a smooth cap.

The configuration of each model has its own keys for this. Log-probs without it would belong to another policy than the
one that engines sample from.

Invariant: `slope` is the derivative of `applied`, so a backward pass in chunks is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

FACTORS = {"logit_scale": ("cohere", "cohere2"), "lm_head_multiplier": ("falcon_h1",)}
"""Keys whose value multiplies logits, with the types of models that have them."""
DIVISORS = {"logits_scaling": ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid")}
CAPS = {"final_logit_softcapping": ("gemma2", "gemma3_text")}
DIRECT = frozenset(
    {
        "deepseek_v3",
        "gpt_oss",
        "lfm2",
        "llama",
        "mistral",
        "phi3",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
    }
)
"""Types of models that do not change the logits of the head."""


class LogitShape(NamedTuple):
    """logits → cap · tanh(factor · logits / cap); without a cap: factor · logits."""

    factor: float = 1.0
    cap: float = 0.0
    """0: none."""

    def applied(self, logits: Tensor) -> Tensor:
        scaled = logits if self.factor == 1 else logits * self.factor
        return self.cap * torch.tanh(scaled / self.cap) if self.cap else scaled

    def slope(self, shaped: Tensor) -> Tensor | float:
        """The derivative, from what `applied` returned."""
        return self.factor * (1 - (shaped / self.cap) ** 2) if self.cap else self.factor


PLAIN = LogitShape()


def shape_of(config: Any) -> LogitShape | None:
    """The shape for a model with this configuration; None if it is unknown how its type changes logits."""
    kind = str(config.model_type)
    if kind in DIRECT:
        return PLAIN
    known = [table for table in (FACTORS, DIVISORS, CAPS) if any(kind in kinds for kinds in table.values())]
    if not known:
        return None
    factor = _value(config, FACTORS, kind, 1.0) / _value(config, DIVISORS, kind, 1.0)
    return LogitShape(factor, _value(config, CAPS, kind, 0.0))


def _value(config: Any, table: Mapping[str, tuple[str, ...]], kind: str, default: float) -> float:
    for key, kinds in table.items():
        if kind in kinds:
            return float(getattr(config, key, None) or default)
    return default
