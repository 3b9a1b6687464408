"""The policy that training is compared with: what the run began with, kept beside it.

Invariants: it is written once, before the first step that is compared with it, and stays the same over all lives of the
trainer; weights alone are kept, so nobody trains it.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.training.atomic_directories import sweep_unfinished, whole_directory
from agentrl.training.learner import Learner

REFERENCE = Path("reference") / "initial"
"""Within the run's directory."""


def keep(run_dir: Path, learner: Learner, *, anew: bool) -> None:
    """Compare from now on with what is kept. `anew`: the run begins, and what is there is of a life that came to
    nothing. A run that asks for it later begins to be compared with what it is then."""
    directory = run_dir / REFERENCE
    sweep_unfinished(directory.parent)
    if anew or not directory.is_dir():
        with whole_directory(directory, durable=True) as fresh:
            learner.save(fresh)
    learner.compare_with(directory)
