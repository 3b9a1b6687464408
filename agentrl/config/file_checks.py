"""Files that a run file names besides its datasets, and what can be said of them before anything is started.

Invariant: they are looked at and neither read nor run; who needs them says the same of them by these functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def problems_of(config: RunConfig) -> Iterator[ConfigError]:
    """What the processes that need them would end with."""
    # A run that has no data plane reads no code of its own.
    for path in config.rollout.code if config.environments else ():
        if problem := problem_of_code(Path(path)):
            yield problem
    demonstrations = config.training.demonstrations
    if config.is_job and demonstrations and not Path(demonstrations).is_file():
        yield ConfigError(
            f"training.demonstrations: there is no file {demonstrations}.", hint="It is relative to the run file."
        )


def problem_of_code(path: Path) -> ConfigError | None:
    """Why no agent loop and no scorer can be read from there."""
    if not path.exists():
        return ConfigError(f"rollout.code: there is no file {path}.", hint="It is relative to the run file.")
    if path.suffix != ".py" or not path.is_file():
        return ConfigError(f"rollout.code: {path} is no Python file.", hint="Name files that end in .py.")
    return None
