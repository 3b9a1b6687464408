"""Metrics of a step besides its loss: mismatch between engine and trainer, drift of the policy, entropy.

Invariants:
- the mismatch is measured on tokens of age 0, with the weights at the beginning of the step: there any difference is a
  bug, not learning;
- metrics cover all pairs of the step, over all micro-batches and optimizer steps;
- measuring changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.telemetry import loss_terms
from agentrl.training.critic import ValueLoss
from agentrl.training.losses import LOG_RATIO_LIMIT, PairFacts, Terms
from agentrl.training.pair_scores import Scored
from agentrl.training.parallel import Parallelism

Metrics = dict[str, float]
OLDEST_AGE = 8
"""Higher ages count as this one."""


class Measures:
    """Collects over the micro-batches of one optimizer step."""

    def __init__(self, *, moved: bool = False) -> None:
        """`moved`: the weights have changed since the batch began."""
        self._moved = moved
        self.loss = 0.0
        self.critic_norm = 0.0
        """The norm of the critic's gradient, over all ranks."""
        self._columns: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def add(self, loss: Tensor, scored: Scored, terms: Terms, facts: PairFacts, ages: Tensor) -> None:
        self.loss += float(loss.detach())
        at_start = scored.log_probs if facts.proximal is None else facts.proximal
        moved = self._moved and facts.proximal is None
        for name, column in (
            ("log_ratio", at_start - facts.behaviour),
            ("log_prob", scored.log_probs),
            ("entropy", scored.entropy),
            ("clipped", terms.clipped),
            ("masked", terms.masked),
            ("advantage", facts.advantage),
            ("age", ages),
            *((("log_reference", facts.reference - scored.log_probs),) if facts.reference is not None else ()),
            ("fresh", (ages == 0) & (not moved)),
            *((loss_terms.metric_of(name), touched) for name, touched in terms.touched.items()),
        ):
            self._columns.setdefault(name, []).append(column.detach().double().cpu())

    @torch.no_grad()
    def add_values(self, found: ValueLoss, before: Tensor, returns: Tensor) -> None:
        """Add the values of the critic and the returns for the pairs of a micro-batch."""
        for name, column in (
            ("value_loss", found.loss),
            ("value", before),
            ("returns", returns),
            (loss_terms.metric_of("value"), found.held),
        ):
            self._columns.setdefault(name, []).append(column.detach().double().cpu())

    def joined(self, parallelism: Parallelism) -> Measures:
        """The measures of all ranks together."""
        whole = Measures(moved=self._moved)
        whole.critic_norm = self.critic_norm
        whole.loss = float(parallelism.summed(torch.tensor(self.loss, dtype=torch.float64)))
        columns = parallelism.joined({name: torch.cat(columns) for name, columns in self._columns.items()})
        whole._columns = {name: [column] for name, column in columns.items()}
        return whole

    @property
    def pairs(self) -> int:
        return sum(column.numel() for column in self._columns["log_prob"])

    @property
    def masked(self) -> int:
        return int(sum(float(column.sum()) for column in self._columns["masked"]))

    def rescale(self, factor: float) -> None:
        """Rescales the loss like the gradient."""
        self.loss *= factor

    def summary(self, *, supervised: bool) -> Metrics:
        whole = {name: torch.cat(columns) for name, columns in self._columns.items()}
        metrics = {
            "loss": self.loss,
            "pairs": float(whole["log_prob"].numel()),
            "entropy": float(whole["entropy"].mean()),
        }
        if supervised:
            return metrics
        difference, fresh = whole["log_ratio"], whole["fresh"] > 0
        return (
            metrics
            | {
                "clipped_share": float(whole["clipped"].mean()),
                "masked_share": float(whole["masked"].mean()),
                "accepted_share": 1.0 - float(((whole["clipped"] + whole["masked"]) > 0).double().mean()),
                "advantage_mean": float(whole["advantage"].mean()),
                "advantage_std": float(whole["advantage"].std(unbiased=False)),
                "age_mean": float(whole["age"].mean()),
                "age_max": float(whole["age"].max()),
            }
            | {name: float(column.mean()) for name, column in whole.items() if loss_terms.is_term(name)}
            | ({"kl_reference": _k3(whole["log_reference"])} if "log_reference" in whole else {})
            | (_of_values(whole, self.critic_norm) if "value" in whole else {})
            | _drift(difference)
            | _by_age(difference, whole["age"])
            | _mismatch(difference[fresh])
        )


def together(parts: Sequence[Measures]) -> Measures:
    """Joins all optimizer steps of a batch. Each has its own denominator, so losses are averaged."""
    whole = Measures()
    whole.loss = math.fsum(part.loss for part in parts) / len(parts)
    whole.critic_norm = max(part.critic_norm for part in parts)
    for part in parts:
        for name, columns in part._columns.items():
            whole._columns.setdefault(name, []).extend(columns)
    return whole


def _of_values(whole: Mapping[str, Tensor], norm: float) -> Metrics:
    """How well the critic predicted the returns, before it learned from them."""
    values, returns = whole["value"], whole["returns"]
    spread = float(returns.var(unbiased=False))
    found = {
        "value_loss": float(whole["value_loss"].mean()),
        "value_mean": float(values.mean()),
        "return_mean": float(returns.mean()),
        "critic_gradient_norm": norm,
    }
    if spread > 0:
        # Explained variance. 1: perfect values; 0: no better than the mean; below 0: worse than the mean.
        found["explained_variance"] = 1 - float((returns - values).var(unbiased=False)) / spread
    return found


def _by_age(difference: Tensor, ages: Tensor) -> Metrics:
    """The number of pairs of each age, and how far the policy has moved since they were sampled."""
    metrics: Metrics = {}
    capped = ages.clamp(max=OLDEST_AGE)
    for age in sorted({int(age) for age in capped.tolist()}):
        of_age = difference[capped == age]
        drift = _drift(of_age)
        metrics[f"age_{age}_pairs"] = float(of_age.numel())
        metrics |= {f"age_{age}_{name}": drift[name] for name in ("weight_mean", "weight_std", "ess")}
    return metrics


def _drift(difference: Tensor) -> Metrics:
    weights = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return {
        "weight_mean": float(weights.mean()),
        "weight_std": float(weights.std(unbiased=False)),
        # Effective sample size, as a share of the pairs.
        "ess": float(weights.sum() ** 2 / (weights.numel() * (weights**2).sum())),
        "kl_behaviour": _k3(difference),
    }


def _mismatch(difference: Tensor) -> Metrics:
    if not difference.numel():
        return {}
    size = difference.abs()
    return {
        "mismatch_mean": float(size.mean()),
        "mismatch_p99": float(size.quantile(0.99)) if size.numel() < 1 << 20 else float(size.max()),
        "mismatch_max": float(size.max()),
        "mismatch_k3": _k3(difference),
    }


def _k3(difference: Tensor) -> float:
    """Mean of exp(d) - 1 - d: a KL estimate that is never negative."""
    return float((torch.expm1(difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) - difference).mean())
