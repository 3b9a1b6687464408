"""FSDP2: each rank keeps a part of every weight, and layers are gathered when their turn comes.

Invariants:
- gradients are summed over ranks and never averaged: the denominator of the loss counts the records of all of them;
- between two forward passes no gathered weight is left that an optimizer step would not update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from agentrl.training.expert_parallel import experts_of
from agentrl.training.mesh import Mesh
from agentrl.training.policy_model import is_elsewhere, layers_of
from agentrl.training.scorers import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How parts of weights are stored and gathered."""

    narrow: bool = False
    """Weights are gathered in bfloat16; gradients are summed in float32."""
    on_host: bool = False
    """Weights, gradients and optimizer state are in the memory of the host, and layers on the device in their turn."""


def apply(scorer: Scorer[Any], mesh: Mesh, keeping: Keeping, device: torch.device) -> None:
    """Shards the model. Afterwards it is on the device, or in the memory of the host."""
    if mesh.spread is None:
        module: Any = scorer
        module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))
        return
    untyped: Any = scorer.model
    precision = MixedPrecisionPolicy()
    if keeping.narrow:
        precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        wide = untyped.dtype
        # Sums over layers keep the precision that they have in one process.
        untyped.get_input_embeddings().register_forward_hook(lambda *call: call[-1].to(wide))
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if keeping.on_host else OffloadPolicy()
    options: dict[str, Any] = {"reshard_after_forward": True, "mp_policy": precision, "offload_policy": offload}
    apart = [one for one in experts_of(scorer) if mesh.size("expert") > 1 and not is_elsewhere(one)]
    ignored = {parameter for parameter in scorer.parameters() if parameter.is_meta}
    for experts in apart:
        if mesh.spread_experts is None:
            ignored |= set(experts.parameters())
        else:
            fully_shard(experts, mesh=mesh.spread_experts, **options)
    for layer in layers_of(scorer.model):
        if not is_elsewhere(layer):
            fully_shard(layer, mesh=mesh.spread, ignored_params=ignored, **options)
    # Weights outside of the layers are also gathered again for the backward pass.
    fully_shard(scorer, mesh=mesh.spread, ignored_params=ignored, **options)
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
