"""The model, its optimizers, and the optimizer steps of a batch. It does not know where batches come from.

Invariants:
- loss and gradient of an optimizer step do not depend on how its pairs are packed and spread over micro-batches;
- one micro-batch at a time is on the device;
- a batch with a loss or gradient that is not finite leaves weights and optimizer state exactly as they were, however
  many of its optimizer steps were made;
- π_old is the policy before the first optimizer step;
- what belongs to a whole record is computed before the first gradient of an optimizer step, because its pairs may be
  spread over micro-batches;
- nothing is random: the same batch after the same state gives the same bits on one thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor

from agentrl.training import corrections, losses, memory_limits, parallel, step_metrics
from agentrl.training.activation_checkpoints import Recompute
from agentrl.training.batch import Batch, Segment, Trajectory, split_by_groups
from agentrl.training.corrections import Columns, Records
from agentrl.training.losses import PairFacts, Terms
from agentrl.training.micro_batch import MicroBatch, collate
from agentrl.training.optimizers import AdamW, Kind, OptimizerSet, make_optimizers
from agentrl.training.packing import Row, micro_batches, rows
from agentrl.training.pair_scores import PairScorer
from agentrl.training.parallel import Parallelism, Plan, Precision, Sizes
from agentrl.training.policy_model import layout_of, load_model, read_companions, save_model
from agentrl.training.step_parts import Facts, Objective, Part, facts_of, in_smaller_parts, of_pairs

log = logging.getLogger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    optimizer: Kind = "adamw"
    learning_rate: float = 1e-6
    adamw: AdamW = field(default_factory=AdamW)
    weight_decay: float = 0.0
    decay_all: bool = False
    """Whether the weights of norms, biases and embeddings decay too."""
    max_gradient_norm: float = 1.0
    tokens_per_batch: int = 16_384
    """Packed tokens of one forward pass, and the longest row unless a single trajectory is longer."""
    precision: Precision = "float32"
    """Of the computation. Weights, their gradients and the optimizer state stay in float32."""
    recompute: Recompute = "none"
    """What the backward pass computes again; see `activation_checkpoints`."""
    compiled: bool = False
    """On a GPU: compile the layers."""
    parallel: Sizes = field(default_factory=Sizes)
    """The ranks that train together."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a batch."""

    applied: bool
    """False if something was not finite; then nothing was changed."""
    metrics: dict[str, float] = field(default_factory=dict)


class _State(NamedTuple):
    """A copy of weights and optimizer state."""

    weights: dict[str, Tensor]
    optimizers: dict[str, Tensor]


