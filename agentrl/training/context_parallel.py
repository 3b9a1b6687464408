"""Each rank along `context` has a part of every packed sequence.

A sequence is cut into twice as many pieces as there are ranks, and each rank has one from the front and one from the
back, so that all of them attend to about as many keys. Keys and values of all ranks are gathered for attention.

Invariants:
- every rank gets the columns of all pairs, and computes the same loss;
- the gradient of a key is the sum of the gradients from the queries of all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from agentrl.training.mesh import Mesh
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.scorers import Scorer
from agentrl.training.tree_attention import Tree, padding, part_of


def apply(scorer: Scorer[Any], mesh: Mesh) -> None:
    inner: Any = scorer.forward
    group = mesh.group("context")

    def forward(batches: Sequence[MicroBatch]) -> list[Any]:
        shares = [_share_of(batch, group) for batch in batches]
        found = inner([share.batch for share in shares])
        return [
            scorer.columns(*(_Joined.apply(column, share.pairs, group) for column in columns))  # type: ignore[no-untyped-call]
            for columns, share in zip(found, shares, strict=True)
        ]

    scorer.forward = forward  # type: ignore[method-assign]


class _Share(NamedTuple):
    batch: MicroBatch
    """What this rank computes."""
    pairs: list[Tensor]
    """Which pairs each rank has."""


def _share_of(batch: MicroBatch, group: ProcessGroup) -> _Share:
    ranks, rank = group.size(), group.rank()
    length = batch.ids.shape[1]
    piece = -(-length // (2 * ranks))
    piece += padding(piece, batch.ids.device)
    own = (rank, 2 * ranks - 1 - rank)
    owner, place = _owners(batch.asked_at, piece, ranks)
    mine = owner == rank
    owner_of_pair = owner[batch.asked]
    pairs = [torch.where(owner_of_pair == other)[0] for other in range(ranks)]
    number = torch.cumsum(mine, 0) - 1
    return _Share(
        dataclasses.replace(
            batch,
            ids=_cut(batch.ids, piece, ranks, own),
            positions=_cut(batch.positions, piece, ranks, own),
            tree=_tree(batch, piece, ranks, own, group),
            asked_row=batch.asked_row[mine],
            asked_at=place[mine],
            temperatures=batch.temperatures[mine],
            asked=number[batch.asked[pairs[rank]]],
            target=batch.target[pairs[rank]],
        ),
        pairs,
    )


def _owners(places: Tensor, piece: int, ranks: int) -> tuple[Tensor, Tensor]:
    """The rank of each place of a sequence, and its place on that rank."""
    which = places // piece
    other = 2 * ranks - 1 - which
    second = which > other
    return torch.minimum(which, other), places - which * piece + second * piece


def _cut(row: Tensor, piece: int, ranks: int, own: tuple[int, int]) -> Tensor:
    filled = torch.nn.functional.pad(row, (0, 2 * ranks * piece - row.shape[1]))
    pieces = torch.split(filled, piece, dim=1)
    return torch.cat([pieces[one] for one in own], dim=1)


def _tree(batch: MicroBatch, piece: int, ranks: int, own: tuple[int, int], group: ProcessGroup) -> Tree:
    if batch.tree is None:
        raise ValueError("only packed trees can be divided")
    places = [slice(one * piece, (one + 1) * piece) for one in own]
    return part_of(batch.tree, 2 * ranks * piece, places, lambda part: _gathered(part, group), batch.ids.device)


class _Joined(torch.autograd.Function):
    """A column of all ranks in the order of pairs."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, pairs: list[Tensor], group: ProcessGroup) -> Tensor:
        ctx.own = pairs[group.rank()]
        longest = max(map(len, pairs))
        padded = torch.nn.functional.pad(own, (0, longest - len(own)))
        parts = [torch.empty_like(padded) for _ in pairs]
        torch.distributed.all_gather(parts, padded, group=group)
        whole = own.new_empty(sum(map(len, pairs)))
        for part, places in zip(parts, pairs, strict=True):
            whole[places] = part[: len(places)]
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0][ctx.own], None, None


def _gathered(part: Tensor, group: ProcessGroup) -> Tensor:
    """Keys or values [1, heads, length, width] of the whole sequence, in its order."""
    tensor: Tensor = _Gathered.apply(part, group)  # type: ignore[no-untyped-call]
    return tensor


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        torch.distributed.all_gather(parts, part.contiguous(), group=group)
        halves = [one.chunk(2, dim=2) for one in parts]
        return torch.cat([front for front, _ in halves] + [back for _, back in reversed(halves)], dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient, ranks = gradients[0], ctx.group.size()
        pieces = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).chunk(2 * ranks, dim=2)
        of_ranks = [torch.cat([pieces[one], pieces[2 * ranks - 1 - one]], dim=2) for one in range(ranks)]
        own = torch.empty_like(of_ranks[0])
        torch.distributed.reduce_scatter(own, of_ranks, group=ctx.group)
        return own.to(gradient.dtype), None
