"""Exact attention over packed trees, in memory that grows with their length and not with its square.

A tree is one sequence in depth-first order; the query at i sees the key at j if j <= i < end[j]. Transformers calls
this as the attention implementation `NAME` of any architecture; the tree is an argument of the model's forward pass.

Invariants:
- no mask of length x length exists, on any device;
- the result is that of softmax attention under that rule, in the precision of the inputs: on processors from runs of
  tokens by flash attention, whose partial results are merged by their log-sums; on GPUs by FlexAttention;
- each key is read only by queries that see it, up to the size of a block on GPUs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of which each is the only child of the one before; `end` is the end of what descends from them."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """What attention needs to know of a packed sequence."""

    runs: tuple[Run, ...]
    blocks: BlockMask | None
    """For FlexAttention; None on processors."""


def tree_of(ends: Array, device: torch.device) -> Tree:
    """The tree of one packed sequence, or of several one after another. On a GPU it fills whole blocks."""
    blocks = block_mask(ends, device) if device.type == "cuda" else None
    return Tree(runs_of(ends) if blocks is None else (), blocks)


def padding(length: int, device: torch.device) -> int:
    """How many tokens that see only themselves make whole blocks of a sequence. Processors need none."""
    return -length % BLOCK if device.type == "cuda" else 0


def runs_of(ends: Array) -> tuple[Run, ...]:
    """The maximal runs, in order."""
    length = len(ends)
    at = np.arange(1, length)
    # The next token goes on with a run if it is a child of its last token, and the only one.
    breaks = at[(ends[1:] != ends[:-1]) | (ends[:-1] == at)]
    starts = np.concatenate(([0], breaks)) if length else breaks
    stops = np.concatenate((breaks, [length])) if length else breaks
    return tuple(Run(int(start), int(stop), int(ends[start])) for start, stop in zip(starts, stops, strict=True))


def block_mask(ends: Array, device: torch.device) -> BlockMask:
    """Which blocks of keys a block of queries sees wholly or in part, from the ends of each block alone."""
    length = len(ends)
    in_blocks = ends.reshape(-1, BLOCK)
    count = len(in_blocks)
    latest, earliest = in_blocks.max(axis=1), in_blocks.min(axis=1)
    first = np.arange(count) * BLOCK
    before = np.arange(count)[None, :] < np.arange(count)[:, None]
    whole = before & (earliest[None, :] >= (first + BLOCK)[:, None])
    part = (before & (latest[None, :] > first[:, None]) & ~whole) | np.eye(count, dtype=bool)
    last = torch.from_numpy(ends).to(device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < last[key])

    return BlockMask.from_kv_blocks(
        *_listed(part, device), *_listed(whole, device), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(length, length)
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
    """The attention function that transformers calls; inputs are [1, heads, length, width]. Without a tree, the
    sequences are what they seem to be."""
    if tree is None:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return found, None
    if torch.is_autocast_enabled(query.device.type):
        narrow = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree.blocks is not None:
        # Within a compiled layer it is compiled with the layer.
        flex = flex_attention if torch.compiler.is_compiling() else _compiled()
        found = flex(query, key, value, block_mask=tree.blocks, scale=scale, enable_gqa=True)
    else:
        groups = query.shape[1] // key.shape[1]
        # Values of latent attention (DeepSeek) are narrower than keys; the kernel wants one width.
        width = value.shape[-1]
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
        keys, values = _repeated(key, groups), _repeated(value, groups)
        found = _ByRuns.apply(query, keys, values, tree.runs, scale)[..., :width]  # type: ignore[no-untyped-call]
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)


@functools.cache
def _compiled() -> Any:
    # Lengths differ from batch to batch: one dynamic graph instead of one for each.
    return torch.compile(flex_attention, dynamic=True)


def _repeated(heads: Tensor, times: int) -> Tensor:
    """Grouped keys or values, once for each head of their group."""
    return heads if times == 1 else heads.repeat_interleave(times, dim=1)


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _ByRuns(torch.autograd.Function):
    """The tokens of a run see each other causally, and all that descend from it see the whole run.

    So each run is a key of two calls on slices, and a query's result is merged from one call for each run above it.
    The gradient of a part of softmax attention needs the result and the log-sum of the whole only.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: tuple[Run, ...], scale: float) -> Tensor:
        result = torch.zeros_like(query, dtype=torch.promote_types(query.dtype, torch.float32))
        sums = torch.full(query.shape[:-1], -torch.inf, dtype=result.dtype)
        for rows, keys, causal in _calls(runs):
            of, over = (..., rows, slice(None)), (..., keys, slice(None))
            found, logs = _flash(query[of], key[over], value[over], 0.0, causal, scale=scale)
            _merge(result[of], sums[..., rows], found, logs)
        result = result.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, sums)
        ctx.runs, ctx.scale = runs, scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, result, sums = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        wide = torch.promote_types(query.dtype, torch.float32)
        of_query, of_key, of_value = (torch.zeros_like(one, dtype=wide) for one in (query, key, value))
        for rows, keys, causal in _calls(ctx.runs):
            of, over = (..., rows, slice(None)), (..., keys, slice(None))
            parts = _flash_backward(
                gradient[of], query[of], key[over], value[over], result[of], sums[..., rows], 0.0, causal,
                scale=ctx.scale,
            )  # fmt: skip
            of_query[of] += parts[0]
            of_key[over] += parts[1]
            of_value[over] += parts[2]
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), None, None


def _calls(runs: tuple[Run, ...]) -> list[tuple[slice, slice, bool]]:
    """Queries, keys, and whether each query sees only the keys up to its own place."""
    within = [(slice(run.start, run.stop), slice(run.start, run.stop), True) for run in runs]
    below = [(slice(run.stop, run.end), slice(run.start, run.stop), False) for run in runs if run.end > run.stop]
    return [*within, *below]


def _merge(result: Tensor, sums: Tensor, found: Tensor, logs: Tensor) -> None:
    """Add a part of the keys to the result of the others, in place."""
    both = torch.logaddexp(sums, logs.to(sums.dtype))
    result.mul_((sums - both).exp().unsqueeze(-1)).add_(found * (logs - both).exp().unsqueeze(-1))
    sums.copy_(both)
