"""Rows become Tasks, epoch by epoch: orders, what is left out, datasets that change, and rows that an operator adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from agentrl.errors import ConfigError
from agentrl.policies import curriculum
from agentrl.policies.curriculum import Stage, Until, Window
from agentrl.steward import admission, epochs
from agentrl.steward.epochs import Source
from agentrl.steward.settings import EnvironmentSettings
from agentrl.steward.steward import Steward
from agentrl.store import accounting, datasets, tasks
from agentrl.store.database import Database, Plain
from agentrl.store.datasets import Row
from tests.steward.test_rounds import rows, settings


async def test_epochs_follow_one_another_in_orders_of_their_own(db: Database) -> None:
    environment = EnvironmentSettings(epochs=2, shuffle=3)
    by = settings(environments={"shop": environment})
    source = {"shop": Source.of(rows(epochs.PORTION + 10))}
    assert await epochs.refill(db, by, source) == epochs.PORTION
    assert await epochs.refill(db, by, source) == 0, "enough are waiting"
    await db.update_many("Task", {}, {"$set": {"status": "trained"}})
    assert await epochs.refill(db, by, source) == 10
    assert await db.count("Epoch", {"done": True}) == 1
    assert not await tasks.exhausted(db, {"shop": 2})
    assert await epochs.refill(db, by, source) == epochs.PORTION
    first, second = [
        [task["row"] for task in await db.find("Task", {"epoch": epoch}, sort=[("place", 1)])] for epoch in (0, 1)
    ]
    assert first[: len(second)] != second
    assert sorted(first) == list(range(epochs.PORTION + 10))
    await db.update_many("Task", {}, {"$set": {"status": "trained"}})
    await epochs.refill(db, by, source)
    await db.update_many("Task", {}, {"$set": {"status": "trained"}})
    assert await epochs.refill(db, by, source) == 0
    assert await tasks.exhausted(db, {"shop": 2})


async def test_an_epoch_leaves_out_what_was_too_easy_or_too_hard_in_the_one_before(db: Database) -> None:
    by = settings(environments={"shop": EnvironmentSettings(epochs=3, window=Window(0.1, 0.9))})
    source = {"shop": Source.of(rows(4))}
    assert await epochs.refill(db, by, source) == 4
    for row, mean in ((0, 0.0), (1, 0.5), (2, 1.0)):
        await db.update_one("Task", {"row": row}, {"$set": {"baseline": {"mean": mean, "std": 0.0, "valid": 4}}})
    await db.update_many("Task", {}, {"$set": {"status": "dead"}})
    assert await epochs.refill(db, by, source) == 2
    assert await db.distinct("Task", "row", {"epoch": 1}) == [1, 3], "of the last one nothing is known"
    (second,) = await db.find("Epoch", {"epoch": 1})
    assert (second["done"], second["left_out"]) == (True, {"hard": 1, "easy": 1})
    assert not [one for one in (await accounting.account(db)).problems if "epochs" in one.what]
    await db.update_many("Task", {}, {"$set": {"status": "dead"}})
    assert await epochs.refill(db, by, source) == 4, "what was left out is tried again"


async def test_a_dataset_that_changed_under_an_epoch_is_refused(db: Database) -> None:
    by = settings()
    await epochs.refill(db, by, {"shop": Source.of(rows(epochs.PORTION * 2))})
    await db.update_many("Task", {}, {"$set": {"status": "trained"}})
    with pytest.raises(ConfigError, match="changed since epoch 0 of shop began with it"):
        await epochs.refill(db, by, {"shop": Source.of(rows(epochs.PORTION * 3))})


@pytest.mark.parametrize(
    ("now", "how"),
    [
        (rows(41), "it had 40 rows to train on, and has 41"),
        ([*rows(30), *rows(10, prefix="another")], "10 of the rows that are tasks already are others, the first is "),
        ([msgspec.structs.replace(row, extra={"level": 1}) for row in rows(40)], "no row that is a task already, but"),
    ],
)
async def test_a_steward_reports_at_its_start_which_file_changed_and_how_to_repair_it(
    db: Database, now: list[Row], how: str
) -> None:
    await epochs.refill(db, settings(), {"shop": Source.of(rows(40), file="/data/train.jsonl")})
    await db.update_one("Epoch", {}, {"$set": {"inserted": 40, "done": False}})
    await starter(db, 1, Source.of(rows(40), file="/data/train.jsonl")).start()
    with pytest.raises(ConfigError) as refused:
        await starter(db, 2, Source.of(now, file="/data/train.jsonl")).start()
    assert refused.value.message.startswith("/data/train.jsonl changed since epoch 0 of shop began with it: ")
    assert how in refused.value.message
    assert f"`agentrl runs wipe {db.name}`" in refused.value.hint
    await db.update_one("Epoch", {}, {"$set": {"done": True}})
    await starter(db, 3, Source.of(now)).start()


def starter(db: Database, life: int, source: Source) -> Steward:
    return Steward(
        db, settings(), {"shop": source}, incarnation=f"steward-0.{life}", unit="steward-0", run_dir=Path.cwd()
    )


async def test_rows_that_an_operator_adds_are_queued_once(db: Database) -> None:
    environment = EnvironmentSettings()
    first = await epochs.add(db, "shop", environment, rows(3))
    assert await epochs.add(db, "shop", environment, rows(3)) == first
    assert await epochs.add(db, "shop", environment, rows(2)) != first
    assert await db.count("Task", {"split": "added", "status": "queued"}) == 5


async def test_of_two_files_that_are_added_at_once_each_has_a_number(db: Database) -> None:
    environment = EnvironmentSettings()
    first: list[str] = []

    class Overtaken(Database):
        async def insert_new(self, collection: str, documents: Sequence[Plain]) -> int:
            if not first:
                first.extend(await epochs.add(db, "shop", environment, rows(3)))
            return await super().insert_new(collection, documents)

    second = await epochs.add(Overtaken(db._client, db.name), "shop", environment, rows(2))
    assert not set(first) & set(second)
    assert await db.count("Task", {"_id": {"$in": first + second}}) == 5


async def test_a_group_is_scored_by_the_stage_that_admits_it_unless_its_row_names_a_scorer(db: Database) -> None:
    until = Until("shop", score=0.5, groups=2)
    stages = (Stage({"shop": 1.0}, until), Stage({"shop": 1.0}, scorers={"shop": "strict"}))
    by = settings(environments={"shop": EnvironmentSettings()}, stages=stages)
    given, order = rows(8), datasets.order(8, shuffle=0, epoch=0)
    # `exact` is also the scorer of the environment.
    for place, scorer in ((1, "its own"), (2, "exact")):
        given[order[place]] = msgspec.structs.replace(given[order[place]], scorer=scorer)
    await epochs.refill(db, by, {"shop": Source.of(given)})
    assert (await admission.admit(db, by.changed(stage=1))).groups == 4
    found = await db.find("Task", {}, sort=[("place", 1)])
    assert [task["scorer"] for task in found] == ["strict", "its own", "exact", "strict", *["exact"] * 4]
    # A further round of it may be admitted in another stage.
    assert curriculum.scorer_of(stages, 0, "shop", "exact", "strict") == "exact"


async def test_half_characters_and_great_numbers_of_a_row_are_stored_as_far_as_possible(
    db: Database, tmp_path: Path
) -> None:
    great = 10**30
    row = f'{{"query": "a\\ud83d", "answer": "b\\ude00", "note": ["\\ud83d", {great}]}}\n'
    (tmp_path / "rows.jsonl").write_text(row)
    source = Source.of(datasets.read(tmp_path / "rows.jsonl"))
    assert await epochs.refill(db, settings(environments={"shop": EnvironmentSettings()}), {"shop": source}) == 1
    (task,) = await db.find("Task", {})
    assert (task["query"], task["answer"], task["extra"]) == ("a?", "b?", {"note": ["?", str(great)]})
