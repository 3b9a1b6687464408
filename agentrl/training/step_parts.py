"""The data of one optimizer step: its micro-batches, with what the loss needs to know about their pairs.

If a micro-batch needs more memory than there is, the step does the same work once more in smaller micro-batches.

Invariants:
- facts about records and versions are tensors that pairs index, so nothing loops over tokens;
- the denominator counts the pairs of all micro-batches and ranks;
- a split changes neither loss nor gradient, only how many rows are computed at a time;
- rows are never cut: if one row alone needs too much memory, the error ends the trainer, and its group is found like
  any other group that ends trainers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agentrl.policies.loss_settings import Aggregation, PolicyLoss
from agentrl.training import losses
from agentrl.training.batch import Array, Batch, Trajectory
from agentrl.training.corrections import MASK, Columns
from agentrl.training.losses import Denominator, PairFacts, Terms
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.packing import Row

_OF_PROCESSORS = "can't allocate memory"
"""Part of the message of PyTorch's CPU allocator, which raises a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _OF_PROCESSORS in str(error)


def largest(micros: Sequence[Sequence[Row]]) -> int:
    """Tokens of the largest micro-batch."""
    return max((sum(map(len, rows)) for rows in micros), default=0)


def cuts_of(micros: Sequence[Sequence[Row]], tokens: int) -> list[list[int]]:
    """For each micro-batch the numbers of rows of its parts, in order, so that none has more than `tokens` unless a
    single row has."""
    cuts: list[list[int]] = []
    for rows in micros:
        parts: list[int] = []
        used = 0
        for row in rows:
            if not parts or used + len(row) > tokens:
                parts.append(0)
                used = 0
            parts[-1] += 1
            used += len(row)
        cuts.append(parts)
    return cuts


def split_rows(micros: Sequence[Sequence[Row]], cuts: Sequence[Sequence[int]]) -> list[list[Row]]:
    """The parts of all micro-batches, in order."""
    return [
        list(rows[start:stop])
        for rows, parts in zip(micros, cuts, strict=True)
        for start, stop in itertools.pairwise([0, *itertools.accumulate(parts)])
    ]


def split_pairs(
    columns: Sequence[Tensor], micros: Sequence[Sequence[Row]], cuts: Sequence[Sequence[int]]
) -> list[Tensor]:
    """The values of pairs of each micro-batch, for its parts."""
    tensors: list[Tensor] = []
    for column, rows, parts in zip(columns, micros, cuts, strict=True):
        edges = itertools.pairwise([0, *itertools.accumulate(parts)])
        sizes = [sum(len(row.pairs) for row in rows[start:stop]) for start, stop in edges]
        tensors += torch.split(column, sizes)
    return tensors


Objective = PolicyLoss | Literal["supervised"]
_NO_NUMBERS = np.empty(0)


class Facts(NamedTuple):
    """Facts about the records and versions of one optimizer step, as tensors that pairs index."""

    advantages: Tensor
    """The advantage of each trained token: record after record, each in the order of time."""
    rewards: Tensor
    """In the same order: the reward that the environment gave after the token."""
    first: Tensor
    """For each record: the index of its first token in these columns."""
    capped: Tensor
    """Whether no token of a record may get a positive advantage."""
    decays: Tensor
    """Whether the bounds of a record's ratios tighten with age."""
    groups: Tensor
    """The number of each record's group."""
    pairs_of_record: Tensor
    whole: Denominator
    versions: Tensor
    """In ascending order; `ages` and `bounds` have one entry for each."""
    ages: Tensor
    bounds: Tensor | None
    """[versions, 2]: lower and upper bound of the ratio."""


class Part(NamedTuple):
    """The data of one optimizer step."""

    facts: Facts
    micros: list[list[Row]]
    """Rows of each forward pass. They become tensors just before their pass, because no device has room for all of
    them."""
    columns: Columns
    """Columns of their pairs: log-probs of other policies, weights, masks."""
    packed_tokens: int


