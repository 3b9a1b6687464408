"""The start of a trainer: takes over from the trainer before it, at the newest intact checkpoint.

Invariants:
- the checkpoint is one of the valid history, and every byte of it is what was written;
- steps that no checkpoint covers are rolled back before anything is leased;
- a run without a checkpoint begins with the same weights each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentrl.config.lora import Lora
from agentrl.config.run import RunConfig
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.unit_files import UnitFiles
from agentrl.protocol.knob import KnobValue
from agentrl.store import checkpoints as stored
from agentrl.store import lineages, publications, rollbacks
from agentrl.store.database import Database
from agentrl.store.demonstrations import Demonstration, parser_of, read_demonstrations
from agentrl.store.weight_documents import Checkpoint, Lineage
from agentrl.training import checkpoints, disk_retention, initial_model, recorded_episodes
from agentrl.training.atomic_directories import sweep_unfinished
from agentrl.training.batch import Trajectory
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.lora import Adapters, check_start
from agentrl.training.mesh import Sizes
from agentrl.training.optimizers import AdamW
from agentrl.training.ranks import Loader, load_alone
from agentrl.training.sharding import Keeping
from agentrl.training.warmup import tokenized, warm_up

log = logging.getLogger("trainer")
CHECKPOINTS = "checkpoints"
PROBED_DEMONSTRATIONS = 4


@dataclass(frozen=True, slots=True)
class Start:
    lineage: Lineage
    learner: Learner
    step: int
    """The last step that its weights have seen; 0 for none."""
    checkpoint: str
    """Where it starts from; empty for the beginning."""
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
    damaged: int
    """Checkpoints that were skipped because their files differ from what was written."""
    rolled_back: bool
    """It starts from the history of the checkpoint that an operator chose."""
    settings: dict[str, KnobValue]
    """The scientific settings of the last step before the checkpoint."""


def settings_of(config: RunConfig) -> LearnerSettings:
    training = config.training
    return LearnerSettings(
        optimizer=training.optimizer,
        adamw=AdamW(betas=(float(training.adamw.beta1), float(training.adamw.beta2)), eps=float(training.adamw.eps)),
        weight_decay=float(training.weight_decay),
        decay_all=training.decay_all,
        learning_rate=float(training.learning_rate),
        max_gradient_norm=float(training.max_gradient_norm),
        tokens_per_batch=training.tokens_per_batch,
        precision=training.precision,
        recompute=training.recompute,
        compiled=training.compile,
        critic_rate=critic_rate(config),
        adapters=_adapters(training.lora),
        parallel=Sizes(**training.parallel.model_dump()),
        keeping=Keeping(narrow=training.gather == "bfloat16", on_host=training.offload),
    )


def critic_rate(config: RunConfig) -> float:
    """0 without a critic."""
    training = config.training
    if training.advantage != "gae" or training.loss == "sft":
        return 0.0
    return float(training.critic.learning_rate or training.learning_rate)


def _adapters(lora: Lora) -> Adapters | None:
    return Adapters(lora.rank, float(lora.alpha) or 2.0 * lora.rank, lora.targets) if lora.rank else None


async def take_over(
    database: Database,
    config: RunConfig,
    run_dir: Path,
    owner: str,
    *,
    report: Callable[[str], None],
    on_progress: Callable[[], None],
    load: Loader = load_alone,
    files: UnitFiles | None = None,
) -> Start:
    """`owner` is the incarnation; its Owner document is open. `report` receives sentences for the unit's status.
    `files` fetches files that a trainer on another host wrote."""
    for directory in (run_dir / CHECKPOINTS, run_dir / "weights"):
        sweep_unfinished(directory)
    history = await _begin(database, run_dir, owner, files or UnitFiles(None))
    chosen = history.checkpoint
    await disk_retention.remove_incomplete_checkpoints(database, run_dir)
    report(history.sentence)
    demonstrations = await asyncio.to_thread(_demonstrations, config)
    model = await asyncio.to_thread(initial_model.model_directory, config, run_dir, demonstrations)
    source = run_dir / chosen.path if chosen else model
    settings = settings_of(config)
    check_start(source, settings.adapters, is_checkpoint=chosen is not None)
    contents = stored.contents_of(chosen.files) if chosen else None
    base = None if settings.adapters is None else model
    learner = await asyncio.to_thread(load, source, settings, base=base, on_progress=on_progress, contents=contents)
    trajectories = await asyncio.to_thread(_trajectories, config, demonstrations, source, new_run=chosen is None)
    warmed_up = chosen is None and await asyncio.to_thread(_warm_up, learner, config, trajectories, report)
    if chosen is not None and not await asyncio.to_thread(checkpoints.restore_optimizers, source, learner):
        log.warning("%s was written with another optimizer: the optimizer begins with fresh state", chosen.id)
    # Without a checkpoint these are the weights of the very first publication again.
    parent = chosen.version or None if chosen else min(await publications.parents(database), default=None)
    unused = bool(chosen and config.training.warmup.steps and trajectories) and not await stored.has_first(database)
    if unused:
        log.warning("training.warmup is skipped: the run began without it and continues from %s", chosen and chosen.id)
    return Start(
        lineage=history.lineage,
        learner=learner,
        step=chosen.step if chosen else 0,
        checkpoint=chosen.id if chosen else "",
        parent=parent,
        new_run=chosen is None,
        warmed_up=warmed_up,
        warmup_unused=unused,
        probes=await asyncio.to_thread(_probes, config, trajectories, source),
        damaged=history.damaged,
        rolled_back=history.rolled_back,
        settings=checkpoints.read_progress(source).settings if chosen else {},
    )


class _History(NamedTuple):
    """The part of a run's history from which its trainer continues."""

    lineage: Lineage
    checkpoint: Checkpoint | None
    damaged: int
    rolled_back: bool
    sentence: str


