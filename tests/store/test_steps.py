"""Steps and lineages: leased, committed once, released, rolled back. A trainer that was replaced writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from agentrl.policies.status_tables import StepStatus, TaskStatus
from agentrl.store import accounting, checkpoints, claims, lineages, publications, service_registry, steps, tasks
from agentrl.store.call_writer import Writer
from agentrl.store.claims import Reached
from agentrl.store.database import Database, Filter, Plain, Update
from agentrl.store.documents import Service, Step, Task, load
from agentrl.store.steps import LineageClosedError
from agentrl.store.weight_documents import CheckpointFile, Lineage
from tests.store.flow import admit, claim_one, commit, publication, queue, ready_tasks, step_of


async def begin(db: Database, owner: str = "trainer-0.1", *, after_step: int = 0) -> Lineage:
    return await lineages.begin(db, owner, parent_checkpoint="", after_step=after_step)


async def statuses(db: Database) -> list[str]:
    return [task["status"] for task in await db.find("Task", {}, sort=[("_id", 1)])]


async def test_a_step_is_leased_and_committed_and_its_tasks_follow(db: Database) -> None:
    training = await ready_tasks(db, 2)
    lineage = await begin(db)
    ready = await steps.ready(db)
    assert [group.task.id for group in ready] == [task.id for task in training]
    assert [round(data.advantage or 0) for data in ready[0].records] == [-1, 1]
    assert ready[0].records[0].versions == [1]
    leased = await steps.lease(db, step_of(lineage.id, 1, training[:1], filtered=training[1:]))
    assert leased is not None
    assert len(leased.records) == 2
    assert await statuses(db) == ["leased", "leased"]
    assert await steps.ready(db) == []
    assert await steps.commit(db, leased.id, {"loss": 0.5, "note": "$5"})
    assert await statuses(db) == ["trained", "filtered"]
    assert [task["trained_count"] for task in await db.find("Task", {}, sort=[("_id", 1)])] == [1, 0]
    assert not await steps.commit(db, leased.id, {}), "once"
    (last,) = [load(Step, found) for found in await db.find("Step", {"status": "committed"})]
    assert (last.step, last.metrics, last.empty) == (1, {"loss": 0.5, "note": "$5"}, False)
    assert last.duration_s >= 0
    assert (await accounting.account(db)).problems == ()


async def test_a_task_that_went_elsewhere_is_left_out_of_the_step(db: Database) -> None:
    training = await ready_tasks(db, 2)
    lineage = await begin(db)
    await tasks.requeue(db, training[0].id, "meanwhile")
    leased = await steps.lease(db, step_of(lineage.id, 1, training))
    assert leased is not None
    assert leased.tasks == [training[1].id]
    assert all(record.startswith(training[1].id) for record in leased.records)
    assert len(leased.records) == 2
    assert await steps.lease(db, step_of(lineage.id, 2, training[:1])) is None
    assert (await accounting.account(db)).problems == ()


async def test_two_trainers_never_lease_the_same_task(db: Database) -> None:
    training = await ready_tasks(db, 4)
    lineage = await begin(db)
    leased = await asyncio.gather(*(steps.lease(db, step_of(lineage.id, number, training)) for number in range(1, 5)))
    obtained = [task for step in leased if step for task in step.tasks]
    assert sorted(obtained) == [task.id for task in training]


async def test_tasks_of_a_step_are_updated_after_the_death_of_its_trainer(db: Database) -> None:
    training = await ready_tasks(db, 2)
    lineage = await begin(db)
    leased = await steps.lease(db, step_of(lineage.id, 1, training))
    assert leased is not None
    # The trainer died after the commit and before it changed the tasks.
    await db.update_one("Step", {"_id": leased.id}, {"$set": {"status": StepStatus.COMMITTED}})
    assert await steps.follow(db) == 1
    assert await steps.follow(db) == 0
    assert await statuses(db) == ["trained", "trained"]
    assert [task["trained_count"] for task in await db.find("Task", {})] == [1, 1]


async def test_a_takeover_within_a_lease_leaves_no_task_leased(db: Database) -> None:
    """The Step is released between its insert and the lease of its Tasks."""
    training = await ready_tasks(db, 2)
    old = await begin(db)
    step = step_of(old.id, 1, training)

    class Overtaken(Database):
        async def update_many(self, collection: str, filter: Filter, update: Update) -> int:
            if collection == "Task":
                await begin(db, "trainer-0.2")
            return await super().update_many(collection, filter, update)

    assert await steps.lease(Overtaken(db._client, db.name), step) is None
    assert await statuses(db) == ["ready", "ready"]
    assert (await accounting.account(db)).problems == ()


async def test_a_release_that_was_cut_off_is_ended_by_its_repetition(db: Database) -> None:
    training = await ready_tasks(db, 2)
    lineage = await begin(db)
    leased = await steps.lease(db, step_of(lineage.id, 1, training))
    assert leased is not None
    await db.update_one("Step", {"_id": leased.id}, {"$set": {"status": StepStatus.RELEASED}})
    assert not await steps.release(db, leased.id, "again"), "it was released before"
    assert await statuses(db) == ["ready", "ready"]


async def test_a_step_that_was_rolled_back_is_followed_once(db: Database) -> None:
    [task] = await ready_tasks(db, 1)
    lineage = await begin(db)
    done = await commit(db, lineage.id, 1, [task])
    # The next trainer died after it changed the Step and before it changed its Tasks.
    await db.update_one("Step", {"_id": done.id}, {"$set": {"status": StepStatus.ROLLED_BACK}})
    assert await steps.follow(db) == 1
    freed = await tasks.get(db, task.id)
    assert (freed.status, freed.trained_count) == (TaskStatus.READY, 0)
    assert await db.count("Step", {"status": StepStatus.ROLLED_BACK, "followed": True}) == 1
    counted: list[str] = []

    class Counting(Database):
        async def count(self, collection: str, filter: Filter) -> int:
            counted.append(collection)
            return await super().count(collection, filter)

    assert await steps.follow(Counting(db._client, db.name)) == 0
    assert counted == []


async def test_a_new_lineage_releases_rolls_back_and_frees_and_the_old_one_writes_nothing(db: Database) -> None:
    training = await ready_tasks(db, 4)
    old = await begin(db)
    first = await commit(db, old.id, 1, training[:1])
    second = await commit(db, old.id, 2, training[1:2])
    third = await steps.lease(db, step_of(old.id, 3, training[2:3]))
    assert third is not None
    new = await begin(db, "trainer-0.2", after_step=1)
    assert await statuses(db) == ["trained", "ready", "ready", "ready"]
    found = {step["_id"]: step["status"] for step in await db.find("Step", {})}
    assert found == {first.id: "committed", second.id: "rolled_back", third.id: "released"}
    # The old trainer wakes up again.
    assert not await steps.commit(db, third.id, {"loss": 0.0})
    with pytest.raises(LineageClosedError):
        await steps.lease(db, step_of(old.id, 4, training[3:]))
    assert not await lineages.report_plan(db, old.id, {"bound": 9})
    assert await lineages.is_open(db, new.id)
    assert not await lineages.is_open(db, old.id)
    again = [await tasks.get(db, task.id) for task in training[1:]]
    await commit(db, new.id, 2, again)
    account = await accounting.account(db)
    assert account.problems == ()
    assert account.steps == {"committed": 2, "rolled_back": 1, "released": 2}
    assert account.trained_records == 8


async def test_a_rolled_back_step_takes_its_count_with_it_also_when_it_was_not_the_last(db: Database) -> None:
    [task] = await ready_tasks(db, 1)
    lineage = await begin(db)
    for number in (1, 2):
        await commit(db, lineage.id, number, [task])
        assert await tasks.again(db, task.id, most=3)
    await commit(db, lineage.id, 3, [task])
    assert (await tasks.get(db, task.id)).trained_count == 3
    await begin(db, "trainer-0.2", after_step=1)
    freed = await tasks.get(db, task.id)
    assert (freed.trained_count, freed.status) == (1, TaskStatus.READY)
    assert (await accounting.account(db, max_trained_count=3)).problems == ()


async def test_a_trained_task_is_ready_again_as_often_as_it_may(db: Database) -> None:
    [task] = await ready_tasks(db, 1)
    lineage = await begin(db)
    await commit(db, lineage.id, 1, [task])
    assert not await tasks.again(db, task.id, most=1)
    assert await tasks.again(db, task.id, most=2)
    assert not await tasks.again(db, task.id, most=2)


async def test_only_one_lineage_is_open(db: Database) -> None:
    for number in range(1, 4):
        await begin(db, f"trainer-0.{number}")
    current = await lineages.current(db)
    assert current is not None
    assert current.owner == "trainer-0.3"
    assert await db.count("Lineage", {"closed": False}) == 1


async def test_a_lineage_that_opens_late_leaves_a_newer_one_alone(db: Database) -> None:
    [task] = await ready_tasks(db, 1)
    taken: list[Step] = []

    class Delayed(Database):
        async def insert_new(self, collection: str, documents: Sequence[Plain]) -> int:
            asked_at = await db.now()
            while await db.now() <= asked_at:
                pass
            newer = await begin(db, "trainer-0.2")
            leased = await steps.lease(db, step_of(newer.id, 1, [task]))
            assert leased is not None
            taken.append(leased)
            return await super().insert_new(collection, documents)

    with pytest.raises(LineageClosedError, match="was late"):
        await begin(Delayed(db._client, db.name), "trainer-0.1")
    assert [one["owner"] for one in await db.find("Lineage", {"closed": False})] == ["trainer-0.2"]
    assert await steps.commit(db, taken[0].id, {})


async def test_a_clock_that_was_set_back_blocks_no_trainer(db: Database) -> None:
    former = await begin(db)
    ahead = await db.now() + timedelta(hours=1)
    await db.update_one("Lineage", {"_id": former.id}, {"$set": {"opened_at": ahead}})
    following = await begin(db, "trainer-0.2")
    assert following.opened_at is not None
    assert following.opened_at > ahead.replace(microsecond=0)
    assert await lineages.is_open(db, following.id)
    assert not await lineages.is_open(db, former.id)


async def test_records_under_way_report_their_versions(db: Database) -> None:
    [task] = await queue(db, 1)
    await admit(db, task, n=2)
    claim = await claim_one(db, "s.1")
    assert claim is not None
    assert await steps.under_way(db) == []
    for turns, versions in ((1, [7]), (2, [7, 8, 9])):
        update = claims.progress(
            claim.record.id, "s.1", Reached(turns=turns, generated_tokens=4 * turns, versions=versions)
        )
        await Writer(db).progress(claim.record.id, "s.1", update)
    assert await steps.under_way(db) == [([7, 8, 9], "shop")]


async def test_numbers_of_versions_are_never_used_twice(db: Database) -> None:
    taken = await asyncio.gather(
        *(publications.take_number(db, parent=None, lineage="a", step=0) for _ in range(8)),
    )
    assert sorted(publication.id for publication in taken) == list(range(1, 9))
    assert publications.path_of(12) == "weights/v000012"
    await db.update_many("Publication", {}, {"$set": {"status": "deleted"}})
    following = await publications.take_number(db, parent=3, lineage="b", step=9)
    assert following.id == 9
    assert (await publications.parents(db))[9] == 3


async def test_only_the_lineage_that_took_a_number_announces_it(db: Database) -> None:
    for parent in (None, 1):
        await publications.take_number(db, parent=parent, lineage="a", step=0)
    assert not await publications.announce(db, 2, "b", {})
    assert await publications.announce(db, 2, "a", {"files": {"model.safetensors": {"bytes": 1}}})
    assert await publications.announce(db, 2, "a", {}), "an announcement may be repeated after a lost answer"
    assert not await publications.announce(db, 2, "b", {})
    assert (await publication(db, 1)).status == "skipped"
    newest = await publications.newest(db)
    assert newest is not None
    assert newest.id == 2
    assert newest.manifest["files"], "the manifest is the first one's"


async def test_a_trainer_that_slept_between_looking_and_announcing_announces_nothing(db: Database) -> None:
    former = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    taken = await publications.take_number(db, parent=None, lineage=former.id, step=0)
    assert await lineages.is_open(db, former.id)
    await lineages.begin(db, "trainer-0.2", parent_checkpoint="", after_step=0)
    assert not await publications.announce(db, taken.id, former.id, {})
    (publication,) = await db.find("Publication", {})
    assert (publication["status"], publication["announced_at"]) == ("skipped", None)


async def test_publications_that_engines_refuse_are_rejected_after_a_while(db: Database) -> None:
    for _ in range(3):
        version = (await publications.take_number(db, parent=None, lineage="a", step=0)).id
        await publications.announce(db, version, "a", {})
    await db.update_many("Publication", {}, {"$set": {"status": "announced"}})
    await db.update_one("Publication", {"_id": 2}, {"$set": {"reasons": ["engine-0.1: the canary disagrees"]}})
    assert await publications.reject_overdue(db, after_s=60) == []
    assert await publications.reject_overdue(db, after_s=-1) == [2]


async def test_weights_are_kept_while_they_are_needed(db: Database) -> None:
    for _ in range(6):
        await publications.take_number(db, parent=None, lineage="a", step=0)
    await db.update_many("Publication", {}, {"$set": {"status": "retained"}})
    await service_registry.report(
        db, Service(id="engine-0.1", unit="engine-0", kind="engine", state="serving", version=3)
    )
    checkpoint = await checkpoints.begin(db, step=1, lineage="a", version=2, path="x")
    await checkpoints.complete(db, checkpoint.id, {})
    free = await publications.superfluous(db, keep=2, needed=[1])
    assert [publication.id for publication in free] == [4]
    assert await publications.delete(db, 4)
    assert not await publications.delete(db, 4)


async def test_checkpoints_are_complete_abandoned_pinned_or_deleted(db: Database) -> None:
    for step in (1, 2, 3, 4):
        made = await checkpoints.begin(db, step=step, lineage="a", version=step, path=f"checkpoints/{step}")
        if step != 4:
            assert await checkpoints.complete(db, made.id, {"model.safetensors": CheckpointFile(bytes=5, hash="x")})
    assert await checkpoints.abandon_unfinished(db, "b") == 1
    assert not await checkpoints.complete(db, "step-000004.a", {})
    assert [checkpoint.step for checkpoint in await checkpoints.newest_first(db)] == [3, 2, 1]
    await checkpoints.pin(db, "step-000001.a", pinned=True)
    assert [checkpoint.step for checkpoint in await checkpoints.superfluous(db, keep=1)] == [2]
    assert not await checkpoints.delete(db, "step-000001.a")
    assert await checkpoints.delete(db, "step-000002.a")


async def test_services_that_are_silent_are_not_called(db: Database) -> None:
    for number, state in enumerate(("serving", "serving", "draining")):
        await service_registry.report(
            db, Service(id=f"engine-{number}.1", unit=f"engine-{number}", kind="engine", state=state)
        )
    now = await db.now()
    await db.update_one("Service", {"_id": "engine-1.1"}, {"$set": {"seen_at": now.replace(year=2020)}})
    assert [service.id for service in await service_registry.alive(db, "engine")] == ["engine-0.1"]
    assert await service_registry.forget_silent(db) == 1
    [gone] = await db.find("Service", {"state": "gone"})
    assert load(Service, gone).id == "engine-1.1"


async def test_old_and_new_documents_load(db: Database) -> None:
    await db.insert_many("Task", [{"_id": "old"}, {"_id": "new", "from_the_future": 1, "n": 4}])
    assert (await tasks.get(db, "old")) == Task(id="old")
    assert (await tasks.get(db, "new")).n == 4
