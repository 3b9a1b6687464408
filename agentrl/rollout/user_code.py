"""A run's own agent loops and scorers, from Python files that its configuration names.

Invariant: a file that cannot be imported, and a name in an environment or a row that no file registers, raise a
ConfigError that names the place, before an episode begins.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from agentrl.config.file_checks import problem_of_code
from agentrl.config.run import RunConfig
from agentrl.environments import user_places
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.rollout import agent_loops, judges, scorers, watchers
from agentrl.rollout.adapted_environments import register_adapted
from agentrl.rollout.declared_environments import register_declared
from agentrl.rollout.environments_elsewhere import register_elsewhere
from agentrl.store import datasets
from agentrl.toolservers import user_files


def load(config: RunConfig) -> None:
    """Import the run's files, which register what they define, and check that nothing is missing."""
    for number, path in enumerate(config.rollout.code):
        _run(Path(path), f"agentrl_own_{number}")
    register_declared()
    judges.configure(config.judges)
    register_adapted(config)
    register_elsewhere(config)
    watchers.configure({name: environment.watchers for name, environment in config.environments.items()})
    for name, environment in config.environments.items():
        _see(config, f"environments.{name}", environment.agent, environment.scorer)
        # A file of an environment may compute them as metrics, whose names only its episodes show.
        for watcher in () if environment.code else environment.watchers:
            _see(config, f"environments.{name}.watchers", environment.agent, watcher)
        for place in filter(None, (environment.dataset, environment.evaluation)):
            # On another host than the steward's the file may not be there; the steward reads it in any case.
            for row in datasets.read_without_images(place) if Path(place).exists() else ():
                _see(config, row.where, row.agent_name or environment.agent, row.scorer or environment.scorer)
    for number, stage in enumerate(config.curriculum):
        for name, scorer in stage.scorers.items():
            _see(config, f"curriculum.{number}.scorers.{name}", config.environments[name].agent, scorer)


def _see(config: RunConfig, where: str, agent: str, scorer: str) -> None:
    try:
        agent_loops.loop_named(agent)
        scorers.scorer_named(scorer)
    except UnknownNameError as unknown:
        files = ", ".join(config.rollout.code) or "no files"
        raise ConfigError(
            f"{where}: {unknown.message}",
            hint=f"{unknown.hint} Besides what is shipped, `rollout.code` is looked through: {files}.",
        ) from unknown


def _run(path: Path, module: str) -> None:
    if problem := problem_of_code(path):
        raise problem
    user_places.add_directory(path.parent)
    try:
        user_files.load(path, module)
    except ConfigError:
        raise
    except Exception as broken:
        # The boundary to code of users.
        where = [frame for frame in traceback.extract_tb(broken.__traceback__) if frame.filename == str(path)]
        line = where[-1].lineno if where else getattr(broken, "lineno", None)
        place = f"{path}, line {line}" if line else f"{path}"
        # Python's message for an unreadable file would repeat the place.
        what = broken.msg if isinstance(broken, SyntaxError) else " ".join(str(broken).split())
        raise ConfigError(f"rollout.code: {place}: {type(broken).__name__}: {what}.") from broken
