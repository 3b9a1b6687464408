"""The losses, as functions of log-probs at (record, token) pairs.

Invariants:
- log-ratios are clamped before exp;
- a pair whose mask is 0 has exactly zero gradient;
- a form of the loss is one entry of a table; what all forms share (decay, weights and masks of ρ, the distance to a
  reference) is written once;
- the denominator of an optimizer step is one number, known before its first backward pass and before any mask that
  depends on a ratio, so loss and gradient do not depend on how pairs are spread over micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.policies.loss_settings import Aggregation, LossKind, PolicyLoss

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
    """log π_old, for the decoupled ratio, and for weights and masks of ρ."""
    bounds: tuple[Tensor, Tensor] | None = None
    """Lower and upper bound of π_θ/μ for each pair, for decay. They replace the clip: after a clip of 0.8 to 1.28,
    bounds that are never tighter would have no effect. A pair that does not decay has no finite upper bound."""
    reference: Tensor | None = None
    """log π_ref, if there is a reference."""
    sequence: Tensor | None = None
    """gspo: the mean of the log-ratio over the record of the pair, before the gradient."""
    correction: Tensor | None = None
    """The weight f(ρ)."""
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    """By the name of the term: where a mask of ρ excludes the pair."""
    at_cap: Tensor | None = None
    """Where the weight f(ρ) is at its cap."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    loss: Tensor
    clipped: Tensor
    """Where the clip changed the gradient."""
    masked: Tensor
    """Where a bound that depends on a ratio masks the pair."""
    touched: Mapping[str, Tensor] = field(default_factory=dict)
    """Each active term of the loss, with the pairs that it touched."""


class _Pairs(NamedTuple):
    """The inputs of a form of the loss."""

    log_probs: Tensor
    r: Tensor
    """π_θ over the policy that `ratio` names."""
    low: Tensor
    high: Tensor
    """The clip of each pair; 0 and infinity where the bounds of decay take its place."""
    facts: PairFacts


class _Gain(NamedTuple):
    gain: Tensor
    """The contribution of each pair to the objective."""
    touched: dict[str, Tensor]


def ratio(log_probs: Tensor, reference: Tensor) -> Tensor:
    return clamped(log_probs - reference).exp()


