"""Checks the files that a run file names, except datasets, before anything is started.

Invariants:
- The files are neither read nor run.
- The processes that need the files check them by the same functions, with the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def problems_of(config: RunConfig) -> Iterator[ConfigError]:
    """The errors with which the processes that need the files would end."""
    # A run without a data plane reads no user code.
    for path in config.rollout.code if config.environments else ():
        if problem := problem_of_code(Path(path)):
            yield problem
    demonstrations = config.training.demonstrations
    if config.is_job and demonstrations and not Path(demonstrations).is_file():
        yield ConfigError(
            f"training.demonstrations: there is no file {demonstrations}.", hint="It is relative to the run file."
        )


def problem_of_code(path: Path) -> ConfigError | None:
    """The reason why this cannot be a file of agent loops and scorers, or None."""
    if not path.exists():
        return ConfigError(f"rollout.code: there is no file {path}.", hint="It is relative to the run file.")
    if path.suffix != ".py" or not path.is_file():
        return ConfigError(f"rollout.code: {path} is no Python file.", hint="Name files that end in .py.")
    return None
