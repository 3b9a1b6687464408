"""Checkpoints: weights, optimizer state and progress, as safetensors and JSON in the layout of Hugging Face.

Invariants: a checkpoint has its name only when all of its files are durable; one whose files are not what was written
is never loaded; nothing that is read is unpickled; loading gives back every bit that was saved.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec
import safetensors
from safetensors.torch import load_file, save_file

from agentrl.errors import ConfigError
from agentrl.training.atomic_directories import FileFact, facts, problem_of, whole_directory
from agentrl.training.learner import Learner

OPTIMIZER_FILE = "optimizer.safetensors"
PROGRESS_FILE = "trainer.json"
WEIGHTS_FILE = "model.safetensors"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """`trainer.json`: where training stood."""

    step: int
    version: int
    """The newest publication when it was written; 0 before the first."""
    lineage: str = ""
    optimizer: dict[str, list[str]] = {}
    """Which parameters each optimizer had. Another assignment begins with fresh state."""


def name_of(step: int, lineage: str) -> str:
    """With the lineage: two lives of a trainer may both reach a step."""
    return f"step-{step:06d}.{lineage.replace('/', '_')}"


def write_checkpoint(target: Path, learner: Learner, progress: Progress) -> dict[str, FileFact]:
    """Write it durably under its name; the facts of its files."""
    with whole_directory(target, durable=True) as directory:
        learner.save(directory)
        save_file(learner.optimizers.tensors(), directory / OPTIMIZER_FILE)
        whole = msgspec.structs.replace(progress, optimizer=learner.optimizers.names)
        (directory / PROGRESS_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1))
        return facts(directory)


def read_progress(directory: Path) -> Progress:
    file = directory / PROGRESS_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError) as broken:
        raise ConfigError(f"{file} cannot be read: {broken}.") from broken


def restore_optimizers(directory: Path, learner: Learner) -> bool:
    """Load the state of the optimizers. False if the checkpoint was written with another kind of optimizer: then they
    begin anew."""
    if read_progress(directory).optimizer != learner.optimizers.names:
        return False
    try:
        tensors = load_file(directory / OPTIMIZER_FILE)
    except (OSError, safetensors.SafetensorError) as broken:
        raise ConfigError(f"{directory / OPTIMIZER_FILE} cannot be read: {broken}.") from broken
    learner.optimizers.load(tensors)
    return True


def consistency_problem(directory: Path, expected: dict[str, FileFact]) -> str:
    """Empty if document and files agree; else what does not."""
    missing = {WEIGHTS_FILE, OPTIMIZER_FILE, PROGRESS_FILE} - expected.keys()
    if missing:
        return f"its document does not name {', '.join(sorted(missing))}"
    return problem_of(directory, expected)


def remove(directory: Path) -> None:
    """Its progress goes first: what is left of a removal that was interrupted is no checkpoint."""
    with contextlib.suppress(FileNotFoundError):
        (directory / PROGRESS_FILE).unlink()
    shutil.rmtree(directory, ignore_errors=True)
