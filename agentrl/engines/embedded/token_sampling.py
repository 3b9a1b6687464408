"""Samples tokens from logits, with their log-probs.

Invariants: a log-prob is that of log softmax(logits / temperature) in float32 over the whole vocabulary, after the
penalties and before the cuts; a token depends only on its request's seed, its place in the output and its logits;
penalties depend on the output too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.policies.sampling_rule import SamplingRule

_MASK = (1 << 64) - 1
_FINE = 1 << 32
"""`chance` has this many possible values, so that it stays below 1 when it is scaled in float64."""


class Draw(NamedTuple):
    """How one row is sampled."""

    rule: SamplingRule
    chance: float
    """The point of the distribution, in [0, 1), at which the token is taken."""
    output: Sequence[int] = ()
    """The tokens that penalties count."""


def chance(seed: int, place: int) -> float:
    """A number in [0, 1) that depends only on these two arguments (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (place + 1) * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 32) / _FINE


def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Token and log-prob of every row. A log-prob that is not a number is a sign of broken weights."""
    scaled = _penalized(logits.float(), draws)
    if any(draw.rule.temperature not in (0.0, 1.0) for draw in draws):
        scaled = scaled / torch.tensor([[draw.rule.temperature or 1.0] for draw in draws], device=scaled.device)
    spread = torch.log_softmax(scaled, dim=-1)
    if all(draw.rule.temperature == 0.0 for draw in draws):
        tokens = spread.argmax(dim=-1)
    else:
        tokens = _drawn(spread, draws)
        greedy = [row for row, draw in enumerate(draws) if draw.rule.temperature == 0.0]
        if greedy:
            tokens[greedy] = spread[greedy].argmax(dim=-1)
    chosen = spread.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens.tolist(), chosen.tolist()


def _penalized(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    rows = [row for row, draw in enumerate(draws) if draw.rule.penalizes and draw.output]
    if not rows:
        return logits
    changed = logits.clone()
    for row in rows:
        rule = draws[row].rule
        tokens, counts = torch.unique(torch.tensor(draws[row].output, device=logits.device), return_counts=True)
        values = changed[row, tokens] - rule.frequency_penalty * counts - rule.presence_penalty
        changed[row, tokens] = torch.where(
            values < 0, values * rule.repetition_penalty, values / rule.repetition_penalty
        )
    return changed


def _drawn(spread: Tensor, draws: Sequence[Draw]) -> Tensor:
    weights = spread.double().exp_()
    rows = [row for row, draw in enumerate(draws) if _cuts(draw.rule)]
    if rows:
        weights[rows] = _cut(weights[rows], [draws[row].rule for row in rows])
    sums = weights.cumsum(dim=-1)
    chances = torch.tensor([[draw.chance] for draw in draws], dtype=torch.float64, device=sums.device)
    points = chances * sums[:, -1:]
    # The first token whose cumulative sum exceeds the point has a positive weight, so a token that was cut is never
    # taken.
    return torch.searchsorted(sums, points, right=True).squeeze(1).clamp_(max=spread.shape[1] - 1)


def _cuts(rule: SamplingRule) -> bool:
    return rule.top_p < 1.0 or rule.top_k > 0 or rule.min_p > 0.0


def _cut(weights: Tensor, rules: Sequence[SamplingRule]) -> Tensor:
    """Sets the weights of tokens that a limit excludes to 0; at least one token stays."""
    ordered, places = weights.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    size = weights.shape[1]

    def column(name: str) -> Tensor:
        numbers = [[getattr(rule, name)] for rule in rules]
        return torch.tensor(numbers, dtype=torch.float64, device=weights.device)

    top_k = column("top_k")
    out = (before >= column("top_p")) | (
        torch.arange(size, device=weights.device) >= torch.where(top_k > 0, top_k, size)
    )
    out |= ordered < ordered[:, :1] * column("min_p")
    return torch.zeros_like(weights).scatter_(1, places, ordered.masked_fill(out, 0.0))
