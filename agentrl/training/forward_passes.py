"""Passes through a model without a gradient, and the micro-batches that every pass is given.

Invariants:
- All ranks make the same number of passes, and each model together with its parallel ones.
- π_old and the values of the critic are those before the first optimizer step of a batch;
- values of a whole record cover all of its pairs, over all micro-batches;
- nothing here has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from agentrl.policies.loss_settings import CriticRule, PolicyLoss
from agentrl.training import corrections, losses
from agentrl.training.batch import whole_sequence
from agentrl.training.corrections import Columns, Records, SumOverProcesses
from agentrl.training.critic import Critic, required, targets_of
from agentrl.training.learner_images import CANARY, LearnerImages
from agentrl.training.micro_batch import MicroBatch, collate
from agentrl.training.packing import Layout, Row, micro_batches, rows
from agentrl.training.pair_scores import PairScorer, Scored
from agentrl.training.parallel import Parallelism
from agentrl.training.precision import Precision, autocast
from agentrl.training.step_parts import Facts, Objective, Part

Pass: TypeAlias = Callable[[Sequence[MicroBatch]], Any]


class ForwardPasses:
    def __init__(
        self,
        parallelism: Parallelism,
        images: LearnerImages,
        layout: Layout,
        *,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision,
    ) -> None:
        """`dtype` is that of log-probs."""
        self._parallelism, self._images, self._layout = parallelism, images, layout
        self.device, self.dtype, self._precision = device, dtype, precision

    def collated(self, part: Sequence[Row]) -> MicroBatch:
        idle = None if self._images.how is None else CANARY
        return collate(part, self._layout, self.device, self.dtype, self._images.patches, idle)

    def through(self, scorer: Pass, micros: Sequence[list[Row]]) -> Iterator[tuple[MicroBatch, Any]]:
        for together in self._parallelism.together(micros):
            batches = [self.collated(rows_of) for rows_of in together]
            yield from zip(batches, scorer(batches), strict=True)

    @torch.no_grad()
    def log_probs(self, scorer: Pass, sequences: Sequence[Sequence[int]], *, most_tokens: int) -> list[list[float]]:
        """Those of all tokens except the first of each sequence, at temperature 1."""
        packed = rows([whole_sequence(index, ids) for index, ids in enumerate(sequences)], "linear")
        values: list[list[float]] = [[] for _ in sequences]
        for micro, scored in self.through(scorer, micro_batches(packed, most_tokens, self._layout)):
            for index in {int(one) for one in micro.record.tolist()}:
                values[index] = scored.log_probs[micro.record == index].tolist()
        return values

    def autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self._precision)


class ColumnPasses:
    def __init__(
        self,
        scorer: PairScorer,
        reference: Callable[[Sequence[MicroBatch]], list[Scored]] | None,
        critic: Critic | None,
        *,
        forward: ForwardPasses,
        summed: SumOverProcesses,
    ) -> None:
        self._scorer, self._reference, self._critic = scorer, reference, critic
        self._forward, self._summed = forward, summed

    @torch.no_grad()
    def columns(self, micros: Sequence[list[Row]], facts: Facts, objective: Objective) -> Columns:
        """The columns that the loss needs besides the policy, computed before the first gradient of the batch."""
        if objective == "supervised" or not micros:
            return {}
        columns: Columns = {}
        if self._reference is not None:
            with self._forward.autocast():
                columns["reference"] = self._scores(self._reference, micros)
        if objective.needs_proximal:
            columns |= self._before(micros, facts, objective, columns.get("reference"))
        if objective.critic is not None:
            columns |= self._expected(micros, facts, objective.critic, columns.pop("penalty", None))
        return columns

    def _before(
        self, micros: Sequence[list[Row]], facts: Facts, objective: PolicyLoss, reference: list[Tensor] | None
    ) -> Columns:
        """The columns that depend on the log-probs of the policy before the step."""
        columns: Columns = {}
        proximal = columns["proximal"] = self._scores(self._scorer, micros)
        records = self._records(micros, facts)
        if objective.corrects:
            log_rho = [old - micro for old, micro in zip(proximal, self._behaviour(micros), strict=True)]
            columns |= corrections.columns_of(log_rho, records, objective, self._summed)
        if objective.distance_in_reward:
            if reference is None:
                raise losses.no_reference()
            weight, apart = (
                objective.reference_weight,
                [old - first for old, first in zip(proximal, reference, strict=True)],
            )
            if objective.critic is not None:
                columns["penalty"] = [weight * one for one in apart]
            else:
                columns["shift"] = corrections.reward_shift(apart, records, facts.groups, weight)
        return columns

    def _expected(
        self, micros: Sequence[list[Row]], facts: Facts, rule: CriticRule, penalty: list[Tensor] | None
    ) -> Columns:
        """Advantages and targets from the values of the critic before the step."""
        values, places = [], []
        for micro, valued in self._forward.through(required(self._critic).scorer, micros):
            values.append(valued.values.to(self._forward.dtype))
            places.append((micro.record, micro.order))
        found = targets_of(values, penalty, places, facts, rule, self._summed)
        return {"advantage": found.advantage, "value": found.value, "returns": found.returns}

    @torch.no_grad()
    def with_sequences(self, part: Part, objective: Objective, *, moved: bool) -> Part:
        """Adds the log-ratio of each record at the present weights, if the loss works on whole records."""
        if objective == "supervised" or objective.kind != "gspo":
            return part
        proximal = part.columns.get("proximal")
        now = self._scores(self._scorer, part.micros) if moved or proximal is None else proximal
        decoupled = objective.ratio == "decoupled" and proximal is not None
        before = proximal if decoupled and proximal is not None else self._behaviour(part.micros)
        records = self._records(part.micros, part.facts)
        mean = records.means([one - other for one, other in zip(now, before, strict=True)])
        return part._replace(columns=part.columns | {"sequence": records.spread(mean)})

    def _scores(
        self, scorer: Callable[[Sequence[MicroBatch]], list[Scored]], micros: Sequence[list[Row]]
    ) -> list[Tensor]:
        return [scored.log_probs for _, scored in self._forward.through(scorer, micros)]

    def _behaviour(self, micros: Sequence[Sequence[Row]]) -> list[Tensor]:
        columns = (np.concatenate([row.pairs.behaviour for row in part]) for part in micros)
        return [
            torch.from_numpy(column).to(device=self._forward.device, dtype=self._forward.dtype) for column in columns
        ]

    def _records(self, micros: Sequence[list[Row]], facts: Facts) -> Records:
        columns = (np.concatenate([row.pairs.record for row in part]) for part in micros)
        return Records([torch.from_numpy(column).to(self._forward.device) for column in columns], facts.pairs_of_record)
