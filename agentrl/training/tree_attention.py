"""Exact attention over packed trees, in memory that grows with their length and not with its square.

A tree is one sequence in depth-first order; the query at i sees the key at j if j <= i < end[j]. Transformers calls
this as the attention implementation `NAME` of any architecture; the tree is an argument of the model's forward pass.

Invariants:
- no mask of length x length exists, on any device;
- the result is that of softmax attention under that rule, in the precision of the inputs: on processors from runs of
  tokens by flash attention, whose partial results are merged by their log-sum-exp; on GPUs by FlexAttention;
- each key is read only by queries that see it, up to the size of a block on GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentrl.training.batch import Array

NAME = "packed_tree"
BLOCK = 128
"""Tokens of a block of FlexAttention."""
LEAST_WIDTH = 16
"""The least width of a head on a GPU."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of which each is the only child of the one before; `end` is the end of all their descendants."""

    start: int
    stop: int
    end: int


class Call(NamedTuple):
    """Queries and keys of one call on slices."""

    queries: slice
    keys: slice
    causal: bool
    """Whether each query sees only the keys up to its own place."""


def _whole(part: Tensor) -> Tensor:
    return part


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """What attention needs to know of a packed sequence."""

    ends: Array
    calls: tuple[Call, ...]
    """The calls on processors."""
    blocks: BlockMask | None
    """For FlexAttention; None on processors."""
    gathered: Callable[[Tensor], Tensor] = _whole
    """Gathers the keys or values of the whole sequence from those on this rank."""


def tree_of(ends: Array, device: torch.device) -> Tree:
    """The tree of one packed sequence, or of several one after another. On a GPU it fills whole blocks."""
    return _tree(ends, [], device, _whole)


def part_of(
    tree: Tree, length: int, places: Sequence[slice], gathered: Callable[[Tensor], Tensor], device: torch.device
) -> Tree:
    """The tree for the queries at some places of the same sequence, which is padded to `length` with tokens that see
    only themselves. On a GPU places are whole blocks."""
    fill = np.arange(len(tree.ends) + 1, length + 1)
    return _tree(np.concatenate([tree.ends, fill]), places, device, gathered)


def _tree(ends: Array, places: Sequence[slice], device: torch.device, gathered: Callable[[Tensor], Tensor]) -> Tree:
    """`places`: those of the queries; None means all."""
    if device.type == "cuda":
        return Tree(ends, (), block_mask(ends, device, places), gathered)
    return Tree(ends, tuple(calls_of(runs_of(ends), places or [slice(0, len(ends))])), None, gathered)


def padding(length: int, device: torch.device) -> int:
    """How many padding tokens, which see only themselves, complete the last block of a sequence. Processors need
    none."""
    return -length % BLOCK if device.type == "cuda" else 0


def runs_of(ends: Array) -> tuple[Run, ...]:
    """The maximal runs, in order."""
    length = len(ends)
    at = np.arange(1, length)
    # The next token continues a run if it is the only child of the run's last token.
    breaks = at[(ends[1:] != ends[:-1]) | (ends[:-1] == at)]
    starts = np.concatenate(([0], breaks)) if length else breaks
    stops = np.concatenate((breaks, [length])) if length else breaks
    return tuple(Run(int(start), int(stop), int(ends[start])) for start, stop in zip(starts, stops, strict=True))


