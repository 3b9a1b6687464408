"""Each rank along `expert` has some experts of every layer, and computes them for the tokens of all ranks.

Ranks send each token to the ranks of its experts and get the results back; every rank trains different groups of
records.

Invariant: the gradient of an expert's weights has the tokens of all ranks along `expert`: it is not summed over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from agentrl.training import collectives
from agentrl.training.mesh import Mesh
from agentrl.training.scorers import Scorer
from agentrl.training.tensor_parallel import computed, divide_experts


def apply(scorer: Scorer[Any], mesh: Mesh) -> None:
    for module in experts_of(scorer):
        divide_experts(module, mesh.along("expert"))
        module.forward = _exchanging(module, mesh.group("expert"))


def experts_of(scorer: torch.nn.Module) -> Iterator[Any]:
    """The modules that have the weights of all experts of a layer."""
    return (module for name, module in scorer.named_modules() if name.endswith(".experts"))


def _exchanging(module: Any, group: ProcessGroup) -> Any:
    inner = module.forward

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token, expert = order // chosen.shape[1], flat[order]
        sent, received = _counts(expert // module.num_experts, group)
        arrived = collectives.exchanged(hidden[token], sent, received, group)
        own = collectives.all_to_all(expert % module.num_experts, sent, received, group)
        found = computed(module, inner, arrived, own)
        share = collectives.exchanged(found, received, sent, group) * weights.reshape(-1)[order, None]
        return torch.zeros_like(hidden).index_add(0, token, share.to(hidden.dtype))

    return forward


def _counts(owner: Tensor, group: ProcessGroup) -> tuple[list[int], list[int]]:
    """How many rows this rank sends to each rank, and gets from each."""
    sent = torch.bincount(owner, minlength=group.size())
    received = torch.empty_like(sent)
    torch.distributed.all_to_all_single(received, sent, group=group)
    return sent.tolist(), received.tolist()
