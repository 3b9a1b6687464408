"""Recorded episodes of a run as training data: their own tokens are trained with cross-entropy.

Invariants:
- tokens are those that the model generated, never text that was tokenized again, so only a model with the same
  tokenizer can learn from them;
- a job chooses its records once, when it begins: after an interruption it continues with the same records, and all of
  its ranks read them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from agentrl.config import paths
from agentrl.config.run import RunConfig
from agentrl.config.training import RecordedEpisodes
from agentrl.errors import ConfigError
from agentrl.files.pieces import content_of
from agentrl.store import calls, lists, publications, run_database
from agentrl.store.database import Database, connect
from agentrl.store.documents import DBRecordData, load
from agentrl.training.batch import Trajectory
from agentrl.training.batch_assembly import trajectory_of

_TOKENIZER = "tokenizer.json"
_SCORED = {"status": "scored"}
READ_AT_ONCE = 200
T = TypeVar("T")


def choose(config: RunConfig, wanted: RecordedEpisodes) -> list[str]:
    """The ids of the records, the newest first. Raises ConfigError if there are none."""
    return asyncio.run(_with_database(config, wanted, _chosen))


def read(config: RunConfig, wanted: RecordedEpisodes, records: Sequence[str], model: Path) -> list[Trajectory]:
    """These records in the order of their ids. Raises ConfigError if one no longer exists, or if the tokens were made
    by another tokenizer than the model's."""

    async def found(database: Database, _: RecordedEpisodes) -> list[Trajectory]:
        await _refuse_other_tokenizer(database, model)
        return await _read(database, records)

    return asyncio.run(_with_database(config, wanted, found))


def kept_choice(file: Path, config: RunConfig, wanted: RecordedEpisodes, *, again: bool) -> list[str]:
    """The choice that a job made at its beginning. With `again` it makes a new one."""
    if again or not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(choose(config, wanted)))
    found: list[str] = json.loads(file.read_text())
    return found


async def _with_database(
    config: RunConfig, wanted: RecordedEpisodes, act: Callable[[Database, RecordedEpisodes], Awaitable[T]]
) -> T:
    name = wanted.run or config.name
    try:
        url = run_database.mongo_url(config, paths.state_dir(name))
    except ConfigError as unknown:
        raise ConfigError(
            f"The records of the run {name} cannot be read: {unknown.message}",
            hint=f"Its MongoDB must be up: `agentrl up --read-only --run {name}`, or mongo.url in the run file.",
        ) from unknown
    database = connect(url, name)
    try:
        return await act(database, wanted)
    finally:
        await database.close()


async def _chosen(database: Database, wanted: RecordedEpisodes) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while len(found) < wanted.most:
        page = await lists.page(
            database,
            "Record",
            filter=wanted.filter,
            sort="-finished_at",
            after=after,
            limit=min(lists.MOST_ROWS, wanted.most - len(found)),
            also=_SCORED,
        )
        found += [row["id"] for row in page.rows]
        after = page.after
        if after is None:
            break
    if not found:
        raise ConfigError(f"No scored record fulfils {wanted.filter!r}: there is nothing to learn from.")
    return found


async def _refuse_other_tokenizer(database: Database, model: Path) -> None:
    newest = await publications.newest(database)
    known = publications.tokenizer_files(newest).get(_TOKENIZER) if newest is not None else None
    if known is None or not (model / _TOKENIZER).is_file() or content_of(model / _TOKENIZER).blake2b != known.blake2b:
        raise ConfigError(
            f"The recorded tokens are not those of {model}: its {_TOKENIZER} is another one than the run's.",
            hint="Set model.path to weights of that run, or export the records: `agentrl records export --as dataset`.",
        )


async def _read(database: Database, records: Sequence[str]) -> list[Trajectory]:
    trajectories: dict[str, Trajectory] = {}
    for start in range(0, len(records), READ_AT_ONCE):
        some = list(records[start : start + READ_AT_ONCE])
        documents = await database.find("DBRecordData", {"_id": {"$in": some}})
        by_record = await calls.with_tokens(database, some, texts=False)
        for document in documents:
            data = load(DBRecordData, document)
            if by_record[data.id]:
                trajectories[data.id] = trajectory_of(data, by_record[data.id], imitated=True)
    if missing := [name for name in records if name not in trajectories]:
        raise ConfigError(
            f"{len(missing)} of the chosen records are not in the database any more, such as {missing[0]}.",
            hint="Begin again without the checkpoint of the job.",
        )
    return [trajectories[name] for name in sorted(trajectories)]
