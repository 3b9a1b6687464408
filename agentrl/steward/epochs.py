"""Rows that become Tasks, epoch by epoch.

Invariants: an epoch goes through its rows in an order that its number fixes, one portion at a time. Its document stores
how far it is, and how many rows were left out as too hard or too easy. If a portion was inserted but not noted,
inserting it again has no effect. If the rows changed since an epoch began, the start is refused; rows are never mixed.
A held-out row that also trains is always reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentrl.config.data_plane import Environment
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.formatting.amounts import counted
from agentrl.images.sources import USUAL, Limits
from agentrl.policies import curriculum
from agentrl.policies.status_tables import TaskStatus
from agentrl.steward import task_images
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import datasets, tasks
from agentrl.store.database import Database, Plain
from agentrl.store.datasets import Leak, Row
from agentrl.store.document_ids import epoch_id, task_id
from agentrl.store.documents import Epoch, Task, load, load_if, to_bson
from agentrl.tokens import image_marks

log = logging.getLogger("steward")
PORTION = 512
"""The most Tasks in the queue of an environment; later rows stay in the file."""
ADDED = "added"
"""The split of tasks that an operator added."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of one environment."""

    train: Sequence[Row]
    held_out: Sequence[Row]
    digest: str
    """The digest of the rows to train on."""
    leaks: Sequence[Leak] = ()
    file: str = ""
    """The file with the rows to train on, for people."""

    @classmethod
    def of(cls, train: Sequence[Row], held_out: Sequence[Row] = (), *, file: str = "") -> Source:
        return cls(train, held_out, datasets.digest(train), datasets.leaks(train, held_out), file)


def read_sources(config: RunConfig) -> dict[str, Source]:
    """The datasets of all environments. DatasetError names the row that is wrong."""
    sources = {}
    for name, environment in config.environments.items():
        rows = datasets.read(Path(environment.dataset))
        train = datasets.split_of(rows, "train", default="train")
        sources[name] = Source.of(train, held_out_rows(environment, rows), file=environment.dataset)
        if not train:
            raise ConfigError(f"{environment.dataset} has no rows to train on: all of them are held out.")
    return sources


def held_out_rows(environment: Environment, rows: Sequence[Row]) -> list[Row]:
    """The held-out rows of its dataset (`rows`), and those of its separate evaluation file."""
    held_out = datasets.split_of(rows, "eval", default="train")
    if environment.evaluation:
        separate = datasets.read(Path(environment.evaluation))
        held_out += datasets.split_of(separate, "eval", default="eval")
    return held_out


async def refuse_changed(database: Database, sources: Mapping[str, Source]) -> None:
    """Raises ConfigError if the rows changed since the present epoch began."""
    for name, source in sources.items():
        epoch = await _newest(database, name)
        if epoch is not None and not epoch.done and epoch.digest != source.digest:
            raise await _changed(database, epoch, source)


async def refill(database: Database, settings: StewardSettings, sources: Mapping[str, Source]) -> int:
    """Fill the queues. Returns how many Tasks are new."""
    new = 0
    for name, environment in settings.environments.items():
        waiting = {"status": TaskStatus.QUEUED, "purpose": "train", "environment": name}
        if await database.count("Task", waiting) < PORTION // 2:
            new += await _next_portion(database, name, environment, sources[name], settings.images)
    return new


