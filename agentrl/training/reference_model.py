"""The reference policy that training is compared with.

Invariants:
- it is written once, before the first step that is compared with it, and no later lineage changes it;
- it has only weights and no optimizer state, so it is never trained.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.store import checkpoints
from agentrl.store.weight_documents import CheckpointFile
from agentrl.training.atomic_directories import sweep_unfinished, whole_directory
from agentrl.training.checkpoints import described
from agentrl.training.learner import Learner

REFERENCE = Path(checkpoints.REFERENCE)
"""The directory of the reference within the run's directory."""


def keep_reference(run_dir: Path, learner: Learner, *, new_run: bool) -> dict[str, CheckpointFile]:
    """Writes the reference if it does not exist, and compares with it from now on; returns its files. With `new_run` an
    existing reference is replaced, because a lineage that never trained left it. A run that asks for a reference later
    gets its current weights as the reference. If adapters are trained, the reference is the model without them, and has
    no files."""
    if learner.settings.adapters is not None:
        learner.compare_with(None)
        return {}
    directory = run_dir / REFERENCE
    sweep_unfinished(directory.parent)
    if new_run or not directory.is_dir():
        with whole_directory(directory, durable=True) as unfinished:
            learner.save(unfinished)
    learner.compare_with(directory)
    return described(directory)
