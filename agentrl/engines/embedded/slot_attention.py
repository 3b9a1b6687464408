"""Softmax attention of one round: many sequences at different positions in one call, over the cached keys and values.

Invariant: a query sees the keys of its own row up to its own position, in a layer with a window only those within the
window; sequences of one token share one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.engines.embedded.served_model import Run

DENSE_SHARE = 0.5
"""From this share of busy rows, attention runs over all rows in place instead of over gathered copies."""


class SlotAttention:
    """The attention of one round. The parts that do not depend on the layer are prepared once."""

    def __init__(self, runs: Sequence[Run], device: torch.device) -> None:
        self._device = device
        single = [run for run in runs if run.size == 1]
        self._longer = [run for run in runs if run.size > 1]
        if list(runs[: len(single)]) != single:
            raise ValueError("runs of one token must come first")
        self._count = len(single)
        if single:
            self._prepare_single(single)
        self._masks: dict[int | None, tuple[Tensor | None, list[Tensor | None]]] = {}
        """Masks by the window of a layer: one for the single tokens, and one for each longer run."""

    def _prepare_single(self, single: Sequence[Run]) -> None:
        """Prepares single tokens: over all rows between the first and the last in place if most of them are busy, else
        over copies."""
        self._length = 1 + max(run.start for run in single)
        busy = [run.row for run in single]
        self._low, high = min(busy), max(busy) + 1
        self._dense = len(single) >= DENSE_SHARE * (high - self._low)
        starts = torch.tensor([run.start for run in single], device=self._device)
        if self._dense:
            self._rows = torch.tensor(busy, device=self._device) - self._low
            self._span = high - self._low
            # An idle row sees its first position: a row that sees no key would give not-a-number.
            self._ends = starts.new_zeros(self._span).index_copy(0, self._rows, starts)
        else:
            self._rows = torch.tensor(busy, device=self._device)
            self._ends = starts

    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """[tokens, heads * width] from queries [tokens, heads, width]; keys and values are [rows, kv heads, positions,
        width]. `softcap` limits scores, `sinks` are one more score of each head, whose value is 0."""
        if window not in self._masks:
            self._masks[window] = self._masks_of(window)
        of_single, of_longer = self._masks[window]
        kind = _Kind(scale, softcap, sinks)
        parts = [self._of_single(queries[: self._count], keys, values, of_single, kind)] if self._count else []
        at = self._count
        for run, mask in zip(self._longer, of_longer, strict=True):
            parts.append(_of_longer(queries[at : at + run.size], keys, values, run, mask, kind))
            at += run.size
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _masks_of(self, window: int | None) -> tuple[Tensor | None, list[Tensor | None]]:
        single = None
        if self._count:
            places, ends = torch.arange(self._length, device=self._device), self._ends.unsqueeze(1)
            seen = places <= ends
            if window is not None:
                seen &= places > ends - window
            single = _additive(seen)[:, None, None]
        return single, [_causal(run, window, self._device) for run in self._longer]

    def _of_single(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, kind: _Kind) -> Tensor:
        kv_heads = keys.shape[1]
        # Heads that share keys are treated as queries of one head, so keys are not copied.
        grouped = queries.reshape(len(queries), kv_heads, -1, queries.shape[-1])
        if self._dense:
            part = slice(self._low, self._low + self._span)
            seen_keys, seen_values = keys[part, :, : self._length], values[part, :, : self._length]
            grouped = grouped.new_zeros(self._span, *grouped.shape[1:]).index_copy_(0, self._rows, grouped)
        else:
            seen_keys, seen_values = (of[:, :, : self._length].index_select(0, self._rows) for of in (keys, values))
        out = kind.attend(grouped, seen_keys, seen_values, mask, grouped.shape[2])
        if self._dense:
            out = out[self._rows]
        return out.reshape(self._count, -1)


class _Kind:
    """How scores become weights."""

    def __init__(self, scale: float | None, softcap: float | None, sinks: Tensor | None) -> None:
        self.scale, self.softcap, self.sinks = scale, softcap, sinks

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.sinks is None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, groups: int) -> Tensor:
        """Queries are [rows, kv heads, groups * tokens, width], one head's tokens after another's."""
        if self.plain:
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self.scale)
        scale = queries.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = queries @ keys.transpose(-1, -2) * scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if mask is not None:
            scores = scores + mask
        if self.sinks is None:
            return torch.softmax(scores, dim=-1) @ values
        tokens = queries.shape[2] // groups
        extra = self.sinks.reshape(1, keys.shape[1], groups, 1).repeat_interleave(tokens, dim=2)
        weights = torch.softmax(torch.cat((scores, extra.expand(len(scores), -1, -1, -1)), dim=-1), dim=-1)
        return weights[..., :-1] @ values


def _of_longer(queries: Tensor, keys: Tensor, values: Tensor, run: Run, mask: Tensor | None, kind: _Kind) -> Tensor:
    end = run.start + run.size
    of_keys, of_values = keys[run.row : run.row + 1, :, :end], values[run.row : run.row + 1, :, :end]
    heads = queries.transpose(0, 1).unsqueeze(0)
    if kind.plain:
        out = functional.scaled_dot_product_attention(
            heads, of_keys, of_values, attn_mask=mask, is_causal=mask is None, scale=kind.scale, enable_gqa=True
        )
    else:
        groups = heads.shape[1] // keys.shape[1]
        grouped = heads.reshape(1, keys.shape[1], groups * run.size, -1)
        seen = _until(run, queries.device) if mask is None else mask
        out = kind.attend(grouped, of_keys, of_values, _additive(seen).repeat(groups, 1), groups)
        out = out.reshape(1, heads.shape[1], run.size, -1)
    return out[0].transpose(0, 1).reshape(run.size, -1)


def _causal(run: Run, window: int | None, device: torch.device) -> Tensor | None:
    """Which positions each token of the run sees; None for a run that starts its sequence, because torch has a causal
    mask for that."""
    end = run.start + run.size
    if run.start == 0 and (window is None or window >= end):
        return None
    seen = _until(run, device)
    return seen if window is None else seen.triu_(diagonal=run.start - window + 1)


def _until(run: Run, device: torch.device) -> Tensor:
    """Which positions each token of the run would see without a window."""
    return torch.ones(run.size, run.start + run.size, dtype=torch.bool, device=device).tril_(diagonal=run.start)


def _additive(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))
