"""The beginning of a trainer's life: take over from the one before, and stand where the newest good checkpoint stands.

Invariants: the checkpoint is looked for among those of the history that stands, and taken only if every byte of it is
what was written; what no checkpoint covers is rolled back before anything is leased; a run without a checkpoint begins
with the same weights each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.store import checkpoints as stored
from agentrl.store import lineages, publications
from agentrl.store.database import Database
from agentrl.store.documents import Checkpoint, Lineage, load
from agentrl.training import checkpoints, history, initial_model
from agentrl.training.atomic_directories import FileFact, sweep_unfinished
from agentrl.training.batch import Trajectory
from agentrl.training.demonstrations import Demonstration, read_demonstrations, tokenized
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
    """The last one that its weights have seen; 0 for none."""
    parent: int | None
    """The version that the starting weights come from."""
    anew: bool
    """No checkpoint is gone on from."""
    warmed_up: bool
    """The weights are worth a checkpoint before the first step."""
    warmup_unused: bool
    """The configuration asks for a warm-up, and the run began without one."""
    probes: list[list[int]]
    """Typical sequences, for canaries."""


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
    say: Callable[[str], None],
    on_progress: Callable[[], None],
) -> Start:
    """`owner` is the incarnation, whose Owner is open."""
    for directory in (run_dir / CHECKPOINTS, run_dir / "weights"):
        sweep_unfinished(directory)
    chosen = await _choose(database, run_dir)
    lineage = await lineages.begin(
        database, owner, parent_checkpoint=chosen.id if chosen else "", after_step=chosen.step if chosen else 0
    )
    say(f"starts from {chosen.id}" if chosen else "starts from the beginning")
    demonstrations = await asyncio.to_thread(_demonstrations, config)
    model = await asyncio.to_thread(initial_model.model_directory, config, run_dir, demonstrations)
    source = run_dir / chosen.path if chosen else model
    learner = await asyncio.to_thread(Learner, source, settings_of(config), on_progress=on_progress)
    trajectories = await asyncio.to_thread(tokenized, demonstrations, source)
    warmed_up = False
    if chosen is None:
        warmed_up = await asyncio.to_thread(_warm_up, learner, config, trajectories, say)
    elif not await asyncio.to_thread(checkpoints.restore_optimizers, source, learner):
        log.warning("%s was written with another optimizer: it begins anew", chosen.id)
    versions = await publications.parents(database)
    # Without a checkpoint these are the weights of the very first publication once more.
    parent = chosen.version or None if chosen else min(versions, default=None)
    probes = [[token for segment in one.segments for token in segment.ids] for one in trajectories]
    step = chosen.step if chosen else 0
    unused = bool(chosen and config.training.warmup.steps and trajectories) and not await stored.has_first(database)
    if unused:
        log.warning("training.warmup is not done: the run began without it, and goes on from %s", chosen and chosen.id)
    return Start(lineage, learner, step, parent, chosen is None, warmed_up, unused, probes[:PROBED_DEMONSTRATIONS])


async def _choose(database: Database, run_dir: Path) -> Checkpoint | None:
    every = [load(Lineage, document) for document in await database.find("Lineage", {})]
    for one in history.standing(every, await stored.newest_first(database)):
        expected = {name: FileFact(file.bytes, file.hash) for name, file in one.files.items()}
        problem = await asyncio.to_thread(checkpoints.consistency_problem, run_dir / one.path, expected)
        if not problem:
            return one
        log.error("checkpoint %s is passed over: %s", one.id, problem)
    return None


def _demonstrations(config: RunConfig) -> list[Demonstration]:
    warmup = config.training.warmup
    return read_demonstrations(Path(warmup.dataset)) if warmup.dataset else []


def _warm_up(learner: Learner, config: RunConfig, trajectories: list[Trajectory], say: Callable[[str], None]) -> bool:
    warmup = config.training.warmup
    if not trajectories or not warmup.steps:
        return False

    def tell(step: int, loss: float) -> bool:
        say(f"warm-up: step {step} of {warmup.steps}, loss {loss:.3f}")
        return True

    warm_up(
        learner,
        trajectories,
        steps=warmup.steps,
        batch=warmup.batch,
        learning_rate=float(warmup.learning_rate),
        chance=config.training.random,
        keep_on=tell,
    )
    return True
