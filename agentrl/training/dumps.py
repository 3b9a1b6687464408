"""Recorded batches: what Steps trained, as files that train again without a store, engines or samplers.

Invariant: training from a dump, after the same state and on one thread, gives the same bits as the Step did.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError, DiskError
from agentrl.training.learner import Learner, Objective, StepResult
from agentrl.training.trajectories import Batch

PATTERN = "step-*.msgpack"


def write_dump(directory: Path, batch: Batch) -> Path:
    path = directory / f"step-{batch.step:06d}.msgpack"
    fresh = path.with_suffix(".unfinished")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.msgpack.encode(batch))
        fresh.replace(path)
    except OSError as broken:
        raise DiskError(f"The batch of step {batch.step} cannot be recorded: {broken.strerror}.") from broken
    return path


def read_dumps(directory: Path, *, after_step: int = 0) -> Iterator[Batch]:
    """In the order of their steps."""
    files = sorted(directory.glob(PATTERN))
    if not files:
        raise ConfigError(f"{directory} holds no recorded batches.", hint=f"They are called {PATTERN}.")
    for file in files:
        try:
            batch = msgspec.msgpack.decode(file.read_bytes(), type=Batch)
        except (OSError, msgspec.MsgspecError) as broken:
            raise ConfigError(f"{file} is no recorded batch: {broken}.") from broken
        if batch.step > after_step:
            yield batch


def train_from_dumps(
    learner: Learner, directory: Path, objective: Objective, *, after_step: int = 0
) -> Iterator[tuple[Batch, StepResult]]:
    """One optimizer step per recorded batch."""
    for batch in read_dumps(directory, after_step=after_step):
        yield batch, learner.train(batch, objective)