async def _next_portion(
    database: Database, name: str, environment: EnvironmentSettings, source: Source, limits: Limits
) -> int:
    epoch = await _current(database, name, environment, source)
    if epoch is None:
        return 0
    if epoch.digest != source.digest:
        raise await _changed(database, epoch, source)
    order = datasets.order(epoch.rows, shuffle=epoch.seed, epoch=epoch.epoch)
    portion = range(epoch.inserted, min(epoch.inserted + PORTION, epoch.rows))
    measured = await _measured(database, name, environment, epoch, [order[place] for place in portion])
    kept, left_out = curriculum.within(environment.window, (order[place] for place in portion), measured)
    kept_rows = set(kept)
    fresh = [
        task_of(
            name,
            environment,
            source.train[order[place]],
            split="train",
            epoch=epoch.epoch,
            row_number=order[place],
            place=place,
        )
        for place in portion
        if order[place] in kept_rows
    ]
    complete = await task_images.stored(database, fresh, limits, patience_s=task_images.AWAY_AT_MOST_S)
    new = await tasks.insert(database, complete)
    noted: Plain = {"$set": {"inserted": portion.stop, "done": portion.stop >= epoch.rows}}
    if left_out:
        noted["$inc"] = {f"left_out.{why}": count for why, count in left_out.items()}
        log.info("epoch %d of %s leaves out %s", epoch.epoch, name, dict(left_out))
    # If another steward noted more meanwhile, this portion was part of that.
    await database.update_one("Epoch", {"_id": epoch.id, "inserted": epoch.inserted}, noted)
    return new


async def _measured(
    database: Database, name: str, environment: EnvironmentSettings, epoch: Epoch, rows: Sequence[int]
) -> dict[int, float]:
    """Mean scores of these rows in the epoch before."""
    if environment.window is None or not epoch.epoch:
        return {}
    before = [task_id(name, "train", epoch.epoch - 1, row) for row in rows]
    closed: Plain = {"_id": {"$in": before}, "baseline": {"$ne": None}}
    documents = await database.find("Task", closed, projection=["row", "baseline"])
    return {int(task["row"]): float(task["baseline"]["mean"]) for task in documents}


async def left_out(database: Database, name: str) -> set[int]:
    """The rows that the newest epoch has left out so far; the next epoch samples them."""
    epoch = await _newest(database, name)
    if epoch is None or not epoch.left_out:
        return set()
    documents = await database.find("Task", {"_id": ids_under(f"{epoch.id}/")}, projection=["row"])
    passed = datasets.order(epoch.rows, shuffle=epoch.seed, epoch=epoch.epoch)[: epoch.inserted]
    return set(passed) - {int(task.get("row", 0)) for task in documents}


async def _changed(database: Database, epoch: Epoch, source: Source) -> ConfigError:
    """The error for rows that are not those with which the epoch began."""
    if epoch.rows != len(source.train):
        how = f"it had {counted(epoch.rows, 'rows')} to train on, and has {len(source.train)}"
    else:
        others = await _rows_that_differ(database, epoch, source)
        how = (
            f"{len(others)} of the rows that are tasks already are others, the first is {others[0].where}"
            if others
            else "no row that is a task already, but others, or something beside query and answer"
        )
    return ConfigError(
        f"{source.file} changed since epoch {epoch.epoch} of {epoch.environment} began with it: {how}.",
        hint=f"Put the former file back, rename the run, or wipe its data: `agentrl runs wipe {database.name}`.",
    )


async def _rows_that_differ(database: Database, epoch: Epoch, source: Source) -> list[Row]:
    """The changed rows among those that are already Tasks."""
    mine = {"_id": ids_under(f"{epoch.id}/")}
    documents = await database.find("Task", mine, projection=["row", "query", "answer"], sort=[("_id", 1)])
    pairs = [(task, source.train[task.get("row", 0)]) for task in documents]
    return [
        row
        for task, row in pairs
        if (_without_images(task.get("query", "")), task.get("answer", "")) != (_without_images(row.query), row.answer)
    ]


def _without_images(text: str) -> str:
    """The text without its images, because tasks name images in another way than rows."""
    return image_marks.replaced(text, lambda _: "")


async def _newest(database: Database, name: str) -> Epoch | None:
    begun = {"environment": name, "split": "train"}
    return load_if(Epoch, await database.find_one("Epoch", begun, sort=[("epoch", -1)]))


