"""The beginning of a trainer's life: takes over from the trainer before it, at the newest intact checkpoint.

Invariants:
- the checkpoint is one of the valid history, and every byte of it is what was written;
- steps that no checkpoint covers are rolled back before anything is leased;
- a run without a checkpoint begins with the same weights each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentrl.config.run import RunConfig
from agentrl.store import checkpoints as stored
from agentrl.store import lineages, publications
from agentrl.store.database import Database
from agentrl.store.demonstrations import Demonstration, parser_of, read_demonstrations
from agentrl.store.documents import Checkpoint, Lineage, load
from agentrl.training import checkpoints, initial_model
from agentrl.training.atomic_directories import sweep_unfinished
from agentrl.training.batch import Trajectory
from agentrl.training.demonstrations import tokenized
from agentrl.training.learner import Learner, LearnerSettings
from agentrl.training.warmup import warm_up

log = logging.getLogger("trainer")
CHECKPOINTS = "checkpoints"
PROBED_DEMONSTRATIONS = 4


@dataclass(frozen=True, slots=True)
class Start:
    lineage: Lineage
    learner: Learner
    step: int
    """The last step that its weights have seen; 0 for none."""
    parent: int | None
    """The version that the starting weights come from."""
    new_run: bool
    """There was no checkpoint to continue from."""
    warmed_up: bool
    """A warm-up was done, so a checkpoint before the first step is worth it."""
    warmup_unused: bool
    """The configuration wants a warm-up, but the run began without one."""
    probes: list[list[int]]
    """Typical sequences for the canary."""


def settings_of(config: RunConfig) -> LearnerSettings:
    training = config.training
    return LearnerSettings(
        optimizer=training.optimizer,
        learning_rate=float(training.learning_rate),
        max_gradient_norm=float(training.max_gradient_norm),
        tokens_per_batch=training.tokens_per_batch,
    )


async def take_over(
    database: Database,
    config: RunConfig,
    run_dir: Path,
    owner: str,
    *,
    report: Callable[[str], None],
    on_progress: Callable[[], None],
) -> Start:
    """`owner` is the incarnation; its Owner document is open. `report` receives sentences for the unit's line."""
    for directory in (run_dir / CHECKPOINTS, run_dir / "weights"):
        sweep_unfinished(directory)
    chosen = await _choose(database, run_dir)
    lineage = await lineages.begin(
        database, owner, parent_checkpoint=chosen.id if chosen else "", after_step=chosen.step if chosen else 0
    )
    report(f"starts from {chosen.id}" if chosen else "starts from the beginning")
    demonstrations = await asyncio.to_thread(_demonstrations, config)
    model = await asyncio.to_thread(initial_model.model_directory, config, run_dir, demonstrations)
    source = run_dir / chosen.path if chosen else model
    learner = await asyncio.to_thread(Learner, source, settings_of(config), on_progress=on_progress)
    trajectories = await asyncio.to_thread(tokenized, demonstrations, source)
    warmed_up = False
    if chosen is None:
        warmed_up = await asyncio.to_thread(_warm_up, learner, config, trajectories, report)
    elif not await asyncio.to_thread(checkpoints.restore_optimizers, source, learner):
        log.warning("%s was written with another optimizer: the optimizer begins with fresh state", chosen.id)
    versions = await publications.parents(database)
    # Without a checkpoint these are the weights of the very first publication again.
    parent = chosen.version or None if chosen else min(versions, default=None)
    probes = [np.concatenate([segment.ids for segment in one.segments]).tolist() for one in trajectories]
    step = chosen.step if chosen else 0
    unused = bool(chosen and config.training.warmup.steps and trajectories) and not await stored.has_first(database)
    if unused:
        log.warning("training.warmup is skipped: the run began without it and continues from %s", chosen and chosen.id)
    return Start(lineage, learner, step, parent, chosen is None, warmed_up, unused, probes[:PROBED_DEMONSTRATIONS])


async def _choose(database: Database, run_dir: Path) -> Checkpoint | None:
    every = [load(Lineage, document) for document in await database.find("Lineage", {})]
    for one in valid_checkpoints(every, await stored.newest_first(database)):
        problem = await asyncio.to_thread(checkpoints.consistency_problem, run_dir / one.path, one.files)
        if not problem:
            return one
        log.error("checkpoint %s is skipped: %s", one.id, problem)
    return None


def valid_checkpoints(lineages: Sequence[Lineage], checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that a trainer may start from, the newest first.

    A checkpoint counts only if every lineage since then began from it or after it. One that was passed over (its files
    were damaged, or its trainer was replaced without noticing) never counts again: the steps after that point trained
    other weights.
    """
    last_step = _last_steps(lineages, {checkpoint.id: checkpoint for checkpoint in checkpoints})
    kept = [one for one in checkpoints if one.step <= last_step.get(one.lineage, -1)]
    order = {lineage.id: place for place, lineage in enumerate(_oldest_first(lineages))}
    return sorted(kept, key=lambda one: (order[one.lineage], one.step), reverse=True)


def _last_steps(lineages: Sequence[Lineage], by_id: dict[str, Checkpoint]) -> dict[str, float]:
    """For each lineage on the way back from the newest one: up to which step the history is its own."""
    known = {lineage.id: lineage for lineage in lineages}
    found: dict[str, float] = {}
    ordered = _oldest_first(lineages)
    at: Lineage | None = ordered[-1] if ordered else None
    limit = float("inf")
    while at is not None and at.id not in found:
        found[at.id] = limit
        # The checkpoint may be deleted by now; its name still says the step and the lineage.
        parent = by_id.get(at.parent_checkpoint)
        step, lineage = (parent.step, parent.lineage) if parent else _parts(at.parent_checkpoint)
        at, limit = known.get(lineage), float(step)
    return found


def _parts(checkpoint: str) -> tuple[int, str]:
    """Step and lineage of `step-000100.trainer-0.2@...`."""
    step, _, lineage = checkpoint.removeprefix("step-").partition(".")
    return (int(step), lineage) if step.isdecimal() else (-1, "")


def _oldest_first(lineages: Sequence[Lineage]) -> list[Lineage]:
    return sorted(lineages, key=lambda one: (one.opened_at is not None, one.opened_at, one.id))


def _demonstrations(config: RunConfig) -> list[Demonstration]:
    warmup = config.training.warmup
    return read_demonstrations(warmup.dataset, parser=parser_of(config)) if warmup.dataset else []


def _warm_up(
    learner: Learner, config: RunConfig, trajectories: list[Trajectory], report: Callable[[str], None]
) -> bool:
    warmup = config.training.warmup
    if not trajectories or not warmup.steps:
        return False

    def keep_on(step: int, loss: float) -> bool:
        report(f"warm-up: step {step} of {warmup.steps}, loss {loss:.3f}")
        return True

    warm_up(
        learner,
        trajectories,
        steps=warmup.steps,
        batch=warmup.batch,
        learning_rate=float(warmup.learning_rate),
        chance=config.training.random,
        keep_on=keep_on,
    )
    return True