def block_mask(ends: Array, device: torch.device, places: Sequence[slice] = ()) -> BlockMask:
    """Which blocks of keys a block of queries sees wholly or in part, from the ends of each block alone. `places`:
    those of the queries; empty means all."""
    length = len(ends)
    in_blocks = ends.reshape(-1, BLOCK)
    count = len(in_blocks)
    latest, earliest = in_blocks.max(axis=1), in_blocks.min(axis=1)
    at = np.concatenate([np.arange(one.start, one.stop) for one in places or [slice(0, length)]])
    number = at[::BLOCK] // BLOCK
    before = np.arange(count)[None, :] < number[:, None]
    whole = before & (earliest[None, :] >= ((number + 1) * BLOCK)[:, None])
    own = np.arange(count)[None, :] == number[:, None]
    part = (before & (latest[None, :] > (number * BLOCK)[:, None]) & ~whole) | own
    last, place = torch.from_numpy(ends).to(device), torch.from_numpy(at).to(device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = place[query] if places else query
        return (key <= query) & (query < last[key])

    return BlockMask.from_kv_blocks(
        *_listed(part, device), *_listed(whole, device), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(len(at), length)
    )


def _listed(blocks: Array, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, and their indices before all others."""
    numbers = blocks.sum(axis=1).astype(np.int32)
    indices = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(numbers)[None, None].to(device), torch.from_numpy(indices)[None, None].to(device)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: Tree | None = None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; inputs are [1, heads, length, width]. Without a tree, they are
    ordinary sequences."""
    if tree is None:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return found, None
    if torch.is_autocast_enabled(query.device.type):
        narrow = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    key, value = tree.gathered(key), tree.gathered(value)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree.blocks is not None:
        # Within a compiled layer it is compiled with the layer.
        flex = flex_attention if torch.compiler.is_compiling() else _compiled()
        width = value.shape[-1]
        query, key, value = _wide_enough(query), _wide_enough(key), _wide_enough(value)
        found = flex(query, key, value, block_mask=tree.blocks, scale=scale, enable_gqa=True)[..., :width]
    else:
        groups = query.shape[1] // key.shape[1]
        # Values of latent attention (DeepSeek) are narrower than keys, and the kernel needs one width.
        width = value.shape[-1]
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
        keys, values = _repeated(key, groups), _repeated(value, groups)
        found = _ByRuns.apply(query, keys, values, tree.calls, scale)[..., :width]  # type: ignore[no-untyped-call]
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)


@functools.cache
def _compiled() -> Any:
    # Lengths differ from batch to batch: one dynamic graph instead of one for each.
    return torch.compile(flex_attention, dynamic=True)


def _wide_enough(heads: Tensor) -> Tensor:
    """Padded to the width that FlexAttention needs, with zeros, which change no product."""
    missing = LEAST_WIDTH - heads.shape[-1]
    return torch.nn.functional.pad(heads, (0, missing)) if missing > 0 else heads


def _repeated(heads: Tensor, times: int) -> Tensor:
    """Grouped keys or values, once for each head of their group."""
    return heads if times == 1 else heads.repeat_interleave(times, dim=1)


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _ByRuns(torch.autograd.Function):
    """The tokens of a run see each other causally, and all its descendants see the whole run.

    So each run is a key of two calls on slices, and a query's result is merged from one call for each run above it.
    The gradient of a part of softmax attention needs only the result and the log-sum-exp of the whole.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, calls: tuple[Call, ...], scale: float) -> Tensor:
        result = torch.zeros_like(query, dtype=torch.promote_types(query.dtype, torch.float32))
        sums = torch.full(query.shape[:-1], -torch.inf, dtype=result.dtype)
        for rows, keys, causal in calls:
            of, over = (..., rows, slice(None)), (..., keys, slice(None))
            found, logs = _flash(query[of], key[over], value[over], 0.0, causal, scale=scale)
            _merge(result[of], sums[..., rows], found, logs)
        result = result.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, sums)
        ctx.calls, ctx.scale = calls, scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, result, sums = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        wide = torch.promote_types(query.dtype, torch.float32)
        of_query, of_key, of_value = (torch.zeros_like(one, dtype=wide) for one in (query, key, value))
        for rows, keys, causal in ctx.calls:
            of, over = (..., rows, slice(None)), (..., keys, slice(None))
            parts = _flash_backward(
                gradient[of], query[of], key[over], value[over], result[of], sums[..., rows], 0.0, causal,
                scale=ctx.scale,
            )  # fmt: skip
            of_query[of] += parts[0]
            of_key[over] += parts[1]
            of_value[over] += parts[2]
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), None, None


def calls_of(runs: Sequence[Run], places: Sequence[slice]) -> list[Call]:
    """The calls of the queries at some places of a sequence, in the order of their places."""
    within: list[Call] = []
    below: list[Call] = []
    start = 0
    for place in places:
        for run in runs:
            first, last = max(run.start, place.start), min(run.stop, place.stop)
            if first < last:
                queries = slice(first - place.start + start, last - place.start + start)
                within.append(Call(queries, slice(first, last), causal=True))
                if first > run.start:
                    below.append(Call(queries, slice(run.start, first), causal=False))
            first, last = max(run.stop, place.start), min(run.end, place.stop)
            if first < last:
                queries = slice(first - place.start + start, last - place.start + start)
                below.append(Call(queries, slice(run.start, run.stop), causal=False))
        start += place.stop - place.start
    return [*within, *below]


def _merge(result: Tensor, sums: Tensor, found: Tensor, logs: Tensor) -> None:
    """Merge the result for a part of the keys into the result for the others, in place."""
    both = torch.logaddexp(sums, logs.to(sums.dtype))
    result.mul_((sums - both).exp().unsqueeze(-1)).add_(found * (logs - both).exp().unsqueeze(-1))
    sums.copy_(both)
