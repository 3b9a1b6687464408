"""Checkpoints: weights (of adapters only, if they are what is trained), optimizer state and progress, as safetensors
and JSON in the layout of Hugging Face.

Invariants:
- a checkpoint gets its name only when all of its files are durable;
- a checkpoint whose files differ from what was written is never loaded;
- reading never unpickles;
- loading restores every bit that was saved.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

import msgspec
import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.engines.adapters import ADAPTER_FILE
from agentrl.engines.safetensors_layout import CRITIC_FILE, OPTIMIZER_FILE
from agentrl.errors import ConfigError
from agentrl.files.pieces import Content, content_of, is_content
from agentrl.protocol.knob import KnobValue
from agentrl.store.weight_documents import CheckpointFile
from agentrl.training.atomic_directories import whole_directory
from agentrl.training.learner import Learner

log = logging.getLogger("trainer")

PROGRESS_FILE = "trainer.json"
WEIGHTS_FILE = "model.safetensors"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """`trainer.json`: the state of the trainer."""

    step: int
    version: int
    """The newest publication when the checkpoint was written; 0 before the first."""
    lineage: str = ""
    optimizer: dict[str, list[str]] = {}
    """The parameters of each optimizer. With another assignment the optimizers begin with fresh state."""
    settings: dict[str, KnobValue] = {}
    """The scientific settings of the last step."""


def name_of(step: int, lineage: str) -> str:
    """Includes the lineage, because two lineages may both reach a step."""
    return f"step-{step:06d}.{lineage.replace('/', '_')}"


def write_checkpoint(target: Path, learner: Learner, progress: Progress) -> dict[str, CheckpointFile]:
    """Writes it durably; returns size and hash of its files. A call of all ranks, of which one writes."""
    state, critic = learner.gathered("optimizers"), learner.gathered("critic")
    if not learner.leads:
        learner.save_trained(target)
        return {}
    with whole_directory(target, durable=True) as directory:
        learner.save_trained(directory)
        save_file(state, directory / OPTIMIZER_FILE)
        if critic:
            save_file(critic, directory / CRITIC_FILE)
        whole = msgspec.structs.replace(progress, optimizer=learner.optimizers.names)
        (directory / PROGRESS_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1))
        return described(directory)


def read_progress(directory: Path) -> Progress:
    file = directory / PROGRESS_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError) as broken:
        raise ConfigError(f"{file} cannot be read: {broken}.") from broken


def restore_optimizers(directory: Path, learner: Learner) -> bool:
    """Loads the state of the optimizers, and the critic with its state. Returns False if the checkpoint has another
    kind of optimizer; then they begin with fresh state, and the critic as a copy of the policy."""
    if _assigned(read_progress(directory).optimizer) != _assigned(learner.optimizers.names):
        return False
    learner.load_optimizers(_read(directory / OPTIMIZER_FILE), directory)
    if learner.critic is not None:
        if (directory / CRITIC_FILE).is_file():
            learner.critic.load(_read(directory / CRITIC_FILE))
        else:
            log.warning("%s has no critic: it begins as a copy of the policy", directory)
    return True


def _read(file: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, safetensors.SafetensorError) as broken:
        raise ConfigError(f"{file} cannot be read: {broken}.") from broken
    return tensors


def _assigned(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """Assigns state by the names of parameters, so their order may change."""
    return {optimizer: sorted(parameters) for optimizer, parameters in names.items()}


def consistency_problem(directory: Path, expected: dict[str, CheckpointFile]) -> str:
    """Empty if the files agree with the document; else what differs. Sizes are compared first because it is cheap."""
    weights = ADAPTER_FILE if ADAPTER_FILE in expected else WEIGHTS_FILE
    missing = {weights, OPTIMIZER_FILE, PROGRESS_FILE} - expected.keys()
    if missing:
        return f"its document does not name {', '.join(sorted(missing))}"
    for name, known in expected.items():
        try:
            size = (directory / name).stat().st_size
        except OSError as broken:
            return f"{name} cannot be read ({broken.strerror})"
        if size != known.bytes:
            return f"{name} has {size} bytes, not {known.bytes}"
    for name, known in expected.items():
        if not is_content(directory / name, Content(known.bytes, known.hash, tuple(known.pieces))):
            return f"{name} has another content than was written"
    return ""


def described(directory: Path) -> dict[str, CheckpointFile]:
    return {file.name: _described(file) for file in sorted(directory.iterdir()) if file.is_file()}


def _described(file: Path) -> CheckpointFile:
    found = content_of(file)
    return CheckpointFile(found.bytes, found.blake2b, list(found.pieces))


def remove(directory: Path) -> None:
    """Removes the progress first, so that an interrupted removal does not leave a usable checkpoint."""
    with contextlib.suppress(FileNotFoundError):
        (directory / PROGRESS_FILE).unlink()
    shutil.rmtree(directory, ignore_errors=True)