async def _begin(database: Database, run_dir: Path, owner: str, files: UnitFiles) -> _History:
    """Opens a lineage at the newest intact checkpoint, or at the one that an operator chose."""
    request = await rollbacks.requested(database)
    chosen, damaged = await _choose(database, run_dir, files)
    rolled_back_to = await rollbacks.not_evaluated(database)
    if request is not None:
        await rollbacks.keep_newest(database, request)
        followed = chosen is not None and await rollbacks.leads_to(database, request, chosen)
        rolled_back_to = request.checkpoint if followed else ""
    lineage = await lineages.begin(
        database,
        owner,
        parent_checkpoint=chosen.id if chosen else "",
        after_step=chosen.step if chosen else 0,
        rolled_back_to=rolled_back_to,
    )
    sentence = f"starts from {chosen.id}" if chosen else "starts from the beginning"
    if request is not None and not rolled_back_to:
        sentence += f": {request.checkpoint}, chosen for a rollback, and all checkpoints before it are gone or damaged"
        log.error("%s", sentence)
    return _History(lineage, chosen, damaged, bool(rolled_back_to), sentence)


async def _choose(database: Database, run_dir: Path, files: UnitFiles) -> tuple[Checkpoint | None, int]:
    """The newest intact checkpoint, and how many damaged ones are newer. Raises FilesError if the run has checkpoints
    and no host has one now: it must not begin again because of an outage."""
    damaged = 0
    absent: FilesError | None = None
    for one in await rollbacks.to_start_from(database):
        try:
            await files.bring(one.path, stored.contents_of(one.files))
            if one.reference:
                await files.bring(stored.REFERENCE, stored.contents_of(one.reference))
        except FilesError as failed:
            log.error("checkpoint %s is skipped: %s", one.id, failed)
            absent = absent or failed
            continue
        except WrongListError as old:
            log.error("checkpoint %s: %s", one.id, old)
        problem = await asyncio.to_thread(checkpoints.consistency_problem, run_dir / one.path, one.files)
        if not problem:
            return one, damaged
        log.error("checkpoint %s is skipped: %s", one.id, problem)
        await stored.note_damage(database, one.id, problem)
        damaged += 1
    if absent is not None:
        raise absent
    return None, damaged


def _demonstrations(config: RunConfig) -> list[Demonstration]:
    warmup = config.training.warmup
    return read_demonstrations(warmup.dataset, parser=parser_of(config)) if warmup.dataset else []


def _trajectories(
    config: RunConfig, demonstrations: list[Demonstration], model: Path, *, new_run: bool
) -> list[Trajectory]:
    """What a warm-up trains on."""
    variables = config.model.template if config.model is not None else {}
    found = tokenized(demonstrations, model, variables, config.training.warmup.roles)
    wanted = config.training.warmup.recorded
    if new_run and wanted.filter:
        found += recorded_episodes.read(config, wanted, recorded_episodes.choose(config, wanted), model)
    return found


def _probes(config: RunConfig, trajectories: list[Trajectory], model: Path) -> list[list[int]]:
    own = [np.concatenate([segment.ids for segment in trajectory.segments]).tolist() for trajectory in trajectories]
    return (own or initial_model.prompts(config, model, PROBED_DEMONSTRATIONS))[:PROBED_DEMONSTRATIONS]


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
