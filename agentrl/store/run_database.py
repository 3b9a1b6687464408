"""Finds and opens the database of a run, for the processes of that run.

Invariant: the configuration in force and the URL are read where the coordinator, the mongo unit and, on other hosts,
the host agent put them; a secret is never part of an error.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.config.paths import IN_FORCE
from agentrl.config.run import RunConfig
from agentrl.config.secrets import resolve_secret
from agentrl.errors import ConfigError
from agentrl.store import schema
from agentrl.store.database import Database, connect


def configuration(run_dir: Path) -> RunConfig:
    """The configuration in force, which the coordinator wrote."""
    path = run_dir / IN_FORCE
    try:
        return RunConfig.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as broken:
        raise ConfigError(f"The configuration in force, {path}, cannot be read: {broken}.") from broken


def mongo_url(config: RunConfig, state_dir: Path) -> str:
    path = state_dir / "mongo" / "url"
    try:
        return path.read_text().strip()
    except OSError as broken:
        if config.mongo.url is not None:
            # The run was never up, or only with an earlier version of agentrl.
            return resolve_secret(config.mongo.url)
        raise ConfigError(f"The address of MongoDB is unknown: {path} cannot be read ({broken.strerror}).") from broken


async def open_database(config: RunConfig, state_dir: Path) -> Database:
    """Opens the run's database; the caller closes it. Raises ConfigError if its documents are of another version."""
    database = connect(mongo_url(config, state_dir), config.name)
    try:
        await schema.ensure(database)
    except BaseException:
        await database.close()
        raise
    return database
