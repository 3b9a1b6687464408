"""Each rank along `tensor` computes a part of every layer: some heads, some inner columns, some experts, some words.

The model's own plan in transformers says which of its matrices are divided by columns and which by rows. Attention and
the head need no change: they see fewer heads, or a part of the vocabulary (`pair_scores`). In adapters, the matrix at
the divided side of a layer is divided like the layer.

Invariants:
- between layers all ranks have the same hidden states, and the same gradients of them;
- a weight that is not divided has the whole gradient on every rank, or is named in `scorer.incomplete`.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from agentrl.training import collectives, lora
from agentrl.training.mesh import Mesh
from agentrl.training.pair_scores import PairScorer, PartOfVocabulary
from agentrl.training.scorers import Incomplete, Scorer

COLUMNS, ROWS, PARTIAL, EXPERTS = "colwise", "rowwise", "replicated_with_grad_allreduce", "moe_tp_experts"
"""The names that transformers uses for how a module is divided."""


def apply(scorer: Scorer[Any], mesh: Mesh) -> None:
    ranks, group = mesh.along("tensor"), mesh.group("tensor")
    model: Any = scorer.model
    decoder = model.get_decoder()
    plan: dict[str, str] = decoder.config.base_model_tp_plan
    partial: list[str] = []
    names = {id(parameter): name for name, parameter in scorer.model.named_parameters()}
    for name, module in decoder.named_modules():
        how = next((style for pattern, style in plan.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if how == PARTIAL:
            partial += [names[id(parameter)] for parameter in module.parameters()]
        elif how in _DIVIDED:
            for part in lora.layers_with_input(module) if how == ROWS else lora.layers_with_output(module):
                _DIVIDED[how](part, ranks, group)
    if partial:
        scorer.incomplete.append(
            Incomplete(partial, lambda gradient: torch.distributed.all_reduce(gradient, group=group))
        )
    _divide_vocabulary(scorer, ranks, group)


def divide(module: torch.nn.Module, name: str, ranks: DeviceMesh, dimension: int = 0) -> None:
    """Keeps this rank's part of a parameter, which several modules may share."""
    whole = module._parameters[name]
    if whole is None or isinstance(whole, DTensor):
        return
    part = distribute_tensor(whole.detach(), ranks, [Shard(dimension)], src_data_rank=None)
    module.register_parameter(name, torch.nn.Parameter(part, requires_grad=whole.requires_grad))


@contextlib.contextmanager
def parts_of(module: torch.nn.Module) -> Iterator[None]:
    """In this context the module's parameters are this rank's parts, as plain tensors."""
    parts: dict[str, Tensor] = {}
    for name, parameter in module._parameters.items():
        spread: Tensor | None = parameter
        if isinstance(spread, DTensor):
            parts[name] = spread.to_local()
    # Attributes of the object come before parameters, so the module's own code finds them.
    module.__dict__.update(parts)
    try:
        yield
    finally:
        for name in parts:
            del module.__dict__[name]


def _by_columns(module: Any, ranks: DeviceMesh, group: ProcessGroup) -> None:
    divide(module, "weight", ranks)
    divide(module, "bias", ranks)
    inner = module.forward

    def forward(value: Tensor) -> Tensor:
        with parts_of(module):
            tensor: Tensor = inner(collectives.copied(value, group))
            return tensor

    module.forward = forward


def _by_rows(module: Any, ranks: DeviceMesh, group: ProcessGroup) -> None:
    divide(module, "weight", ranks, dimension=1)

    def forward(value: Tensor) -> Tensor:
        with parts_of(module):
            found = collectives.summed(torch.nn.functional.linear(value, module.weight), group)
        # Added on one rank only, instead of once on each rank.
        return found if module.bias is None else found + module.bias

    module.forward = forward


def _by_experts(module: Any, ranks: DeviceMesh, group: ProcessGroup) -> None:
    first, count = divide_experts(module, ranks)
    inner = module.forward

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        hidden, weights = collectives.copied(hidden, group), collectives.copied(weights, group)
        token, rank_of_choice = torch.where((chosen >= first) & (chosen < first + count))
        found = computed(module, inner, hidden[token], chosen[token, rank_of_choice] - first)
        share = found * weights[token, rank_of_choice, None]
        return collectives.summed(torch.zeros_like(hidden).index_add(0, token, share.to(hidden.dtype)), group)

    module.forward = forward


def divide_experts(module: Any, ranks: DeviceMesh) -> tuple[int, int]:
    """Keeps this rank's experts; returns the first of them and their number."""
    for name in list(module._parameters):
        divide(module, name, ranks)
    module.num_experts //= ranks.size()
    count: int = module.num_experts
    return ranks.get_local_rank() * count, count


def computed(module: Any, inner: Any, rows: Tensor, experts: Tensor) -> Tensor:
    """The outputs of this rank's experts; each row belongs to one expert."""
    # Without rows, neither the rows nor the weights would get a gradient, for which other ranks wait.
    empty = not len(rows)
    if empty:
        rows, experts = torch.cat([rows, rows.new_zeros((1, rows.shape[1]))]), experts.new_zeros(1)
    with parts_of(module):
        tensor: Tensor = inner(rows, experts[:, None], rows.new_ones((len(rows), 1)))
    return tensor[:0] if empty else tensor


def _divide_vocabulary(scorer: Scorer[Any], ranks: DeviceMesh, group: ProcessGroup) -> None:
    """Divides the vocabulary of the head and of the embedding, which may be one matrix."""
    model: Any = scorer.model
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = embedding.weight is head.weight
    first = ranks.get_local_rank() * -(-embedding.weight.shape[0] // ranks.size())
    divide(embedding, "weight", ranks)
    embedding.forward = _embedding(embedding, first, group)
    # The head of a critic has no vocabulary.
    if isinstance(scorer, PairScorer):
        scorer.vocabulary = PartOfVocabulary(first, group)
        if tied:
            head.weight = embedding.weight
        else:
            divide(head, "weight", ranks)
            divide(head, "bias", ranks)


def _embedding(module: Any, first: int, group: ProcessGroup) -> Any:
    padding = module.padding_idx

    def forward(ids: Tensor) -> Tensor:
        weight = module.weight.to_local()
        own = (ids >= first) & (ids < first + len(weight))
        unlearned = padding - first if padding is not None and 0 <= padding - first < len(weight) else None
        found = torch.nn.functional.embedding(torch.where(own, ids - first, 0), weight, padding_idx=unlearned)
        return collectives.summed(torch.where(own[..., None], found, 0.0), group)

    return forward


_DIVIDED = {COLUMNS: _by_columns, ROWS: _by_rows, EXPERTS: _by_experts}