def clamped(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def policy_terms(log_probs: Tensor, facts: PairFacts, loss: PolicyLoss) -> Terms:
    """The chosen form, with the terms that all forms share. A pair whose bounds decay has no clip: beyond its bounds it
    adds only its distance to the reference."""
    against = facts.behaviour if loss.ratio == "bypass" else _proximal(facts)
    decays, outside = _decayed(log_probs, facts)
    number = log_probs.new_tensor
    low = torch.where(decays, number(0.0), number(1 - loss.clip_low))
    high = torch.where(decays, number(math.inf), number(1 + loss.clip_high))
    gain, touched = _FORMS[loss.kind](_Pairs(log_probs, ratio(log_probs, against), low, high, facts), loss)
    clipped = torch.zeros_like(outside)
    for name in ("clip", "dual_clip"):
        clipped = clipped | touched.get(name, outside.new_zeros(()))
    if facts.correction is not None:
        gain = gain * facts.correction
        touched["weight"] = torch.zeros_like(outside) if facts.at_cap is None else facts.at_cap
    masked = outside
    for mask in facts.masks.values():
        masked = masked | mask
    touched |= facts.masks
    if facts.bounds is not None:
        touched["decay"] = outside
    gain = torch.where(masked, torch.zeros_like(gain), gain)
    touched[loss.kind] = ~(clipped | masked) & facts.advantage.ne(0)
    if loss.reference_weight and loss.reference_in != "reward":
        gain = gain - loss.reference_weight * _distance(log_probs, facts, loss)
        touched["reference"] = log_probs.detach().ne(_reference(facts))
    return Terms(-gain, clipped & ~masked, masked, touched)


def supervised_terms(log_probs: Tensor) -> Terms:
    nothing = torch.zeros_like(log_probs, dtype=torch.bool)
    return Terms(-log_probs, nothing, nothing)


def total(terms: Terms, weight: Tensor) -> Tensor:
    """The contribution of this micro-batch to the loss."""
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


# ---- the forms ----


def _grpo(pairs: _Pairs, loss: PolicyLoss) -> _Gain:
    """min(r A, clip(r) A). ppo is the same with the advantages of a critic."""
    gain, touched = _clipped(pairs.r, pairs)
    if loss.dual_clip is not None:
        advantage = pairs.facts.advantage
        floor = loss.dual_clip * advantage
        cut = (advantage < 0) & (gain < floor)
        gain, touched["dual_clip"] = torch.where(cut, floor, gain), cut
    return _Gain(gain, touched)


def _gspo(pairs: _Pairs, loss: PolicyLoss) -> _Gain:
    """The same with the ratio of the record. Its gradient is that of the token, so micro-batches may split a record."""
    if pairs.facts.sequence is None:
        raise ValueError("gspo needs the mean log-ratio of each record")
    s = clamped(pairs.facts.sequence).exp()
    return _clipped(s * (pairs.log_probs - pairs.log_probs.detach()).exp(), pairs)


def _cispo(pairs: _Pairs, loss: PolicyLoss) -> _Gain:
    """sg(min(r, C)) A log π: no token loses its gradient."""
    r = pairs.r.detach()
    return _Gain(r.clamp(max=loss.ratio_cap) * pairs.facts.advantage * pairs.log_probs, {"cap": _above_cap(r, loss)})


def _minirl(pairs: _Pairs, loss: PolicyLoss) -> _Gain:
    """M sg(min(π_θ/μ, C)) A log π, where M is 0 for pairs that the clip of π_θ/π_old stops."""
    r, advantage = pairs.r.detach(), pairs.facts.advantage
    stopped = _beyond(r, pairs)
    weight = ratio(pairs.log_probs.detach(), pairs.facts.behaviour)
    gain = weight.clamp(max=loss.ratio_cap) * advantage * pairs.log_probs
    return _Gain(
        torch.where(stopped, torch.zeros_like(gain), gain),
        {"clip": stopped, "cap": _above_cap(weight, loss) & ~stopped},
    )


def _ce_grpo(pairs: _Pairs, loss: PolicyLoss) -> _Gain:
    """Within the clip r A; beyond it a share of the gradient at the clip stays."""
    r, advantage = pairs.r, pairs.facts.advantage
    unit = r / r.detach()
    beyond = _beyond(r.detach(), pairs)
    at_clip = torch.where(advantage > 0, loss.kept_above * pairs.high, loss.kept_below * pairs.low)
    # Pairs that decay never reach their infinite bounds, but infinity times 0 would be NaN.
    held = torch.where(beyond, at_clip, torch.zeros_like(at_clip)) * unit * advantage
    return _Gain(torch.where(beyond, held, r * advantage), {"clip": beyond})


_FORMS: Mapping[LossKind, Callable[[_Pairs, PolicyLoss], _Gain]] = {
    "grpo": _grpo,
    "gspo": _gspo,
    "cispo": _cispo,
    "minirl": _minirl,
    "ce-grpo": _ce_grpo,
    "ppo": _grpo,
}


def _clipped(r: Tensor, pairs: _Pairs) -> _Gain:
    advantage = pairs.facts.advantage
    free, bound = r * advantage, r.clamp(pairs.low, pairs.high) * advantage
    return _Gain(torch.minimum(free, bound), {"clip": bound < free})


def _beyond(r: Tensor, pairs: _Pairs) -> Tensor:
    """Where the ratio has moved past the clip in the direction of the advantage."""
    advantage = pairs.facts.advantage
    return ((r > pairs.high) & (advantage > 0)) | ((r < pairs.low) & (advantage < 0))


def _above_cap(r: Tensor, loss: PolicyLoss) -> Tensor:
    return r > (math.inf if loss.ratio_cap is None else loss.ratio_cap)


# ---- what all forms share ----


def _proximal(facts: PairFacts) -> Tensor:
    if facts.proximal is None:
        raise ValueError("the decoupled ratio needs the log-probs of the policy that the step begins with")
    return facts.proximal


def _distance(log_probs: Tensor, facts: PairFacts, loss: PolicyLoss) -> Tensor:
    """k2 or k3 of each pair."""
    apart = clamped(log_probs - _reference(facts))
    return torch.expm1(-apart) + apart if loss.reference_in == "loss-k3" else 0.5 * apart**2


def _reference(facts: PairFacts) -> Tensor:
    if facts.reference is None:
        raise no_reference()
    return facts.reference


def no_reference() -> ConfigError:
    return ConfigError("The loss uses the distance to a reference, but there is no reference.", hint=_NO_REFERENCE)


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
