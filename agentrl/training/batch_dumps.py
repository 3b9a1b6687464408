"""Batches recorded on disk, for training again without a store, engines or samplers.

A file is written on demand, from the batch and the settings of a step; the step itself does not need it.

Invariants:
- training from a file, after the same state and on one thread, gives the same bits as the step did;
- no more files are kept than configured, the newest ones;
- files of steps that were rolled back are removed before other steps take their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agentrl.errors import ConfigError, DiskError
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch
from agentrl.training.trainer_knobs import Plan

DUMPS = "dumps"
"""Within the run's directory."""
PATTERN = "step-*.msgpack"


class DumpedBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A batch and the settings of its step."""

    batch: Batch
    after: int
    """The step that was trained before it. Numbers of leases that were released are skipped."""
    loss: PolicyLoss
    learning_rate: float
    optimizer_steps: int = 1


class BatchDumps:
    """Writes batches and keeps the newest; writes none if `keep` is 0."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep

    def write(self, batch: Batch, plan: Plan, *, after: int) -> None:
        if not self._keep:
            return
        dumped = DumpedBatch(
            batch=batch,
            after=after,
            loss=plan.loss,
            learning_rate=plan.learning_rate,
            optimizer_steps=plan.optimizer_steps,
        )
        path = self._directory / f"step-{batch.step:06d}.msgpack"
        unfinished = path.with_suffix(".unfinished")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(encode(dumped))
            unfinished.replace(path)
            for old in _files(self._directory)[: -self._keep]:
                old.unlink()
        except OSError as error:
            raise DiskError(f"The batch of step {batch.step} cannot be recorded: {error.strerror}.") from error

    def forget_after(self, step: int) -> None:
        """Removes the files of steps after this one, which a former lineage trained and which were rolled back."""
        for file in _files(self._directory):
            if file.stem > f"step-{step:06d}":
                file.unlink(missing_ok=True)


def encode(dumped: DumpedBatch) -> bytes:
    return msgspec.msgpack.encode(dumped, enc_hook=lambda array: array.tolist())


def read(place: Path) -> Iterator[DumpedBatch]:
    """The batches of a directory in the order of their steps, or the one of a file."""
    files = [place] if place.is_file() else _files(place)
    if not files:
        raise ConfigError(
            f"{place} has no recorded batches.", hint=f"Their files are called {PATTERN}; see training.dumps."
        )
    for file in files:
        try:
            yield msgspec.msgpack.decode(file.read_bytes(), type=DumpedBatch, dec_hook=_array)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} is not a recorded batch: {error}.") from error


def _array(kind: type, value: Any) -> Any:
    return np.asarray(value)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob(PATTERN))
