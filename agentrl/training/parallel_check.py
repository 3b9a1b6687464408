"""Which kinds of parallelism a model can have, from its configuration alone.

Invariant: the file imports no torch, because the command line runs these checks before it starts anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentrl.errors import ConfigError
from agentrl.images.processing import reads_images
from agentrl.training.architectures import EXPERT_MODELS, FUSED_MODELS, packs_trees

_EVEN = ("tensor", "expert")
"""All ranks have the same number of heads, columns and experts."""


def refuse_parallel(sizes: Mapping[str, int], described: Mapping[str, Any]) -> None:
    """Raises ConfigError if the model does not allow this parallelism. `sizes` has the ranks along each dimension,
    `described` the configuration of the model."""
    most = _limits(described)
    for kind, wanted in sizes.items():
        uneven = most[kind] % wanted and kind in _EVEN
        if wanted > most[kind] or uneven:
            raise ConfigError(
                f"training.parallel.{kind}: {wanted} is not possible for this model ({described.get('model_type')}).",
                hint=f"It can have {_possible(most)}.",
            )


def _limits(described: Mapping[str, Any]) -> dict[str, float]:
    """The most ranks along each dimension. Except for layers, the number of ranks must divide it."""
    # A vision tower is spread by shards and replicas only.
    trees = packs_trees(described) and not reads_images(described)
    kind = str(described.get("model_type"))
    experts = _experts(described) if kind in EXPERT_MODELS else 1
    return {
        "shard": math.inf,
        "replicate": math.inf,
        "tensor": math.gcd(*_divided(described)) if trees and kind not in FUSED_MODELS else 1,
        "context": math.inf if trees else 1,
        "pipeline": int(described.get("num_hidden_layers") or 1) if trees else 1,
        "expert": experts,
    }


def _divided(described: Mapping[str, Any]) -> list[int]:
    """The counts that ranks along `tensor` divide: heads, inner columns, experts."""
    wanted = [described.get("intermediate_size")]
    # Every rank computes all of latent attention, which has no heads of keys and values.
    if described.get("model_type") != "deepseek_v3":
        heads = described.get("num_attention_heads")
        wanted += [heads, described.get("num_key_value_heads") or heads]
    if described.get("model_type") in EXPERT_MODELS:
        wanted.append(_experts(described))
    if described.get("n_shared_experts"):
        wanted.append(described["n_shared_experts"] * described["moe_intermediate_size"])
    return [int(one or 1) for one in wanted]


def _experts(described: Mapping[str, Any]) -> int:
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    return next((int(described[name]) for name in names if described.get(name)), 1)


def _possible(most: Mapping[str, float]) -> str:
    found = []
    for kind, limit in most.items():
        if limit == math.inf:
            found.append(kind)
        elif kind == "pipeline" and limit > 1:
            found.append(f"pipeline up to {limit:.0f}")
        elif limit > 1:
            divisors = [str(number) for number in range(2, int(limit) + 1) if limit % number == 0]
            found.append(f"{kind} {' or '.join(divisors[:6])}")
    return ", ".join(found)
