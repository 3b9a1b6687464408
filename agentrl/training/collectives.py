"""Exchanges between ranks in the middle of a forward pass, with their gradients.

Each rank computes the same loss from the data that it received. So each rank of a group computes a value that all of
them have, and its gradient is not summed again; the gradient of the data that a rank sent is the sum of what the others
computed for it.

Invariant: all ranks of a group make the same exchanges in the same order, in the backward pass as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp


def copied(value: Tensor, group: ProcessGroup) -> Tensor:
    """A value that all ranks have, as the input of work that they divide: the gradients of the parts are summed."""
    tensor: Tensor = _Copied.apply(value, group)  # type: ignore[no-untyped-call]
    return tensor


def summed(value: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of the parts of all ranks, which all of them get."""
    tensor: Tensor = _Summed.apply(value, group)  # type: ignore[no-untyped-call]
    return tensor


def exchanged(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """Rows for other ranks, in their order: `sent` to each of them, `received` from each."""
    tensor: Tensor = _Exchanged.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return tensor


def total(value: Tensor, group: ProcessGroup, operation: Any = ReduceOp.SUM) -> Tensor:
    """The sum over all ranks, without gradient."""
    whole = value.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(whole, operation, group=group)
    return whole


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return total(gradients[0], ctx.group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: ProcessGroup) -> Tensor:
        return total(value, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
        ctx.how = sent, received, group
        return all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        sent, received, group = ctx.how
        return all_to_all(gradients[0], received, sent, group), None, None, None


def all_to_all(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """Like `exchanged`, without gradient."""
    found = rows.new_empty((sum(received), *rows.shape[1:]))
    torch.distributed.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found
