"""The losses, as functions of log-probs at (record, token) pairs.

Invariants:
- log-ratios are clamped before exp;
- a pair whose mask is 0 has exactly zero gradient;
- the denominator of an optimizer step is one number, known before its first backward pass and before any mask that
  depends on a ratio, so loss and gradient do not depend on how pairs are spread over micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.policies.loss_settings import Aggregation, PolicyLoss

LOG_RATIO_LIMIT = 20.0
_NO_REFERENCE = "A run keeps its reference in RUN_DIR/reference; see training.reference."


@dataclass(frozen=True, slots=True, eq=False)
class PairFacts:
    """Facts about pairs besides the log-probs that are trained. All tensors have the same length."""

    behaviour: Tensor
    advantage: Tensor
    weight: Tensor
    """1 over the denominator; see `pair_weights`."""
    proximal: Tensor | None = None
    """log π_old, for the decoupled ratio."""
    bounds: tuple[Tensor, Tensor] | None = None
    """Lower and upper bound of π_θ/μ for each pair, for decay. They take the place of the clip: behind a clip of
    0.8 to 1.28, bounds that are never tighter would never act. A pair that does not decay has no finite upper bound."""
    reference: Tensor | None = None
    """log π_ref, if there is a reference."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """One loss per pair."""

    loss: Tensor
    clipped: Tensor
    """Where the clip cut the gradient."""
    masked: Tensor
    """Where a bound that depends on the ratio masks the pair."""


def ratio(log_probs: Tensor, reference: Tensor) -> Tensor:
    return (log_probs - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def policy_terms(log_probs: Tensor, facts: PairFacts, loss: PolicyLoss) -> Terms:
    """-min(r A, clip(r) A), with the additions of `loss`. A pair whose bounds decay has no clip: beyond its bounds it
    adds nothing but its distance to the reference, and within them -r A."""
    reference = facts.behaviour
    if loss.ratio == "decoupled":
        if facts.proximal is None:
            raise ValueError("the decoupled ratio needs the log-probs of the policy that the step begins with")
        reference = facts.proximal
    r = ratio(log_probs, reference)
    advantage = facts.advantage
    free = r * advantage
    decays, masked = _decayed(log_probs, facts)
    bound = torch.where(decays, free, r.clamp(1 - loss.clip_low, 1 + loss.clip_high) * advantage)
    gain = torch.minimum(free, bound)
    clipped = bound < free
    if loss.dual_clip is not None:
        floor = loss.dual_clip * advantage
        cut = (advantage < 0) & (gain < floor)
        gain, clipped = torch.where(cut, floor, gain), clipped | cut
    if loss.weight_cap is not None and facts.proximal is not None:
        gain = gain * ratio(facts.proximal, facts.behaviour).clamp(max=loss.weight_cap)
    gain = torch.where(masked, torch.zeros_like(gain), gain)
    if loss.reference_weight:
        if facts.reference is None:
            raise ConfigError(
                "The loss uses the distance to a reference, but there is no reference.", hint=_NO_REFERENCE
            )
        apart = (log_probs - facts.reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        gain = gain - loss.reference_weight * 0.5 * apart**2
    return Terms(-gain, clipped & ~masked, masked)


def supervised_terms(log_probs: Tensor) -> Terms:
    nothing = torch.zeros_like(log_probs, dtype=torch.bool)
    return Terms(-log_probs, nothing, nothing)


def total(terms: Terms, weight: Tensor) -> Tensor:
    """The part of this micro-batch in the loss."""
    return (terms.loss * weight).sum()


@dataclass(frozen=True, slots=True)
class Denominator:
    """The counts of one optimizer step, over all micro-batches and processes."""

    pairs: int
    records: int
    """Records that have pairs."""


def pair_weights(
    records: Tensor, pairs_of_record: Tensor, whole: Denominator, how: Aggregation, *, longest: int = 0
) -> Tensor:
    """The weight of each pair. `records` is the record of each pair, `pairs_of_record` counts all pairs of a record."""
    pairs_of = pairs_of_record[records]
    if how == "record-mean":
        return 1.0 / (whole.records * pairs_of)
    denominator = {"token-mean": whole.pairs, "record-sum": whole.records, "dr-grpo": whole.records * longest}[how]
    return torch.full_like(pairs_of, 1.0 / denominator)


def _decayed(log_probs: Tensor, facts: PairFacts) -> tuple[Tensor, Tensor]:
    """Which pairs have bounds that decay, and which of them are beyond these."""
    if facts.bounds is None:
        nothing = torch.zeros_like(log_probs, dtype=torch.bool)
        return nothing, nothing
    lower, upper = facts.bounds
    with torch.no_grad():
        r = ratio(log_probs, facts.behaviour)
        outside = ((r > upper) & (facts.advantage > 0)) | ((r < lower) & (facts.advantage < 0))
        return torch.isfinite(upper), outside
