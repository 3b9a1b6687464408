"""Counts or deletes all data of a run that is down: `python -m agentrl.store.run_wipe --state-dir S --run-dir R
[--wipe]`.

Invariants: without `--wipe` it only counts; it deletes what the run made (its database; weights, checkpoints, recorded
batches, curves, logs) and never its inputs: configuration, datasets, a model that has a path. The embedded server is
started for as long as this takes. stdout is one JSON message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agentrl.config.paths import IN_FORCE, MADE
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError, DiskError, ExitCode, RefusedError
from agentrl.store import database_identity, run_database, schema
from agentrl.store.database import Database, connect
from agentrl.store.mongod_binary import find_mongod
from agentrl.store.mongod_files import prepare
from agentrl.store.mongod_server import Mongod, wait_until_data_is_free
from agentrl.store.update_expressions import NOW


@dataclass(frozen=True, slots=True)
class Loss:
    """What a wipe would delete."""

    documents: dict[str, int]
    bytes: int
    alive: tuple[str, ...]
    """Incarnations that still hold a lease."""


async def preview(database: Database) -> Loss:
    names = [name for name in await database.collections() if name != schema.COLLECTION]
    documents = {name: await database.count(name, {}) for name in names}
    holding = {"expired": False, "$expr": {"$gt": ["$expires_at", NOW]}}
    alive = sorted(owner["_id"] for owner in await database.find("Owner", holding, projection=["_id"]))
    return Loss(documents, await database.size_bytes(), tuple(alive))


async def wipe(database: Database, *, force: bool = False) -> Loss:
    """Delete everything, for good. Raises RefusedError while an incarnation holds a lease."""
    loss = await preview(database)
    if loss.alive and not force:
        raise RefusedError(
            f"{database.name} is in use by {', '.join(loss.alive)}.", hint="Take the run down, then wipe it."
        )
    await database.drop()
    return loss


BUILT_MODEL = "model"
"""The directory of a model that the run built, which exists only if the configuration asks for one."""
FREE_WITHIN_S = 10.0
STOPPED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a wipe would delete."""

    documents: dict[str, int]
    database_bytes: int
    files: dict[str, int]
    """Bytes below each directory."""
    alive: tuple[str, ...]
    """Incarnations that still hold a lease."""


async def examine(state_dir: Path, run_dir: Path, *, delete: bool) -> Found:
    """Raises RefusedError if data would be deleted while an incarnation elsewhere holds a lease."""
    config = _in_force(state_dir, run_dir)
    directories = [run_dir / name for name in (*MADE, *_built(config)) if (run_dir / name).is_dir()]
    files = {directory.name: _size(directory) for directory in directories}
    loss = Loss({}, 0, ())
    async with _database(config, state_dir) as database:
        if database is not None:
            # All clients of an embedded server are units of the run, and the server was down.
            loss = await (wipe(database, force=config.has_mongo) if delete else preview(database))
    if delete:
        for directory in directories:
            _empty(directory)
    alive = () if config.has_mongo else loss.alive
    return Found(loss.documents, loss.bytes, files, alive)


def _in_force(state_dir: Path, run_dir: Path) -> RunConfig:
    """The configuration in force. A run that has only sidecars never wrote one, and has neither database nor model."""
    if not (run_dir / IN_FORCE).exists() and not (state_dir / "mongo").exists():
        return RunConfig(name=state_dir.name)
    return run_database.configuration(run_dir)


@contextlib.asynccontextmanager
async def _database(config: RunConfig, state_dir: Path) -> AsyncIterator[Database | None]:
    """None if the run has none, or never had one."""
    if config.mongo.url is None and not (state_dir / "mongo" / "data").is_dir():
        yield None
        return
    with _embedded(state_dir) if config.has_mongo else contextlib.nullcontext():
        # No check of the version: documents of another version are deleted too.
        database = connect(run_database.mongo_url(config, state_dir), config.name)
        try:
            yield database
        finally:
            await database.close()


@contextlib.contextmanager
def _embedded(state_dir: Path) -> Iterator[None]:
    files = prepare(state_dir / "mongo")
    wait_until_data_is_free(files, within_s=FREE_WITHIN_S, keep_trying=_pause)
    exists = database_identity.check(state_dir, files)
    server = Mongod(find_mongod(), files, may_create=not exists)
    try:
        server.start()
        server.bring_up(keep_trying=_pause)
        yield
    finally:
        server.stop(within_s=STOPPED_WITHIN_S)


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _built(config: RunConfig) -> tuple[str, ...]:
    return (BUILT_MODEL,) if config.model is not None and config.model.build else ()


def _size(directory: Path) -> int:
    return sum(file.lstat().st_size for file in directory.rglob("*") if not file.is_dir())


def _empty(directory: Path) -> None:
    """The directory itself stays: it may be a link to another disk."""
    try:
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as broken:
        raise DiskError(f"{broken.filename or directory} cannot be removed: {broken.strerror}.") from broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.store.run_wipe", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--wipe", action="store_true")
    given = parser.parse_args()
    try:
        found = asyncio.run(examine(given.state_dir, given.run_dir, delete=given.wipe))
    except AgentrlError as failed:
        error = {"message": failed.message, "hint": failed.hint, "code": int(failed.exit_code)}
        print(json.dumps({"failed": error}))
        return failed.exit_code
    print(json.dumps(asdict(found)))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
