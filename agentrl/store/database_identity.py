"""Checks that the data directory of the embedded MongoDB holds the database of the run, before a server may become
writable.

Without this check an empty directory (a disk that is not mounted, another host) becomes an empty database, and the run
goes on as if it had never trained.

Invariants:
- The data has its identity in a file beside it before the first server starts.
- `run.json` gets the identity when the first server is writable, before the unit is ready.
- If a URL was published without an identity, an earlier release had a writable server; empty data is then refused.
- From then on only data with that identity is served, and no replica set is initiated.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from agentrl.config.paths import read_run, record_database
from agentrl.errors import ConfigError
from agentrl.store.mongod_files import MongoFiles, write_secret

IDENTITY_FILE = "agentrl-database"
_FIRST_FILE = "WiredTiger"
"""A file that every data directory of a server has."""


def check(state_dir: Path, files: MongoFiles) -> bool:
    """Returns whether the database exists; otherwise a server may create it. Raises ConfigError for other data."""
    run = read_run(state_dir)
    if run is None:
        raise ConfigError(
            f"{state_dir} is not the state directory of a run, so the database of the run is not on this host.",
            hint="The embedded MongoDB runs only on the host of the coordinator.",
        )
    found = _identity(files)
    if run.database and found != run.database:
        raise lost(files, f"belongs to the database {found}" if found else "has no identity")
    served_before = bool(run.database) or files.url_file.exists()
    if served_before and not (files.data / _FIRST_FILE).exists():
        raise lost(files, "is empty")
    if not found:
        write_secret(files.data / IDENTITY_FILE, str(uuid.uuid4()))
    return served_before


def record(state_dir: Path, files: MongoFiles) -> None:
    """Store the identity once the server is writable: the database exists from now on."""
    record_database(state_dir, _identity(files))


def lost(files: MongoFiles, condition: str) -> ConfigError:
    return ConfigError(
        f"{files.data} does not hold the database of this run: it {condition}. Nothing was written.",
        hint="Bring the data back (is its disk mounted?), then `agentrl restart mongo`. If it is lost: "
        "`agentrl runs forget`.",
    )


def _identity(files: MongoFiles) -> str:
    try:
        return (files.data / IDENTITY_FILE).read_text().strip()
    except FileNotFoundError:
        return ""