def facts_of(
    batch: Batch,
    packed: Sequence[Row],
    objective: Objective,
    *,
    device: torch.device,
    dtype: torch.dtype,
    everywhere: Callable[[int], float],
) -> Facts:
    """`packed` are the rows of the batch; `everywhere` sums a count over the ranks."""
    records = np.concatenate([row.pairs.record for row in packed]) if packed else np.empty(0, dtype=np.int64)
    pairs_of = np.bincount(records, minlength=len(batch.trajectories))
    versions = sorted(batch.ages)
    groups = numbered([trajectory.group_key for trajectory in batch.trajectories])
    bounds = None
    if objective != "supervised" and objective.decay is not None:
        decay, ages = objective.decay, batch.ages_s or batch.ages
        bounds = torch.tensor([decay.bounds(-ages[version], 0) for version in versions], dtype=dtype, device=device)
    of_tokens = [_of_tokens(trajectory) for trajectory in batch.trajectories]
    advantages, rewards = (np.concatenate([_NO_NUMBERS, *[one[side] for one in of_tokens]]) for side in (0, 1))
    return Facts(
        advantages=torch.from_numpy(advantages).to(device=device, dtype=dtype),
        rewards=torch.from_numpy(rewards).to(device=device, dtype=dtype),
        first=torch.from_numpy(np.cumsum(pairs_of) - pairs_of).to(device),
        capped=torch.tensor([trajectory.capped for trajectory in batch.trajectories], dtype=torch.bool, device=device),
        decays=torch.tensor([trajectory.decays for trajectory in batch.trajectories], dtype=torch.bool, device=device),
        groups=torch.tensor(groups, dtype=torch.int64, device=device),
        pairs_of_record=torch.from_numpy(pairs_of).to(device=device, dtype=dtype),
        whole=Denominator(int(everywhere(len(records))), int(everywhere(int((pairs_of > 0).sum())))),
        versions=torch.tensor(versions, device=device),
        ages=torch.tensor([batch.ages[version] for version in versions], device=device),
        bounds=bounds,
    )


def _of_tokens(one: Trajectory) -> tuple[Array, Array]:
    """Advantage and reward of each token that it trains, in the order of time."""
    segments = [one.segments[index] for index in one.trained_segments]
    sizes = [len(segment.ids) for segment in segments]
    own = [one.advantage if segment.advantage is None else segment.advantage for segment in segments]
    rewards = np.zeros(sum(sizes))
    if len(rewards):
        # The reward of a turn without tokens is given after the last token before it.
        last = np.maximum(np.cumsum(sizes) - 1, 0)
        np.add.at(rewards, last, [segment.reward for segment in segments])
    return np.repeat(np.asarray(own, dtype=np.float64), sizes), rewards


def numbered(names: Sequence[str]) -> list[int]:
    """Numbers names: equal names get equal numbers."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def in_smaller_parts(part: Part, tokens: int) -> Part:
    cuts = cuts_of(part.micros, tokens)
    return part._replace(
        micros=split_rows(part.micros, cuts),
        columns={name: split_pairs(column, part.micros, cuts) for name, column in part.columns.items()},
    )


def of_pairs(
    micro: MicroBatch, facts: Facts, objective: Objective, own: Mapping[str, Tensor]
) -> tuple[PairFacts, Tensor]:
    """The inputs of the loss for each pair, and the age of each pair. `own` are the columns of the micro-batch."""
    how: Aggregation = "token-mean" if objective == "supervised" else objective.aggregation
    longest = 0 if objective == "supervised" else objective.longest
    version = torch.searchsorted(facts.versions, micro.version) if len(facts.versions) else None
    bounds = None
    if facts.bounds is not None and version is not None:
        decays = facts.decays[micro.record]
        lower, upper = facts.bounds[version].unbind(-1)
        # Bounds that no ratio leaves, for records that do not decay.
        bounds = torch.where(decays, lower, 0.0), torch.where(decays, upper, math.inf)
    advantage = own["advantage"] if "advantage" in own else facts.advantages[facts.first[micro.record] + micro.order]
    pairs = PairFacts(
        micro.behaviour,
        advantage + own["shift"] if "shift" in own else advantage,
        losses.pair_weights(micro.record, facts.pairs_of_record, facts.whole, how, longest=longest),
        proximal=own.get("proximal"),
        bounds=bounds,
        reference=own.get("reference"),
        sequence=own.get("sequence"),
        correction=own.get("weight"),
        masks={name.removeprefix(MASK): column for name, column in own.items() if name.startswith(MASK)},
        at_cap=own.get("at_cap"),
    )
    return pairs, torch.zeros_like(micro.version) if version is None else facts.ages[version]


def terms_of(log_probs: Tensor, facts: PairFacts, objective: Objective) -> Terms:
    if objective == "supervised":
        return losses.supervised_terms(log_probs)
    return losses.policy_terms(log_probs, facts, objective)


def gap_too_wide(gap: float, objective: Objective) -> str:
    """Returns a warning if `gap`, the mean difference of engine and trainer at age 0, is too large for the narrow clip
    of gspo: it moves the ratio of a whole record."""
    if objective == "supervised" or objective.kind != "gspo":
        return ""
    narrow = min(objective.clip_low, objective.clip_high)
    if gap <= narrow / 2:
        return ""
    return (
        f"Log-probs of engine and trainer differ by {gap:.2g} at age 0, more than half of the clip of gspo "
        f"({narrow:.2g}); records are clipped for that. Widen clip_low and clip_high, or compute both in the same "
        "precision."
    )
