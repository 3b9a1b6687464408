"""Hot queries stand on indexes, lists page without gaps, accounts agree or say where not, and a wipe asks first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pymongo import IndexModel, InsertOne

from agentrl.errors import RefusedError, UnknownNameError, UsageError
from agentrl.filters.parser import FilterError
from agentrl.steward import admission, dead_owners, epochs, group_upkeep, retention
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import (
    admission_counts,
    attempt_statistics,
    call_writer,
    calls,
    cancellations,
    checkpoints,
    claims,
    database,
    evaluations,
    indexes,
    lineages,
    lists,
    owners,
    publications,
    rescoring,
    run_wipe,
    service_registry,
    steps,
    tasks,
)
from agentrl.store.claims import Reached
from agentrl.store.database import Bulk, Database, Filter, Plain, Write
from agentrl.store.documents import Task, to_bson
from agentrl.training import batch_selection
from tests.store.flow import admit, claim_one, commit, explained, ready_tasks, row, run_group, sampler
from tests.store.server import NAME

FEW_ENOUGH_TO_SORT = {
    ("Record", "attempt"): "the attempts at a few tasks",
    ("Task", "epoch place"): "the tasks of an evaluation",
    ("Task", "trained_at"): "what may train once more, a few hundred of them",
    ("Task", "admitted_order"): "what is consumed and not pruned yet, a few hundred of them",
    ("Checkpoint", "at step"): "the checkpoints that are kept",
    ("Step", "step"): "the steps that a rollback reinstates",
}
"""Queries that the server may sort in memory. Results that grow with the run must come in the order of an index."""


class Explaining(Database):
    """Asks the server for the plan of each query before it executes the query."""

    def __init__(self, of: Database) -> None:
        super().__init__(of._client, of.name)
        self.scanned: list[str] = []
        self.sorted: set[tuple[str, str]] = set()
        self.looked_at = 0

    async def _look(self, collection: str, command: Plain) -> None:
        plan = await explained(self, command)
        self.looked_at += 1
        met = set(stages(plan))
        if "COLLSCAN" in met:
            self.scanned.append(f"{collection}: {command}")
        if "SORT" in met:
            self.sorted.add((collection, " ".join(command["sort"])))

    async def find_one(self, collection: str, filter: Filter, **options: Any) -> Plain | None:
        await self._look(collection, {"find": collection, "filter": dict(filter), **_sort(options), "limit": 1})
        return await super().find_one(collection, filter, **options)

    async def find(self, collection: str, filter: Filter, **options: Any) -> list[Plain]:
        await self._look(collection, {"find": collection, "filter": dict(filter), **_sort(options)})
        return await super().find(collection, filter, **options)

    async def count(self, collection: str, filter: Filter) -> int:
        await self._look(collection, {"count": collection, "query": dict(filter)})
        return await super().count(collection, filter)

    async def distinct(self, collection: str, field: str, filter: Filter) -> list[Any]:
        await self._look(collection, {"distinct": collection, "key": field, "query": dict(filter)})
        return await super().distinct(collection, field, filter)

    async def aggregate(self, collection: str, pipeline: Any) -> list[Plain]:
        await self._look(collection, {"aggregate": collection, "pipeline": list(pipeline), "cursor": {}})
        return await super().aggregate(collection, pipeline)

    async def update_one(self, collection: str, filter: Filter, update: Any, *, upsert: bool = False) -> bool:
        await self._look(collection, {"find": collection, "filter": dict(filter)})
        return await super().update_one(collection, filter, update, upsert=upsert)

    async def update_many(self, collection: str, filter: Filter, update: Any) -> int:
        await self._look(collection, {"find": collection, "filter": dict(filter)})
        return await super().update_many(collection, filter, update)

    async def write(self, collection: str, writes: Sequence[Write], *, ordered: bool = True) -> Bulk:
        for one in writes:
            if not isinstance(one, InsertOne):
                await self._look(collection, {"find": collection, "filter": dict(one._filter)})
        return await super().write(collection, writes, ordered=ordered)

    async def find_one_and_update(self, collection: str, filter: Filter, update: Any, **options: Any) -> Plain | None:
        await self._look(collection, {"find": collection, "filter": dict(filter), **_sort(options), "limit": 1})
        return await super().find_one_and_update(collection, filter, update, **options)


def _sort(options: dict[str, Any]) -> Plain:
    return {"sort": dict(options["sort"])} if options.get("sort") else {}


def stages(plan: Any) -> Iterator[str]:
    """The stages of the winning plan, without rejected plans."""
    if isinstance(plan, dict):
        if isinstance(plan.get("stage"), str):
            yield plan["stage"]
        for name, part in plan.items():
            if name not in ("rejectedPlans", "command"):
                yield from stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from stages(part)


async def test_no_hot_query_scans_a_collection(db: Database) -> None:
    closed = await ready_tasks(db, 3)
    await tasks.insert(db, [row(number) for number in range(10, 16)])
    first = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    await commit(db, first.id, 1, closed[:1])
    watched = Explaining(db)
    rules = StewardSettings(environments={"shop": EnvironmentSettings()}, n=2, groups=4)

    # A sampler.
    await sampler(watched, "sampler-0.2")
    await tasks.admit(watched, [row(10)], n=2, sampling={}, deadline_s=60, rounds_max=3)
    assert await run_group(watched, [0.0, 1.0], owner="sampler-0.2") == "ready"
    await claim_one(watched, "sampler-0.2", environments=["shop"])
    await claims.claim_for_scoring(watched, "sampler-0.2")
    await claims.held_by(watched, "sampler-0.2")
    await cancellations.among(watched, ["x"])
    await rescoring.claim(watched, "sampler-0.2")
    await tasks.admit(watched, [row(11)], n=2, sampling={}, deadline_s=60, rounds_max=3)
    claim = await claim_one(watched, "sampler-0.2")
    assert claim is not None
    progress = claims.progress(claim.record.id, "sampler-0.2", Reached(turns=1, generated_tokens=4, versions=[1]))
    await call_writer.Writer(watched).progress(claim.record.id, "sampler-0.2", progress)
    await calls.take_over(watched, "x", "t", "y")
    await service_registry.alive(watched, "engine")
    # The steward.
    await admission.admit(watched, rules)
    await admission.admit_evaluations(watched, rules)
    await group_upkeep.close(watched, rules)
    await group_upkeep.retrain(watched, rules.changed(max_trained_count=2))
    await group_upkeep.open_next_attempts(watched)
    await dead_owners.bridge_gap(watched)
    await dead_owners.expire(watched)
    await dead_owners.tidy(watched)
    await tasks.repair(watched)
    await epochs.refill(watched, rules, {"shop": epochs.Source.of([])})
    await admission_counts.of_admission(watched)
    await owners.extend_all(watched)
    await retention.prune(watched, rules.changed(details_s=1.0))
    # The trainer.
    lineage = await lineages.begin(watched, "trainer-0.2", parent_checkpoint="", after_step=0)
    await lineages.current(watched)
    await steps.under_way(watched)
    await steps.deaths(watched)
    await batch_selection.validity(watched)
    await attempt_statistics.of_trained(watched, ["x"])
    await attempt_statistics.since(watched, await attempt_statistics.last_commit(watched))
    await attempt_statistics.metrics_of_steps(watched, 8)
    await steps.last_trained(watched, ["shop/train/0/000001"])
    ready = await steps.ready(watched)
    await commit(watched, lineage.id, 2, [ready[0].task])
    await calls.with_tokens(watched, ready[0].task.shares and [ready[0].task.shares[0].record])
    published = await publications.take_number(watched, parent=None, lineage=lineage.id, step=2)
    await publications.announce(watched, published.id, lineage.id, {})
    await publications.newest(watched)
    await publications.superfluous(watched, keep=1)
    await checkpoints.superfluous(watched, keep=1)
    await evaluations.want(watched, published.id)
    await evaluations.wanted(watched)
    await evaluations.results(watched, published.id)
    await evaluations.complete(watched, published.id)
    await tasks.exhausted(watched, {"shop": 1})
    assert watched.scanned == []
    assert watched.sorted == FEW_ENOUGH_TO_SORT.keys()
    assert watched.looked_at > 100


async def test_what_may_train_once_more_is_found_apart_from_what_may_not(db: Database) -> None:
    plans: list[set[str]] = []

    class Asking(Database):
        async def find(self, collection: str, filter: Filter, **options: Any) -> list[Plain]:
            plans.append(set(named(await explained(db, {"find": collection, "filter": dict(filter)}))))
            return await super().find(collection, filter, **options)

    often = [Task(id=f"often-{number}", status="trained", trained_count=2) for number in range(200)]
    await tasks.insert(db, [*often, Task(id="once", status="trained", trained_count=1)])
    rules = StewardSettings(environments={"shop": EnvironmentSettings()}, n=2, groups=4, max_trained_count=2)
    await group_upkeep.retrain(Asking(db._client, db.name), rules)
    assert "again" in plans[0]


def named(plan: Any) -> Iterator[str]:
    """The indexes of the winning plan."""
    if isinstance(plan, dict):
        if isinstance(plan.get("indexName"), str):
            yield plan["indexName"]
        for name, part in plan.items():
            if name not in ("rejectedPlans", "command"):
                yield from named(part)


async def test_making_the_indexes_again_changes_nothing(db: Database) -> None:
    await indexes.ensure(db)
    for collection, models in indexes.INDEXES.items():
        found = await db.aggregate(collection, [{"$indexStats": {}}])
        assert {model.document["name"] for model in models} <= {index["name"] for index in found}


async def test_a_seat_is_never_held_twice_and_an_attempt_never_made_twice(db: Database) -> None:
    record = {"_id": "a", "task": "t", "round": 1, "seat": 0, "attempt": 1, "status": "open"}
    await db.insert_many("Record", [record])
    with pytest.raises(database.AlreadyThereError):
        await db.insert_many("Record", [record | {"_id": "b", "attempt": 2}])
    with pytest.raises(database.AlreadyThereError):
        await db.insert_many("Record", [record | {"_id": "b", "status": "failed"}])
    await db.update_one("Record", {"_id": "a"}, {"$set": {"status": "failed"}})
    await db.insert_many("Record", [record | {"_id": "b", "attempt": 2}])


async def test_all_pages_together_are_the_list(db: Database) -> None:
    rows = [row(number) for number in range(23)]
    for number, task in enumerate(rows):
        task.status = "queued" if number % 3 else "dead"
    await tasks.insert(db, rows)
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await lists.page(db, "Task", filter="status=queued", sort="-row", after=after, limit=4)
        seen += [found["id"] for found in page.rows]
        after = page.after
        if after is None:
            break
    assert seen == [task.id for task in reversed(rows) if task.status == "queued"]
    with pytest.raises(FilterError, match="did you mean 'status'"):
        await lists.page(db, "Task", filter="statsu=queued")
    with pytest.raises(FilterError, match=r"status is one of queued, .*, dead, not 'deda'"):
        await lists.page(db, "Task", filter="status in (queued, deda)")
    assert not (await lists.page(db, "Task", filter="status~deda or status=null")).rows
    with pytest.raises(UnknownNameError):
        await lists.page(db, "Chunk")
    with pytest.raises(UnknownNameError, match="go on from"):
        await lists.page(db, "Task", after="nowhere")


async def test_a_page_continues_at_its_place_even_if_its_last_row_changed(db: Database) -> None:
    began = await db.now()
    ids = [f"r{number}" for number in range(6)]
    moments = [began + timedelta(minutes=number) for number in range(3)]
    rows = [{"_id": id, "task": id, "started_at": at} for id, at in zip(ids, [*moments, None, None, None], strict=True)]
    await db.insert_many("Record", rows)
    first = await lists.page(db, "Record", limit=4)
    assert [row["id"] for row in first.rows] == ["r2", "r1", "r0", "r5"]
    await db.update_one("Record", {"_id": "r5"}, {"$set": {"started_at": began + timedelta(hours=1)}})
    second = await lists.page(db, "Record", after=first.after, limit=4)
    assert [row["id"] for row in second.rows] == ["r4", "r3"], "r5 began meanwhile and is not listed again"

    beyond = await lists.page(db, "Record", sort="started_at", limit=3)
    await db.delete_many("Record", {"_id": beyond.rows[-1]["id"]})
    rest = await lists.page(db, "Record", sort="started_at", after=beyond.after)
    assert [row["id"] for row in rest.rows] == ["r1", "r2", "r5"], "and a row that was removed is still a place"

    by_id = await lists.page(db, "Record", sort="started_at", after="r1")
    assert [row["id"] for row in by_id.rows] == ["r2", "r5"], "what earlier versions gave"


async def test_tasks_and_records_are_found_by_columns_of_their_dataset_row(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, level in enumerate((1, 2, "2", None)):
        task = row(number)
        task.extra = {} if level is None else {"level": level, "id": f"{number}"}
        await tasks.insert(db, [task])
        assert await admit(db, task, n=2)

    async def rows_of(kind: str, query: str) -> list[int]:
        found = await lists.page(db, kind, filter=query, sort="id")
        return sorted({int(each["id"].partition("#")[0][-6:]) for each in found.rows})

    expected = {
        "row.level=2": [1],
        'row.level="2"': [2],
        "row.level!=2": [0, 2, 3],
        "not row.level>=2": [0, 2, 3],
        "row.level=null or row.id=0": [0, 3],
        "environment=shop and row.level in (1, 2)": [0, 1],
        "row.level=9": [],
    }
    for query, numbers in expected.items():
        assert await rows_of("Task", query) == numbers, query
        assert await rows_of("Record", query) == numbers, query
    first = await lists.page(db, "Record", filter="row.level<=2", sort="id", limit=3)
    rest = await lists.page(db, "Record", filter="row.level<=2", sort="id", limit=3, after=first.after)
    assert [len(first.rows), len(rest.rows)] == [3, 1]
    with pytest.raises(FilterError, match="not sorted"):
        await lists.page(db, "Record", sort="row.level")
    monkeypatch.setattr(lists, "MOST_TASKS", 2)
    with pytest.raises(UsageError, match="More than 2 tasks"):
        await rows_of("Record", "row.level!=2")


async def test_a_column_that_no_task_has_is_refused(db: Database) -> None:
    nothing_yet = await lists.page(db, "Task", filter="row.dificulty=hard")
    assert nothing_yet.rows == [], "without tasks every column may be one"
    task = row(0)
    task.extra = {"difficulty": "hard", "level": 3, "meta": {"source": "web"}, "tags": ["a"], "gone": None}
    await tasks.insert(db, [task])
    assert await admit(db, task, n=2)
    refused = {
        "row.dificulty=hard": "no task has a column 'dificulty'.* did you mean row.difficulty.*columns are: difficulty",
        "environment=shop and not row.dificulty!=hard": "'dificulty'",
        "environment=shop or row.dificulty in (hard, easy)": "'dificulty'",
        "row.meta.sorce~web": "'meta.sorce'.*columns are: .*meta",
        "row.answer=5": "'answer'.*answer is a field of tasks",
        "row.level=hard": "no task has a text in the column 'level'.*without quotes.*is 3",
        'row.level in ("3")': "no task has a text in the column 'level'",
        "row.difficulty>=3": "no task has a number in the column 'difficulty'.*is 'hard'",
    }
    for kind in ("Task", "Record"):
        for query, words in refused.items():
            with pytest.raises(UsageError) as error:
                await lists.page(db, kind, filter=query)
            assert re.search(words, f"{error.value.message} {error.value.hint}".lower()), (query, error.value)
        for query in ("row.level>3", "row.meta.source!~x", "row.tags=a", "row.gone=null", "row.level!=null"):
            await lists.page(db, kind, filter=query)


@pytest.mark.parametrize("after", ["behind:", "behind:AAAA", "behind:é", "behind:FgAAAA", "behind:3f____8"])
async def test_an_invalid_list_cursor_is_refused(db: Database, after: str) -> None:
    with pytest.raises(UsageError, match="no place in a list"):
        await lists.page(db, "Record", after=after)


async def test_a_place_in_another_list_or_order_is_refused(db: Database) -> None:
    await db.insert_many("Record", [{"_id": id, "task": id, "seat": number} for number, id in enumerate("ab")])
    place = (await lists.page(db, "Record", sort="seat", limit=1)).after
    with pytest.raises(UsageError, match="another list or order, not in that of Record by -started_at,-id"):
        await lists.page(db, "Record", after=place)
    with pytest.raises(UsageError, match="another list or order, not in that of Task by id"):
        await lists.page(db, "Task", sort="id", after=place)


async def test_a_place_is_hardly_longer_than_what_it_carries(db: Database) -> None:
    began = await db.now()
    ids = [f"arithmetic/train/0/000017/1/{number}/1" for number in range(2)]
    await db.insert_many(
        "Record", [{"_id": id, "task": "t", "seat": n, "started_at": began} for n, id in enumerate(ids)]
    )
    place = (await lists.page(db, "Record", limit=1)).after
    assert place is not None
    assert len(place) <= len("behind:") + 4 / 3 * (len(ids[1]) + 20), "a time, the id, and which list it is"
    assert [row["id"] for row in (await lists.page(db, "Record", after=place)).rows] == [ids[0]]


async def test_indexes_of_earlier_versions_go_and_those_of_others_stay(db: Database) -> None:
    # Two indexes of former versions of agentrl, one with a name of agentrl but other keys, and one with the keys of
    # agentrl but another name.
    await db.create_indexes("Record", [IndexModel([("created_at", 1), ("_id", 1)], name="newest")])
    await db.create_indexes("Record", [IndexModel([("status", 1), ("order", 1), ("seat", 1)], name="claims")])
    await db.create_indexes("Record", [IndexModel([("owner", 1), ("note", 1)], name="owned")])
    await db.create_indexes("Record", [IndexModel([("created_at", 1)], name="somebody_elses")])
    before = set(await db._database["Record"].index_information())
    await indexes.ensure(db)
    after = set(await db._database["Record"].index_information())
    assert before - after == {"newest", "claims"}
    assert {"owned", "somebody_elses"} <= after
    wanted = {(kind, index.document["name"]) for kind, each in indexes.INDEXES.items() for index in each}
    assert not wanted & {(kind, name) for kind, each in indexes.RETIRED.items() for name in _names(each)}
    for name in ("owned", "somebody_elses"):
        await db._database["Record"].drop_index(name)


async def test_places_that_a_former_version_gave_twice_are_told_apart(db: Database) -> None:
    here = db._database["Task"]
    await here.drop_index("places")
    given = {"a": 1, "b": 2, "c": 2, "d": 2, "e": 3, "f": 0, "g": 0}
    await db.insert_many("Task", [{"_id": id, "admitted_order": place} for id, place in given.items()])
    await asyncio.gather(indexes.ensure(db), indexes.ensure(db))
    found = {task["_id"]: task["admitted_order"] for task in await db.find("Task", {})}
    assert found == given | {"c": 4, "d": 5}
    with pytest.raises(database.AlreadyThereError):
        await db.update_one("Task", {"_id": "f"}, {"$set": {"admitted_order": 3}})


def _names(found: list[IndexModel]) -> list[str]:
    return [index.document["name"] for index in found]


async def test_several_units_that_begin_at_once_may_all_drop_an_index(db: Database) -> None:
    newest = IndexModel([("created_at", 1)], name="newest")
    await db.create_indexes("Record", [newest])
    here = db._database["Record"]
    known = await here.index_information()
    await here.drop_index("newest")

    # The list of indexes from before another unit dropped one.
    class Seen:
        async def index_information(self) -> dict[str, Any]:
            return dict(known)

        async def drop_index(self, name: str) -> None:
            await here.drop_index(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db, "_collection", lambda name: Seen())
        await db.drop_indexes("Record", [newest])
    assert "newest" not in await here.index_information()


async def test_without_an_order_the_newest_rows_come_first(db: Database) -> None:
    ids = [f"shop/train/0/{number:06d}" for number in range(6)]
    at = dict(zip(ids, (3, None, 5, 1, None, 4), strict=True))
    began = await db.now()
    moments = {id: began + timedelta(minutes=minute) for id, minute in at.items() if minute is not None}
    await db.insert_many("Task", [{"_id": id, "admitted_at": moments.get(id)} for id in ids])
    seen: list[str] = []
    after: str | None = None
    while after is not None or not seen:
        page = await lists.page(db, "Task", after=after, limit=2)
        seen += [found["id"] for found in page.rows]
        if page.after is None:
            break
        after = page.after
    waiting = [id for id in reversed(ids) if id not in moments]
    assert seen == [*sorted(moments, key=moments.__getitem__, reverse=True), *waiting]

    await db.insert_many("Record", [{"_id": id, "task": id, "started_at": moments.get(id)} for id in ids])
    assert [found["id"] for found in (await lists.page(db, "Record")).rows] == seen, "and records that nobody began"


async def test_a_wipe_shows_what_is_lost_and_is_refused_while_a_process_writes(mongo_url: str, db: Database) -> None:
    other = database.connect(mongo_url, f"{NAME}-wiped", within_s=20)
    try:
        await tasks.insert(other, [row(1), row(2)])
        owner = owners.Lease(other, "sampler-0.1", unit="sampler-0", role="sampler")
        await owner.open()
        with pytest.raises(RefusedError, match=r"in use by sampler-0\.1"):
            await run_wipe.wipe(other)
        await owner.close()
        loss = await run_wipe.wipe(other)
        assert loss.documents == {"Owner": 1, "Task": 2}
        assert loss.bytes > 0
        assert await other.collections() == []
        assert to_bson([Task(id="x")])[0]["_id"] == "x"
    finally:
        await other.close()
