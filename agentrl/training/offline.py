"""Training without a run: recorded batches again, or demonstrations; no store, no engines, no coordinator.

Invariants:
- recorded batches train with the recorded settings, so the weights equal those of the run, to the bit on one thread;
- an interrupted job continues from its checkpoint and ends with the same bits;
- existing output is replaced only by complete output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from agentrl.config import policy_rules
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.store.demonstrations import parser_of, read_demonstrations
from agentrl.training import (
    batch_dumps,
    checkpoints,
    initial_model,
    rank_processes,
    recorded_episodes,
    reference_model,
    warmup,
)
from agentrl.training.batch import Batch
from agentrl.training.batch_dumps import DumpedBatch
from agentrl.training.checkpoints import PROGRESS_FILE, Progress
from agentrl.training.learner import Learner
from agentrl.training.lora import check_start
from agentrl.training.parallel import lead_first
from agentrl.training.resume import CHECKPOINTS, settings_of
from agentrl.training.warmup import tokenized

SUPERVISED = "supervised"
"""The default output of a job on demonstrations, within the run's directory."""
MERGED = "merged"
"""The whole model within that output, if adapters were trained."""


@dataclass(frozen=True, slots=True)
class StepReport:
    step: int
    last: int
    """The number of the last step of the job."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Done:
    start: Path
    """Model or checkpoint."""
    steps: int
    """Steps of this job."""
    last_step: int
    out: Path | None
    """The directory of the weights, if they were written."""


OnStep = Callable[[StepReport], bool]
"""False ends the job after this step."""


def train_recorded(
    config: RunConfig, place: Path, *, start: Path | None, out: Path | None, as_configured: bool, on_step: OnStep
) -> Done:
    """Trains every recorded batch after `start`. `as_configured` takes loss, learning rate and optimizer steps from the
    run file instead of the recorded ones."""
    recorded = list(batch_dumps.read(place))
    settings = settings_of(config)
    torch.set_num_threads(config.training.threads)
    with lead_first(settings.parallel, settings.precision):
        begin = start or _starting_point(config, recorded)
    learner, progress = _learner(config, begin)
    wanted = [one for one in recorded if one.batch.step > progress.step]
    _refuse_gap(wanted, progress.step, named=start is not None)
    done = 0
    for one in wanted:
        how = _as_configured(one, config) if as_configured else one
        result = learner.train(
            one.batch, how.loss, learning_rate=how.learning_rate, optimizer_steps=how.optimizer_steps
        )
        done += 1
        if not learner.agree(on_step(StepReport(one.batch.step, wanted[-1].batch.step, result.metrics))):
            break
    last = wanted[done - 1].batch.step if done else progress.step
    if out is not None:
        checkpoints.write_checkpoint(out, learner, Progress(step=last, version=0))
    return Done(begin, done, last, out)


def _as_configured(one: DumpedBatch, config: RunConfig) -> DumpedBatch:
    training = config.training
    return msgspec.structs.replace(
        one,
        loss=policy_rules.policy_loss(training, longest=config.sampling.context),
        learning_rate=float(training.learning_rate) * policy_rules.schedule(training).share(one.batch.step),
        optimizer_steps=training.optimizer_steps,
    )


def train_supervised(config: RunConfig, *, out: Path | None, on_step: OnStep) -> Done:
    """Trains cross-entropy on demonstrations, with checkpoints. Continues from a checkpoint in `out`."""
    training, settings = config.training, settings_of(config)
    if not (training.demonstrations or training.recorded.filter):
        raise ConfigError(
            "There is nothing to learn from.",
            hint="Name demonstrations (training.demonstrations) or records (training.recorded.filter).",
        )
    torch.set_num_threads(training.threads)
    target = out or Path(config.dir) / SUPERVISED
    files = training.demonstrations
    demonstrations = read_demonstrations(files, parser=parser_of(config)) if files else []
    resumes = (target / PROGRESS_FILE).is_file()
    choice = target.with_name(f"{target.name}.records.json")
    records: list[str] = []
    with lead_first(settings.parallel, settings.precision):
        begin = target if resumes else initial_model.model_directory(config, Path(config.dir), demonstrations)
        if training.recorded.filter:
            anew = not resumes and rank_processes.leads()
            records = recorded_episodes.kept_choice(choice, config, training.recorded, again=anew)
    learner, progress = _learner(config, begin)
    shown = tokenized(demonstrations, begin, config.model.template if config.model else {}, training.roles)
    if records:
        shown += recorded_episodes.read(config, training.recorded, records, begin)
    size = min(training.batch, len(shown))
    last = training.steps or math.ceil(len(shown) / size)
    order = warmup.order(len(shown), training.random, skip=progress.step * size)
    step = saved = progress.step
    while step < last:
        step += 1
        batch = Batch(step=step, base_version=0, trajectories=[shown[next(order)] for _ in range(size)])
        learning_rate = float(training.learning_rate) * warmup.cooled(step, last)
        result = learner.train(batch, "supervised", learning_rate=learning_rate)
        if not result.applied:
            raise ConfigError(
                f"The loss of step {step} is {result.metrics['loss']}.", hint="Lower training.learning_rate."
            )
        continues = learner.agree(on_step(StepReport(step, last, result.metrics)))
        if not continues or step == last or step % training.checkpoint_every == 0:
            checkpoints.write_checkpoint(target, learner, Progress(step=step, version=0))
            saved = step
        if not continues:
            break
    if not saved:
        checkpoints.write_checkpoint(target, learner, Progress(step=step, version=0))
    if settings.adapters is not None:
        # For people who continue with the whole model and not with its adapters.
        learner.save(target / MERGED)
    return Done(begin, step - progress.step, step, target)


def _learner(config: RunConfig, start: Path) -> tuple[Learner, Progress]:
    """A learner with the weights of a model, or of a checkpoint with the state of its optimizers."""
    if not (start / "config.json").is_file():
        raise ConfigError(f"{start} is neither a model nor a checkpoint: it has no config.json.")
    settings = settings_of(config)
    check_start(start, settings.adapters, is_checkpoint=(start / PROGRESS_FILE).is_file())
    learner = Learner(start, settings)
    if settings.adapters is not None:
        if config.training.reference == "initial":
            learner.compare_with(None)
    elif (kept := Path(config.dir) / reference_model.REFERENCE).is_dir():
        learner.compare_with(kept)
    if not (start / PROGRESS_FILE).is_file():
        return learner, Progress(step=0, version=0)
    if not checkpoints.restore_optimizers(start, learner):
        raise ConfigError(
            f"{start} was written with another optimizer than {config.training.optimizer}.",
            hint="Name the one that it was trained with: training.optimizer.",
        )
    return learner, checkpoints.read_progress(start)


def _starting_point(config: RunConfig, recorded: list[DumpedBatch]) -> Path:
    """The oldest checkpoint that recorded batches continue from; else the model that the run began with."""
    known = sorted(_checkpoints(Path(config.dir)), key=lambda found: (found[0], -found[1].stat().st_mtime))
    for step, directory in known:
        if any(one.after <= step < one.batch.step for one in recorded):
            return directory
    if recorded[0].after == 0 and not config.training.warmup.steps:
        return initial_model.model_directory(config, Path(config.dir), [])
    raise ConfigError(
        f"The recorded batches begin with step {recorded[0].batch.step}, "
        f"and {config.dir} has no checkpoint to start from.",
        hint="Name a model or a checkpoint: --start DIR.",
    )


def _checkpoints(run_dir: Path) -> Iterator[tuple[int, Path]]:
    for file in (run_dir / CHECKPOINTS).glob(f"step-*/{PROGRESS_FILE}"):
        yield checkpoints.read_progress(file.parent).step, file.parent


def _refuse_gap(wanted: list[DumpedBatch], step: int, *, named: bool) -> None:
    """Refuses a missing step. If the start was named, the first batch may follow any step."""
    before = wanted[0].after if named and wanted else step
    for one in wanted:
        if one.after > before:
            raise ConfigError(
                f"Step {one.after} was not recorded, but step {one.batch.step} was.",
                hint="Start from a checkpoint behind the gap: --start DIR.",
            )
        before = one.batch.step