class Learner:
    """Weights and optimizer state. Not safe for two threads."""

    def __init__(
        self,
        directory: Path,
        settings: LearnerSettings,
        *,
        dtype: torch.dtype = torch.float32,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_progress` is called after every micro-batch, so a long step is not taken for a hang."""
        self.settings = settings
        self._tokens = settings.tokens_per_batch
        """The limit of a micro-batch, less once the memory was too small."""
        # Kept in memory for every copy, because the directory may be removed later.
        self._companions = read_companions(directory)
        self.accelerator = parallel.start(settings.parallel, settings.precision)
        plan = Plan(settings.parallel, settings.recompute, settings.compiled)
        self._parallelism = Parallelism(plan, self.accelerator)
        self._on_progress = on_progress
        self._warned = False
        """Once is enough for a gap between engine and trainer that lasts."""
        # Log-probs are computed in at least float32, for weights of any type.
        self._log_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        model = load_model(directory, dtype=dtype)
        self.layout = layout_of(model)
        self._scorer = self._prepared(model)
        self._reference: PairScorer | None = None
        self.optimizers = self._new_optimizers()

    def _prepared(self, model: transformers.PreTrainedModel) -> PairScorer:
        scorer = self._parallelism.apply(PairScorer(model))
        # In evaluation mode accelerate adds precision and device, and no parallelism of its own.
        prepared: PairScorer = self.accelerator.prepare_model(scorer, evaluation_mode=True)
        return prepared

    def _new_optimizers(self) -> OptimizerSet:
        fresh = _optimizers_of(self.model, self.settings)
        fresh.replace([self.accelerator.prepare_optimizer(one) for one in fresh.optimizers])
        return fresh

    @property
    def model(self) -> transformers.PreTrainedModel:
        """The model without the wrappers of accelerate."""
        scorer: PairScorer = self.accelerator.unwrap_model(self._scorer)
        return scorer.model

    def new_optimizers(self, learning_rate: float) -> None:
        """Starts with fresh optimizer state, for another kind of training."""
        self.optimizers = self._new_optimizers()
        self.optimizers.set_learning_rate(learning_rate)

    def compare_with(self, directory: Path) -> None:
        """Loads the reference model. It is neither trained nor saved."""
        self._reference = self._prepared(load_model(directory, dtype=self.model.dtype).requires_grad_(False))

    @property
    def leads(self) -> bool:
        """Whether this rank writes what all of them have trained."""
        return self._parallelism.leads

    def agree(self, wish: bool) -> bool:
        """Whether all ranks wish it."""
        return self._everywhere(int(wish)) == self._parallelism.ranks

    def weights(self) -> dict[str, Tensor]:
        """All weights on the rank that leads, each once if several modules share it. A call of all ranks."""
        own = {name for named in (self.model.named_parameters(), self.model.named_buffers()) for name, _ in named}
        return self._parallelism.whole({name: one for name, one in self.model.state_dict().items() if name in own})

    def optimizer_state(self) -> dict[str, Tensor]:
        """The whole state of the optimizers on the rank that leads. A call of all ranks."""
        return self._parallelism.whole(self.optimizers.tensors())

    def load_optimizers(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        """Restores their whole state, which every rank has read from `source`, and keeps its part. A call of all
        ranks."""
        self.optimizers.load(dict(tensors))

    def save(self, directory: Path) -> list[str]:
        """Writes weights, configuration and tokenizer; returns the names of the files. A call of all ranks; the one
        that leads writes."""
        weights = self.weights()
        return save_model(self.model, directory, weights, companions=self._companions) if self.leads else []

    def train(
        self,
        batch: Batch,
        objective: Objective,
        *,
        learning_rate: float | None = None,
        optimizer_steps: int = 1,
    ) -> StepResult:
        """Makes optimizer steps over disjoint parts of the batch, each of whole groups; all of them or none.
        `learning_rate` stays in force; None keeps the current one."""
        if learning_rate is not None:
            self.optimizers.set_learning_rate(learning_rate)
        cut = [self._part(part, objective) for part in split_by_groups(batch, optimizer_steps)]
        # Ranks agree on which parts are empty: all have the same number of micro-batches.
        parts = [part for part in cut if part.micros]
        if not parts:
            return StepResult(True, {"pairs": 0.0})
        before = self._state() if len(parts) > 1 else None
        measured: list[step_metrics.Measures] = []
        norms: list[float] = []
        applied = True
        for part in parts:
            found, norm = self._gradient_within_memory(
                self._with_sequences(part, objective, moved=bool(norms)), objective, moved=bool(norms)
            )
            measured.append(found.joined(self._parallelism))
            norms.append(norm)
            applied = math.isfinite(measured[-1].loss) and math.isfinite(norms[-1])
            if not applied:
                break
            self.optimizers.step()
            self.optimizers.zero_grad()
        self.optimizers.zero_grad()
        if not applied and before is not None:
            self._restore(before)
        metrics = step_metrics.together(measured).summary(supervised=objective == "supervised") | {
            # A norm that is not finite is the last one, and is the one to report.
            "gradient_norm": max(norms) if applied else norms[-1],
            "optimizer_steps": float(len(norms)),
            "learning_rate": self.optimizers.learning_rate,
            "packed_tokens": self._everywhere(sum(part.packed_tokens for part in parts)),
            "unpacked_tokens": float(sum(one.tokens for one in batch.trajectories)),
        }
        self._warn_of_a_gap(metrics.get("mismatch_mean", 0.0), objective)
        return StepResult(applied, metrics)

    def _part(self, batch: Batch, objective: Objective) -> Part:
        batch = self._parallelism.share(batch)
        packed = self._packed(batch.trajectories)
        facts = facts_of(
            batch,
            packed,
            objective,
            device=self.accelerator.device,
            dtype=self._log_dtype,
            everywhere=self._everywhere,
        )
        limit = min(self._tokens, self.settings.tokens_per_batch)
        micros = self._parallelism.in_step(micro_batches(packed, limit, self.layout))
        return Part(facts, micros, self._columns(micros, facts, objective), sum(map(len, packed)))

    def _warn_of_a_gap(self, gap: float, objective: Objective) -> None:
        """A difference between engine and trainer moves the ratio of a whole record, and the clip of gspo is narrow."""
        if objective == "supervised" or objective.kind != "gspo" or self._warned:
            return
        narrow = min(objective.clip_low, objective.clip_high)
        if gap > narrow / 2:
            self._warned = True
            log.warning(
                "Log-probs of engine and trainer differ by %.2g at age 0, more than half of the clip of gspo (%.2g); "
                "records are clipped for that. Widen clip_low and clip_high, or compute both in the same precision.",
                gap,
                narrow,
            )

    def _gradient_within_memory(
        self, part: Part, objective: Objective, *, moved: bool
    ) -> tuple[step_metrics.Measures, float]:
        """The gradient; from smaller micro-batches, now and later, if the memory is too small."""
        measured = step_metrics.Measures(moved=moved)
        try:
            return measured, self._gradient(part, objective, measured)
        except (RuntimeError, MemoryError) as error:
            too_much = memory_limits.largest(part.micros)
            whole = all(len(rows_of) == 1 for rows_of in part.micros)
            # Other ranks wait in the middle of a pass for what this one cannot compute: all of them must begin again.
            if not memory_limits.is_out_of_memory(error) or whole or self._parallelism.ranks > 1:
                raise
        # Not within the handler: the error keeps the tensors of the failed attempt alive.
        self.optimizers.zero_grad()
        if self.accelerator.device.type == "cuda":
            torch.cuda.empty_cache()
        self._tokens = min(self._tokens, too_much) // 2
        log.warning(
            "A micro-batch of %d tokens needs more memory than there is. From now on they have at most %d; lower "
            "training.tokens_per_batch to keep that.",
            too_much,
            self._tokens,
        )
        measured = step_metrics.Measures(moved=moved)
        return measured, self._gradient(in_smaller_parts(part, self._tokens), objective, measured)

    def _gradient(self, part: Part, objective: Objective, measured: step_metrics.Measures) -> float:
        """Computes the gradient where the optimizers expect it; returns its norm before clipping."""
        self.optimizers.zero_grad()
        for number, rows_of in enumerate(part.micros):
            micro = self._collated(rows_of)
            own = {name: column[number] for name, column in part.columns.items()}
            facts, ages = of_pairs(micro, part.facts, objective, own)
            scored = self._scorer(micro)
            terms = _terms(scored.log_probs, facts, objective)
            loss = losses.total(terms, facts.weight)
            # FSDP averages gradients, but the denominator counts the records of all ranks: the sum is needed.
            self.accelerator.backward(loss * self._parallelism.ranks)
            measured.add(loss, scored, terms, facts, ages)
            self._on_progress()
        if objective != "supervised" and objective.denominator == "kept":
            self._count_kept_only(measured)
        norm = self.accelerator.clip_grad_norm_(self._scorer.parameters(), self.settings.max_gradient_norm)
        return parallel.as_number(norm)

    def _state(self) -> _State:
        # On the processor: the device of the model has the least room.
        kept = [
            {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
            for tensors in (self.model.state_dict(), self.optimizers.tensors())
        ]
        return _State(*kept)

    def _restore(self, state: _State) -> None:
        self.model.load_state_dict(state.weights)
        self.optimizers.load(state.optimizers)

    @torch.no_grad()
    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of all tokens except the first of each sequence."""
        packed = rows([_whole_sequence(index, ids) for index, ids in enumerate(sequences)], "linear")
        values: list[list[float]] = [[] for _ in sequences]
        for part in micro_batches(packed, self.settings.tokens_per_batch, self.layout):
            micro = self._collated(part)
            scores = self._scorer(micro).log_probs
            for index in {int(one) for one in micro.record.tolist()}:
                values[index] = scores[micro.record == index].tolist()
        return values

    def _count_kept_only(self, measured: step_metrics.Measures) -> None:
        """Scales the whole gradient before it is clipped, so that masked pairs do not count."""
        pairs, masked = self._everywhere(measured.pairs), self._everywhere(measured.masked)
        if 0 < masked < pairs:
            factor = pairs / (pairs - masked)
            measured.rescale(factor)
            for parameter in self._scorer.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _packed(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        return rows(trajectories, self.layout, row_tokens=min(self._tokens, self.settings.tokens_per_batch))

    def _everywhere(self, count: int) -> float:
        """The sum over all ranks; each record belongs to one of them."""
        return float(self._parallelism.summed(torch.tensor(count, device=self.accelerator.device)))

    def _collated(self, part: Sequence[Row]) -> MicroBatch:
        return collate(part, self.layout, self.accelerator.device, self._log_dtype)

    @torch.no_grad()
    def _columns(self, micros: Sequence[Sequence[Row]], facts: Facts, objective: Objective) -> Columns:
        """What the loss needs besides the policy, before the first gradient of the batch."""
        if objective == "supervised":
            return {}
        columns: Columns = {}
        if self._reference is not None:
            with self.accelerator.autocast():
                columns["reference"] = [self._reference(self._collated(part)).log_probs for part in micros]
        if not objective.needs_proximal:
            return columns
        proximal = columns["proximal"] = [self._scorer(self._collated(part)).log_probs for part in micros]
        records = self._records(micros, facts)
        if objective.corrects:
            log_rho = [old - micro for old, micro in zip(proximal, self._behaviour(micros), strict=True)]
            columns |= corrections.columns_of(log_rho, records, objective, self._summed)
        if objective.reference_weight and objective.reference_in == "reward":
            if "reference" not in columns:
                raise losses.no_reference()
            apart = [old - first for old, first in zip(proximal, columns["reference"], strict=True)]
            columns["shift"] = corrections.reward_shift(apart, records, facts.groups, objective.reference_weight)
        return columns

    @torch.no_grad()
    def _with_sequences(self, part: Part, objective: Objective, *, moved: bool) -> Part:
        """With the log-ratio of each record at the weights of now, if the loss is one of whole records."""
        if objective == "supervised" or objective.kind != "gspo":
            return part
        proximal = part.columns.get("proximal")
        if moved or proximal is None:
            now = [self._scorer(self._collated(rows_of)).log_probs for rows_of in part.micros]
        else:
            now = proximal
        decoupled = objective.ratio == "decoupled" and proximal is not None
        before = proximal if decoupled and proximal is not None else self._behaviour(part.micros)
        records = self._records(part.micros, part.facts)
        mean = records.means([one - other for one, other in zip(now, before, strict=True)])
        return part._replace(columns=part.columns | {"sequence": records.spread(mean)})

    def _behaviour(self, micros: Sequence[Sequence[Row]]) -> list[Tensor]:
        device, dtype = self.accelerator.device, self._log_dtype
        columns = (np.concatenate([row.pairs.behaviour for row in part]) for part in micros)
        return [torch.from_numpy(column).to(device=device, dtype=dtype) for column in columns]

    def _records(self, micros: Sequence[Sequence[Row]], facts: Facts) -> Records:
        columns = (np.concatenate([row.pairs.record for row in part]) for part in micros)
        return Records([torch.from_numpy(one).to(self.accelerator.device) for one in columns], facts.pairs_of_record)

    def _summed(self, values: Tensor) -> Tensor:
        return self._parallelism.summed(values)


def _terms(log_probs: Tensor, facts: PairFacts, objective: Objective) -> Terms:
    if objective == "supervised":
        return losses.supervised_terms(log_probs)
    return losses.policy_terms(log_probs, facts, objective)


def _optimizers_of(model: transformers.PreTrainedModel, settings: LearnerSettings) -> OptimizerSet:
    untyped: Any = model
    ends = (untyped.get_input_embeddings(), untyped.get_output_embeddings())
    return make_optimizers(
        model.named_parameters(),
        settings.optimizer,
        learning_rate=settings.learning_rate,
        adamw=settings.adamw,
        weight_decay=settings.weight_decay,
        decay_all=settings.decay_all,
        embeddings={id(parameter) for module in ends for parameter in module.parameters()},
    )


def _whole_sequence(index: int, ids: Sequence[int]) -> Trajectory:
    first, rest = np.asarray(ids[:1]), np.asarray(ids[1:])
    scored = Segment(parent=0, ids=rest, trains=True, log_probs=np.zeros(len(rest)), versions=[(0, len(rest))])
    return Trajectory(record=str(index), segments=[Segment(parent=-1, ids=first), scored])
