"""Weights and masks of ρ = π_old/μ, and other numbers that belong to whole records, as columns of pairs.

They are computed once for an optimizer step, before its first gradient, because the pairs of a record may be spread
over micro-batches.

Invariants:
- sums over a record cover all of its trained tokens, however they are packed;
- a weight or a mask has no gradient;
- log-ratios and their sums are clamped before exp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.policies.loss_settings import Masks, PolicyLoss
from agentrl.training.losses import clamped

Columns = dict[str, list[Tensor]]
"""By name: one tensor of pairs for each micro-batch."""
MASK = "mask."
"""The prefix of the names of columns that are masks."""
SumOverProcesses = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    of_pairs: list[Tensor]
    """For each micro-batch: the record of each pair."""
    pairs_of: Tensor
    """For each record: how many pairs it has."""

    def sums(self, columns: Sequence[Tensor]) -> Tensor:
        """The sum over the pairs of each record."""
        found = torch.zeros_like(self.pairs_of)
        for records, column in zip(self.of_pairs, columns, strict=True):
            found.index_add_(0, records, column.to(found.dtype))
        return found

    def means(self, columns: Sequence[Tensor]) -> Tensor:
        return self.sums(columns) / self.pairs_of.clamp(min=1)

    def spread(self, values: Tensor) -> list[Tensor]:
        """The value of its record for each pair."""
        return [values[records] for records in self.of_pairs]


def columns_of(
    log_rho: Sequence[Tensor], records: Records, loss: PolicyLoss, sum_over_processes: SumOverProcesses
) -> Columns:
    """The columns `weight` and `at_cap` (where a weight is at its cap), and a column `mask.NAME` for each mask."""
    bounded = [clamped(one) for one in log_rho]
    found = _masks(bounded, records, loss.masks)
    if loss.weight_cap is None:
        return found
    by_token = bounded if loss.weight_by == "token" else records.spread(clamped(records.sums(bounded)))
    weights = [one.exp().clamp(max=loss.weight_cap) for one in by_token]
    found["at_cap"] = [one.exp() > loss.weight_cap for one in by_token]
    if loss.weight_normalised:
        mean = _mean(weights, sum_over_processes)
        weights = [weight / mean for weight in weights]
    found["weight"] = weights
    return found


def reward_shift(distance: Sequence[Tensor], records: Records, groups: Tensor, weight: float) -> list[Tensor]:
    """How a distance to the reference that is part of the score changes the advantage of each pair: by the summed
    distance of its record minus the mean of its group. `groups` has the group of each record."""
    of_record = records.sums(distance)
    trains = records.pairs_of > 0
    sums = torch.zeros_like(of_record).index_add_(0, groups, torch.where(trains, of_record, 0.0))
    counts = torch.zeros_like(of_record).index_add_(0, groups, trains.to(of_record.dtype))
    mean = (sums / counts.clamp(min=1))[groups]
    return records.spread(-weight * (of_record - mean))


def _masks(log_rho: Sequence[Tensor], records: Records, masks: Masks) -> Columns:
    columns: Columns = {}
    if masks.token is not None:
        low, high = masks.token
        columns[f"{MASK}token_mask"] = [(one.exp() < low) | (one.exp() > high) for one in log_rho]
    of_record: dict[str, Tensor] = {}
    if masks.sequence is not None:
        of_record["sequence_mask"] = _outside(clamped(records.sums(log_rho)).exp(), masks.sequence)
    if masks.geometric is not None:
        of_record["geometric_mask"] = _outside(records.means(log_rho).exp(), masks.geometric)
    if masks.k2 is not None:
        of_record["k2_limit"] = records.means([0.5 * one**2 for one in log_rho]) > masks.k2
    if masks.k3 is not None:
        of_record["k3_limit"] = records.means([torch.expm1(one) - one for one in log_rho]) > masks.k3
    return columns | {f"{MASK}{name}": records.spread(masked) for name, masked in of_record.items()}


def _outside(values: Tensor, interval: tuple[float, float]) -> Tensor:
    return (values < interval[0]) | (values > interval[1])


def _mean(weights: Sequence[Tensor], sum_over_processes: SumOverProcesses) -> Tensor:
    total = torch.stack([weight.sum() for weight in weights]).sum() if weights else torch.zeros(())
    here = torch.stack([total, total.new_tensor(sum(map(len, weights)))])
    everywhere = sum_over_processes(here)
    return everywhere[0] / everywhere[1].clamp(min=1)
