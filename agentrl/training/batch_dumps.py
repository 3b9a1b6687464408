"""Recorded batches: what Steps trained, as files that train again without a store, engines or samplers.

Invariants: training from a dump, after the same state and on one thread, gives the same bits as the Step did, because a
file has the batch and everything that its Step went by; no more files are kept than asked for, the newest ones; those
of Steps that were rolled back are removed before others take their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError, DiskError
from agentrl.policies.policy_loss import PolicyLoss
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner, StepResult

DUMPS = "dumps"
"""Within the run's directory."""
PATTERN = "step-*.msgpack"


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, and what its Step went by."""

    batch: Batch
    after: int
    """The step that was trained before it: numbers of leases that came to nothing are skipped."""
    loss: PolicyLoss
    learning_rate: float
    optimizer_steps: int = 1


def train(learner: Learner, recorded: Recorded) -> StepResult:
    """What a Step does, and whoever repeats it."""
    learner.optimizers.set_learning_rate(recorded.learning_rate)
    return learner.train(recorded.batch, recorded.loss, optimizer_steps=recorded.optimizer_steps)


class Recorder:
    """Keeps the newest batches; none if `keep` is 0."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep

    def write(self, recorded: Recorded) -> None:
        if not self._keep:
            return
        step = recorded.batch.step
        path = self._directory / f"step-{step:06d}.msgpack"
        fresh = path.with_suffix(".unfinished")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.msgpack.encode(recorded))
            fresh.replace(path)
            for old in _files(self._directory)[: -self._keep]:
                old.unlink()
        except OSError as broken:
            raise DiskError(f"The batch of step {step} cannot be recorded: {broken.strerror}.") from broken

    def forget_after(self, step: int) -> None:
        """What a former life trained later does not stand."""
        for file in _files(self._directory):
            if file.stem > f"step-{step:06d}":
                file.unlink(missing_ok=True)


def read(place: Path) -> Iterator[Recorded]:
    """A directory's batches in the order of their steps, or the one of a file."""
    files = [place] if place.is_file() else _files(place)
    if not files:
        raise ConfigError(f"{place} holds no recorded batches.", hint=f"They are called {PATTERN}; see training.dumps.")
    for file in files:
        try:
            yield msgspec.msgpack.decode(file.read_bytes(), type=Recorded)
        except (OSError, msgspec.MsgspecError) as broken:
            raise ConfigError(f"{file} is no recorded batch: {broken}.") from broken


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob(PATTERN))