async def _current(database: Database, name: str, environment: EnvironmentSettings, source: Source) -> Epoch | None:
    """The epoch that has rows left; None after the last."""
    newest = await _newest(database, name)
    if newest is not None and not newest.done:
        return newest
    number = 0 if newest is None else newest.epoch + 1
    if number >= environment.epochs:
        return None
    epoch = Epoch(
        id=epoch_id(name, "train", number),
        environment=name,
        epoch=number,
        rows=len(source.train),
        seed=environment.shuffle,
        digest=source.digest,
    )
    await database.insert_new("Epoch", [to_bson(epoch)])
    document = await database.find_one("Epoch", {"_id": epoch.id})
    return load_if(Epoch, document)


async def add(
    database: Database, name: str, environment: EnvironmentSettings, rows: Sequence[Row], limits: Limits = USUAL
) -> list[str]:
    """Queue rows that an operator adds, after everything that is queued. Returns the ids of the Tasks."""
    # The same file gives the same tasks, so a repeated command adds nothing.
    number = await _take_number(database, name, len(rows), datasets.digest(rows))
    fresh = [
        task_of(name, environment, row, split=ADDED, epoch=number, row_number=place, place=place)
        for place, row in enumerate(rows)
    ]
    trusted = msgspec.structs.replace(limits, within={})  # An operator chose these images.
    await tasks.insert(database, await task_images.stored(database, fresh, trusted))
    return [task.id for task in fresh]


async def _take_number(database: Database, name: str, rows: int, digest: str) -> int:
    """The number for the file with this digest. A number is taken when the document with both is inserted."""
    while True:
        number = await number_of(database, name, digest)
        epoch = Epoch(
            id=epoch_id(name, ADDED, number),
            environment=name,
            split=ADDED,
            epoch=number,
            rows=rows,
            inserted=rows,
            done=True,
            digest=digest,
        )
        await database.insert_new("Epoch", [to_bson(epoch)])
        if await database.find_one("Epoch", {"_id": epoch.id, "digest": digest}, projection=["_id"]) is not None:
            return number


async def number_of(database: Database, name: str, digest: str) -> int:
    """The number of the added file with these rows; the next free number if it was not added."""
    added = [load(Epoch, found) for found in await database.find("Epoch", {"environment": name, "split": ADDED})]
    return next((epoch.epoch for epoch in added if epoch.digest == digest), len(added))


async def count_added(database: Database, name: str, rows: Sequence[Row]) -> int:
    """How many of these rows are tasks already because the same file was added before."""
    number = await number_of(database, name, datasets.digest(rows))
    return await database.count("Task", {"_id": ids_under(f"{epoch_id(name, ADDED, number)}/")})


def ids_under(prefix: str) -> dict[str, str]:
    """All ids with this prefix, as a range of the index. The prefix ends with a slash."""
    return {"$gte": prefix, "$lt": f"{prefix[:-1]}0"}


def evaluation_tasks(name: str, environment: EnvironmentSettings, rows: Sequence[Row], version: int) -> list[Task]:
    """The held-out rows as Tasks that pin a version. Always the same rows, so that versions can be compared."""
    return [
        task_of(name, environment, row, split="eval", epoch=version, row_number=place, place=place, version=version)
        for place, row in enumerate(rows)
    ]


def task_of(
    name: str,
    environment: EnvironmentSettings,
    row: Row,
    *,
    split: str,
    epoch: int,
    row_number: int = 0,
    place: int,
    version: int | None = None,
) -> Task:
    return Task(
        id=task_id(name, split, epoch, row_number),
        environment=name,
        split=split,
        epoch=epoch,
        row=row_number,
        place=place,
        purpose="train" if version is None else "eval",
        version=version,
        query=row.query,
        earlier=list(row.earlier),
        answer=row.answer,
        scorer=row.scorer or environment.scorer,
        scorer_of_row=bool(row.scorer),
        answer_schema=row.answer_schema or environment.answer_schema,
        agent_name=row.agent_name or environment.agent,
        servers=list(environment.servers),
        extra=dict(row.extra) | ({"id": row.id} if row.id else {}),
    )
