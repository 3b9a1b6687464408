"""From logits to tokens and their log-probs.

Invariants: a log-prob is that of log softmax(logits / temperature) in float32 over the whole vocabulary; a token
depends on its request's seed, its place in the output and its logits, and on nothing else of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_FINE = 1 << 32
"""Chance is drawn in this many steps, so that it stays below 1 when it is scaled in float64."""


class Draw(NamedTuple):
    """How one row is sampled."""

    temperature: float
    top_p: float
    chance: float
    """In [0, 1): where in the distribution the token is taken."""


def chance(seed: int, place: int) -> float:
    """A number in [0, 1) that depends on these two alone (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (place + 1) * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 32) / _FINE


def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Token and log-prob of every row. A log-prob that is not a number is a sign of broken weights."""
    scaled = logits.float()
    if any(draw.temperature not in (0.0, 1.0) for draw in draws):
        scaled = scaled / torch.tensor([[draw.temperature or 1.0] for draw in draws])
    spread = torch.log_softmax(scaled, dim=-1)
    if all(draw.temperature == 0.0 for draw in draws):
        tokens = spread.argmax(dim=-1)
    else:
        tokens = _drawn(spread, draws)
        greedy = [row for row, draw in enumerate(draws) if draw.temperature == 0.0]
        if greedy:
            tokens[greedy] = spread[greedy].argmax(dim=-1)
    chosen = spread.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens.tolist(), chosen.tolist()


def _drawn(spread: Tensor, draws: Sequence[Draw]) -> Tensor:
    weights = spread.double().exp_()
    cut = [row for row, draw in enumerate(draws) if draw.top_p < 1.0]
    if cut:
        weights[cut] = _nucleus(weights[cut], torch.tensor([draws[row].top_p for row in cut], dtype=torch.float64))
    sums = weights.cumsum(dim=-1)
    points = torch.tensor([[draw.chance] for draw in draws], dtype=torch.float64) * sums[:, -1:]
    # The first token whose sum is above the point has a weight of its own, so nothing that was cut is ever taken.
    return torch.searchsorted(sums, points, right=True).squeeze(1).clamp_(max=spread.shape[1] - 1)


def _nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """The likeliest tokens that together reach `top_p`; at least one."""
    ordered, places = weights.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p.unsqueeze(1), 0.0)
    return torch.zeros_like(weights).scatter_(1, places, ordered)
