"""The model, its optimizers, and the optimizer steps of a batch. It does not know where batches come from.

Invariants:
- loss and gradient of an optimizer step do not depend on how its pairs are packed and spread over micro-batches;
- one micro-batch at a time is on the device;
- a batch with a loss or gradient that is not finite leaves weights and optimizer state exactly as they were, however
  many of its optimizer steps were made;
- π_old is the policy before the first optimizer step;
- values of a whole record are computed before the first gradient of an optimizer step, because its pairs may be spread
  over micro-batches;
- nothing is random: the same batch after the same state gives the same bits on one thread.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import Tensor

from agentrl.policies.loss_settings import CriticRule
from agentrl.training import learner_state, lora, losses, parallel, precision, step_metrics, step_parts
from agentrl.training.batch import Batch, Trajectory, split_by_groups
from agentrl.training.critic import Critic, ValueScorer, as_critic, required, value_loss
from agentrl.training.forward_passes import ColumnPasses, ForwardPasses
from agentrl.training.learner_images import LearnerImages
from agentrl.training.learner_settings import Gathered, LearnerSettings, StepResult
from agentrl.training.learner_state import Twin
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.optimizers import OptimizerSet, optimizers_for
from agentrl.training.packing import Row, micro_batches, rows
from agentrl.training.pair_scores import PairScorer, Scored
from agentrl.training.parallel import Parallelism, Plan
from agentrl.training.policy_model import (
    how_images_are_shown,
    layout_of,
    load_model,
    read_companions,
    save_around,
    save_model,
    stored_form,
)
from agentrl.training.precision import LossScale
from agentrl.training.scorers import Scorer
from agentrl.training.snapshots import Snapshot, rounded
from agentrl.training.step_parts import (
    Facts,
    Objective,
    Part,
    facts_of,
    gap_too_wide,
    in_smaller_parts,
    of_pairs,
    terms_of,
)

log = logging.getLogger("trainer")
AnyScorer = TypeVar("AnyScorer", bound=Scorer[Any])
LogProbs = Callable[[Sequence[Sequence[int]]], list[list[float]]]
"""Returns the log-probs of all tokens except the first of each sequence, at temperature 1."""


class Learner:
    """The model and its optimizers. Not safe for two threads."""

    def __init__(
        self,
        directory: Path,
        settings: LearnerSettings,
        *,
        base: Path | None = None,
        dtype: torch.dtype = torch.float32,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`base` is the model that the adapters in `directory` change; empty means the model that they name.
        `on_progress` is called after every micro-batch, so a long step is not taken for a hang."""
        self.settings = settings
        self._tokens = settings.tokens_per_batch
        """The limit of a micro-batch; it is lowered if the memory is too small."""
        # Kept in memory for every copy, because the directory may be removed later.
        self.companions = read_companions(directory)
        self.accelerator = parallel.start(settings.parallel, settings.precision)
        plan = Plan(settings.parallel, settings.recompute, settings.compiled, settings.keeping)
        self._parallelism = Parallelism(plan, self.accelerator)
        self._scale = LossScale(settings.precision)
        self._on_progress = on_progress
        self._snapshot: Snapshot | None = None
        """The newest snapshot, which may still be copied from the weights."""
        self._twin: Twin | None = None
        self._warned = False
        """True after the first warning about a gap between engine and trainer."""
        # Log-probs are computed in at least float32, for weights of any type.
        self._log_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._base = (base or lora.base_of(directory)) if lora.has_adapters(directory) else directory
        model = load_model(self._base, dtype=dtype)
        self.layout = layout_of(model)
        self.images = LearnerImages(how_images_are_shown(model, self.companions, directory))
        self._forward = ForwardPasses(
            self._parallelism,
            self.images,
            self.layout,
            device=self.accelerator.device,
            dtype=self._log_dtype,
            precision=settings.precision,
        )
        if settings.adapters is not None:
            lora.add(model, settings.adapters)
            if lora.has_adapters(directory):
                lora.load(model, directory)
        self._scorer = self._prepared(PairScorer(model))
        self._reference: PairScorer | None = None
        self._base_is_reference = False
        self.optimizers = self._new_optimizers(self.model, settings.learning_rate)
        self.critic = self._new_critic(dtype) if settings.critic_rate else None

    def _prepared(self, scorer: AnyScorer) -> AnyScorer:
        spread = self._parallelism.apply(scorer)
        precision.apply(spread, self.accelerator.device, self.settings.precision)
        # In evaluation mode accelerate adds only precision, and no parallelism.
        prepared: AnyScorer = self.accelerator.prepare_model(spread, device_placement=False, evaluation_mode=True)
        return prepared

    def _new_optimizers(self, model: transformers.PreTrainedModel, learning_rate: float) -> OptimizerSet:
        wanted = self.settings
        fresh = optimizers_for(
            model,
            wanted.optimizer,
            learning_rate=learning_rate,
            adamw=wanted.adamw,
            weight_decay=wanted.weight_decay,
            decay_all=wanted.decay_all,
        )
        fresh.replace([self.accelerator.prepare_optimizer(optimizer) for optimizer in fresh.optimizers])
        return fresh

    def _new_critic(self, dtype: torch.dtype) -> Critic:
        scorer = self._prepared(ValueScorer(as_critic(load_model(self._base, dtype=dtype))))
        model = self.accelerator.unwrap_model(scorer).model
        return Critic(scorer, model, self._new_optimizers(model, self.settings.critic_rate))

    @property
    def model(self) -> transformers.PreTrainedModel:
        """The model without the wrappers of accelerate."""
        scorer: PairScorer = self.accelerator.unwrap_model(self._scorer)
        return scorer.model

    def new_optimizers(self, learning_rate: float) -> None:
        """Starts with fresh optimizer state, for another kind of training, and with a critic that begins as a copy of
        the present policy."""
        self.optimizers = self._new_optimizers(self.model, learning_rate)
        if self.critic is not None:
            own, adapters = dict(self.model.named_parameters()), self.settings.adapters
            self.critic.copy_policy(own if adapters is None else lora.merged(own, adapters))
            self.critic.optimizers = self._new_optimizers(self.critic.model, self.settings.critic_rate)

    def compare_with(self, directory: Path | None) -> None:
        """Loads the reference model, which is neither trained nor saved. None means the model without its adapters."""
        self._base_is_reference = directory is None
        if directory is not None:
            reference = load_model(directory, dtype=self.model.dtype).requires_grad_(False)
            self._reference = self._prepared(PairScorer(reference))

    @property
    def leads(self) -> bool:
        """Whether this rank leads: it writes what all ranks have trained."""
        return self._parallelism.leads

    def agree(self, wish: bool) -> bool:
        return self._parallelism.agreed(wish)

    def gathered(self, what: Gathered) -> dict[str, Tensor]:
        """Whole tensors on the rank that leads, each once if several modules share it. A call of all ranks."""
        if what == "optimizers":
            return self._parallelism.whole(self.optimizers.tensors())
        if what == "critic":
            return self._parallelism.whole({} if self.critic is None else self.critic.tensors())
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        own = {name for name, one in named if what == "weights" or one.requires_grad}
        return self._parallelism.whole({name: one for name, one in self.model.state_dict().items() if name in own})

    def weights(self) -> dict[str, Tensor]:
        """All weights on the rank that leads, as a model without adapters has them. A call of all ranks."""
        found = self.gathered("weights")
        return found if self.settings.adapters is None else lora.merged(found, self.settings.adapters)

    def load_optimizers(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        """Restores the state of the optimizers. Every rank reads the whole state from `source` and keeps its part. A
        call of all ranks."""
        self.optimizers.load(dict(tensors))

    def leave_device(self) -> None:
        """Moves weights and optimizer state to the memory of the host, for a trainer of a single process."""
        if self.accelerator.device.type != "cpu":
            self._move_to(torch.device("cpu"))
            torch.cuda.empty_cache()

    def return_to_device(self) -> None:
        if self.accelerator.device.type != "cpu":
            self._move_to(self.accelerator.device)

    def _move_to(self, device: torch.device) -> None:
        modules = [self._scorer, self._reference, self.critic.scorer if self.critic else None]
        optimizers = [*self.optimizers.optimizers, *(self.critic.optimizers.optimizers if self.critic else ())]
        learner_state.move([module for module in modules if module is not None], optimizers, device)

    def save(self, directory: Path) -> list[str]:
        """Writes weights, configuration and tokenizer; returns the names of the files. A call of all ranks; the one
        that leads writes."""
        weights = self.weights()
        return save_model(self.model, directory, weights, companions=self.companions) if self.leads else []

    @property
    def base(self) -> Path:
        """The model that adapters change."""
        return self._base

    def snapshot(self, dtype: torch.dtype, *, apart: bool = False) -> Snapshot:
        """A snapshot of the present weights for a publication, or of the adapters alone (`apart`), which keep their
        type. A call of all ranks; the rank that leads gets it."""
        if apart:
            self._snapshot = Snapshot(self.gathered("trained weights"), narrow=(), dtype=dtype)
            return self._snapshot
        weights, buffers = self.weights(), {name for name, _ in self.model.named_buffers()}
        stored = functools.partial(stored_form, self.model)
        self._snapshot = Snapshot(weights, narrow=weights.keys() - buffers, dtype=dtype, stored=stored)
        return self._snapshot

    def _before_weights_change(self) -> None:
        if self._snapshot is not None:
            self._snapshot.take()
            self._snapshot = None

    def save_trained(self, directory: Path) -> list[str]:
        """Like `save`, with the adapters alone if only they are trained."""
        if self.settings.adapters is None:
            return self.save(directory)
        adapters = self.gathered("trained weights")
        if not self.leads:
            return []
        save_around(self.model, directory, companions=self.companions)
        lora.save(directory, adapters, self.settings.adapters, base=self._base)
        return sorted(file.name for file in directory.iterdir())

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
        self.images.show(batch.images)
        cut = [self._part(part, objective) for part in split_by_groups(batch, optimizer_steps)]
        # Ranks agree on which parts are empty, because all have the same number of micro-batches.
        parts = [part for part in cut if part.micros]
        if not parts:
            return StepResult(True, {"pairs": 0.0})
        before = learner_state.kept(self.model, self.optimizers, self.critic) if len(parts) > 1 else None
        alone = 0 if objective == "supervised" or objective.critic is None else objective.critic.alone
        measured: list[step_metrics.Measures] = []
        norms: list[float] = []
        applied = True
        for part in parts:
            found, norm = self._gradient_within_range(
                self._passes().with_sequences(part, objective, moved=bool(norms)), objective, moved=bool(norms)
            )
            measured.append(found.joined(self._parallelism))
            norms.append(norm)
            applied = all(map(math.isfinite, (measured[-1].loss, norms[-1], measured[-1].critic_norm)))
            if not applied:
                break
            self._move(learns_policy=batch.step > alone)
        self._zero_grad()
        if not applied and before is not None:
            learner_state.restore(before, self.model, self.optimizers, self.critic)
        metrics = step_metrics.together(measured).summary(supervised=objective == "supervised") | {
            # If a norm is not finite, it is the last one, and it is reported.
            "gradient_norm": max(norms) if applied else norms[-1],
            "optimizer_steps": float(len(norms)),
            **self._scale.metrics(),
            "learning_rate": self.optimizers.learning_rate,
            **({"critic_learning_rate": self.critic.optimizers.learning_rate} if self.critic is not None else {}),
            "packed_tokens": self._everywhere(sum(part.packed_tokens for part in parts)),
            "unpacked_tokens": float(sum(trajectory.tokens for trajectory in batch.trajectories)),
        }
        self._warn_of_a_gap(metrics.get("mismatch_mean", 0.0), objective)
        return StepResult(applied, metrics)

    def _move(self, *, learns_policy: bool) -> None:
        """Makes an optimizer step of the parameters that have a gradient."""
        if learns_policy:
            self._before_weights_change()
            self.optimizers.step()
        if self.critic is not None:
            self.critic.optimizers.step()
        self._scale.stepped()
        self._zero_grad()

    def _zero_grad(self) -> None:
        self.optimizers.zero_grad()
        if self.critic is not None:
            self.critic.optimizers.zero_grad()

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
        return Part(facts, micros, self._passes().columns(micros, facts, objective), sum(map(len, packed)))

    def _warn_of_a_gap(self, gap: float, objective: Objective) -> None:
        if not self._warned and (warning := gap_too_wide(gap, objective)):
            self._warned = True
            log.warning("%s", warning)

    def _gradient_within_range(
        self, part: Part, objective: Objective, *, moved: bool
    ) -> tuple[step_metrics.Measures, float]:
        """Computes the gradient, and repeats it with half the scale of the loss as long as it overflows float16."""
        first = self._scale.value
        while True:
            measured, norm = self._gradient_within_memory(part, objective, moved=moved)
            if precision.finite(norm, measured.critic_norm):
                return measured, norm
            # A smaller scale cannot repair a loss that is not finite, nor a gradient that overflows without a scale.
            if not self._scale.can_fall or not self._parallelism.agreed(math.isfinite(measured.loss)):
                self._scale.value = first
                return measured, norm
            self._scale.fall()
            log.info("A gradient overflowed float16. The scale of the loss is now %g.", self._scale.value)

    def _gradient_within_memory(
        self, part: Part, objective: Objective, *, moved: bool
    ) -> tuple[step_metrics.Measures, float]:
        """Computes the gradient. If the memory is too small, it uses smaller micro-batches, now and later."""
        if self._tokens < self.settings.tokens_per_batch:
            # The part may have been packed before the limit was lowered.
            part = in_smaller_parts(part, self._tokens)
        measured = step_metrics.Measures(moved=moved)
        try:
            return measured, self._gradient(part, objective, measured)
        except (RuntimeError, MemoryError) as error:
            too_much = step_parts.largest(part.micros)
            whole = all(len(rows_of) == 1 for rows_of in part.micros)
            # Other ranks wait in the middle of a pass for results that this one cannot compute, so all of them must
            # start again.
            if not step_parts.is_out_of_memory(error) or whole or self._parallelism.ranks > 1:
                raise
        # After the handler, because the error keeps the tensors of the failed attempt alive.
        self._zero_grad()
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
        self._zero_grad()
        columns = ({name: column[at] for name, column in part.columns.items()} for at in range(len(part.micros)))
        for together in self._parallelism.together(part.micros):
            micros = [self._forward.collated(rows_of) for rows_of in together]
            own = list(itertools.islice(columns, len(micros)))
            for micro, of_micro, scored in zip(micros, own, self._scorer(micros), strict=True):
                facts, ages = of_pairs(micro, part.facts, objective, of_micro)
                terms = terms_of(scored.log_probs, facts, objective)
                loss = losses.total(terms, facts.weight)
                self.accelerator.backward(loss * self._scale.value)
                measured.add(loss, scored, terms, facts, ages)
                self._on_progress()
            if objective != "supervised" and objective.critic is not None:
                self._add_gradient_of_values(micros, own, part.facts, objective.critic, measured)
        if objective != "supervised" and objective.denominator == "kept":
            self._count_kept_only(measured)
        if self.critic is not None:
            measured.critic_norm = self._clipped(self.critic.scorer)
        return self._clipped(self._scorer)

    def _clipped(self, scorer: AnyScorer) -> float:
        """Completes the gradient, and scales it down if it is too long; returns its norm before that."""
        whole = self.accelerator.unwrap_model(scorer)
        return self._parallelism.clip(whole, self.settings.max_gradient_norm, scale=self._scale.value)

    def _add_gradient_of_values(
        self,
        micros: Sequence[MicroBatch],
        own: Sequence[Mapping[str, Tensor]],
        facts: Facts,
        rule: CriticRule,
        measured: step_metrics.Measures,
    ) -> None:
        for of_micro, valued in zip(own, required(self.critic).scorer(micros), strict=True):
            found = value_loss(valued.values, of_micro["value"], of_micro["returns"], rule)
            self.accelerator.backward(found.loss.sum() / facts.whole.pairs * self._scale.value)
            measured.add_values(found, of_micro["value"], of_micro["returns"])

    def log_probs(
        self, sequences: Sequence[Sequence[int]], *, published: torch.dtype | None = None
    ) -> list[list[float]]:
        """Log-probs at temperature 1 of all tokens except the first of each sequence; with the weights as they are
        published in this type, or with its own."""
        if published in (None, self.model.dtype):
            return self._log_probs(self._scorer, sequences)
        self._before_weights_change()
        with rounded(self._scorer.parameters(), published):
            return self._log_probs(self._scorer, sequences)

    @property
    def computes_beside(self) -> bool:
        """Whether log-probs of a snapshot can be computed beside the training: without other ranks, and without the
        device that trains."""
        return self._parallelism.is_plain

    def log_probs_beside(self, snapshot: Snapshot) -> LogProbs:
        """A function that computes the log-probs of a snapshot, or of the present adapters, in another thread; for one
        snapshot at a time."""
        twin = self._twin = self._twin or Twin(self.model)
        alone = self.settings.adapters is not None
        adapters = {name: one.clone() for name, one in self.gathered("trained weights").items()} if alone else {}

        def log_probs(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            with twin.filled(adapters or snapshot.named()) as model, self._forward.autocast():
                return self._log_probs(PairScorer(model), sequences)

        return log_probs

    def _log_probs(self, scorer: PairScorer, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._forward.log_probs(scorer, sequences, most_tokens=self.settings.tokens_per_batch)

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
        """The sum over all ranks. Each record belongs to one rank."""
        return float(self._parallelism.summed(torch.tensor(count, device=self.accelerator.device)))

    def _passes(self) -> ColumnPasses:
        return ColumnPasses(
            self._scorer,
            self._base_scores if self._base_is_reference else self._reference,
            self.critic,
            forward=self._forward,
            summed=self._parallelism.summed,
        )

    def _base_scores(self, batches: Sequence[MicroBatch]) -> list[Scored]:
        with lora.without(self.model):
            scores: list[Scored] = self._scorer(batches)
        return scores
