"""What is removed of consumed tasks, what never is, and a disk that is nearly full."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

from agentrl.policies.status_tables import Actor
from agentrl.steward import retention
from agentrl.steward.epochs import Source
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.steward.steward import Steward
from agentrl.store import accounting, checkpoints, images, lineages, pruning, steps, tasks
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id, tool_call_id
from agentrl.store.documents import DispatchedSamplingTask, Fork, Task, ToolCall, to_bson
from agentrl.store.weight_documents import CheckpointFile
from agentrl.tokens.binary_format import pack_floats, pack_ids
from tests.store.flow import commit, ready_tasks

RULES = StewardSettings(environments={"shop": EnvironmentSettings()}, n=2, groups=1)
EXBIBYTE = 1 << 60
DETAILS = ("DispatchedSamplingTask", "Chunk")


@pytest.fixture
async def trained(db: Database) -> list[str]:
    """Six tasks with calls and turns, one trained by each of steps 1 to 4; a checkpoint covers the first three."""
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    ready = await ready_tasks(db, 6)
    for number, task in enumerate(ready[:4], start=1):
        await commit(db, lineage.id, number, [task])
    await saved(db, lineage.id, 3)
    for task in ready:
        await detailed(db, task)
    return [task.id for task in ready]


async def saved(db: Database, lineage: str, step: int) -> str:
    begun = await checkpoints.begin(db, step=step, lineage=lineage, version=1, path="c")
    assert await checkpoints.complete(db, begun.id, {"f": CheckpointFile(1, "h")})
    return begun.id


def call_of(tokens: int, name: str, **of: str) -> DispatchedSamplingTask:
    """One that is done and has so many tokens."""
    return DispatchedSamplingTask(
        id=name,
        status="done",
        output=pack_ids(list(range(tokens))),
        log_probs=pack_floats([-1.0] * tokens),
        versions=[(1, tokens)],
        **of,
    )


async def detailed(db: Database, task: Task) -> None:
    for share in task.shares:
        name = share.record
        record = {"record": name, "task": task.id}
        seen = await db.find_one("Record", {"_id": name}, projection=["generated_tokens"])
        assert seen is not None
        call = call_of(seen["generated_tokens"], call_id(name, 0), **record)
        tool_call = ToolCall(id=tool_call_id(call.id, 0), status="ok")
        call.tool_calls = [tool_call]
        await db.insert_many("DispatchedSamplingTask", [to_bson(call)])
        chunk = {"_id": f"{tool_call.id}/result/0", "document": tool_call.id, "field": "result", "index": 0}
        await db.insert_many("Chunk", [chunk])


async def with_details(db: Database, names: list[str]) -> list[int]:
    """The numbers of the tasks that have all of them; none may have a part."""
    found = []
    for number, name in enumerate(names):
        counts = [await db.count(kind, {"_id": {"$regex": f"^{name}#"}}) for kind in DETAILS]
        assert counts in ([0, 0], [2, 2])
        found += [number] if any(counts) else []
    return found


async def test_only_what_every_checkpoint_covers_is_removed_and_the_account_agrees(
    db: Database, trained: list[str]
) -> None:
    assert await tasks.kill(db, await tasks.get(db, trained[5]), Actor.TRAINER, "stale")
    settings = dataclasses.replace(RULES, details_s=1e-6)
    before = await accounting.account(db)
    assert await retention.prune(db, settings) == 4
    assert await with_details(db, trained) == [3, 4], "a step that may be rolled back, and a group that is ready"
    after = await accounting.account(db)
    assert (after.tasks, after.records, after.trained_records) == (before.tasks, before.records, before.trained_records)
    assert after.problems == ()
    assert await retention.prune(db, settings) == 0, "once is enough"


async def test_an_older_checkpoint_that_is_kept_is_gone_back_to(db: Database, trained: list[str]) -> None:
    lineage = await lineages.current(db)
    assert lineage is not None
    older = await saved(db, lineage.id, 1)
    settings = dataclasses.replace(RULES, details_s=1e-6)
    assert await retention.prune(db, settings) == 1
    await lineages.begin(db, "trainer-0.2", parent_checkpoint=older, after_step=1)
    ready = {one.task.id for one in await steps.ready(db)}
    assert ready == set(trained[1:])
    assert await with_details(db, trained) == [1, 2, 3, 4, 5], "whatever trains again has its tokens"


async def test_nothing_goes_before_its_time_unless_there_is_too_much(db: Database, trained: list[str]) -> None:
    assert await retention.prune(db, RULES) == 0
    assert await retention.prune(db, dataclasses.replace(RULES, details_s=3600.0)) == 0
    assert await retention.prune(db, dataclasses.replace(RULES, data_max_bytes=EXBIBYTE)) == 0
    assert await with_details(db, trained) == [0, 1, 2, 3, 4, 5]
    assert await retention.prune(db, dataclasses.replace(RULES, data_max_bytes=1, details_s=3600.0)) == 3
    assert await with_details(db, trained) == [3, 4, 5]


async def test_images_of_tasks_which_stay_are_not_paid_for_with_details(db: Database, trained: list[str]) -> None:
    size = await db.size_bytes()
    settings = dataclasses.replace(RULES, data_max_bytes=size + (1 << 20))
    for number in range(3):
        await images.put(db, bytes([number]) * (1 << 20), of_task=True)
    assert await db.size_bytes() > settings.data_max_bytes
    assert await retention.prune(db, settings) == 0
    # Those of tools go with details, so they count.
    await images.put(db, b"tool" * (1 << 19))
    assert await retention.prune(db, settings) == 3


async def test_base_of_a_fork_that_is_not_over_stays(db: Database, trained: list[str]) -> None:
    first = await tasks.get(db, trained[0])
    fork = Fork(kind="branch", base=first.shares[0].record, turns=1)
    await db.insert_many("Task", [to_bson(Task(id="branch", purpose="branch", status="admitted", fork=fork))])
    settings = dataclasses.replace(RULES, details_s=1e-6)
    await retention.prune(db, settings)
    assert await with_details(db, trained) == [0, 3, 4, 5]
    await db.update_many("Task", {}, {"$set": {"pruned": False}})
    some = await pruning.consumed(db, older_than_s=1e-6, max_trained_count=1, limit=1)
    assert some == trained[1:2], "a base takes nobody's place"
    await db.update_one("Task", {"_id": "branch"}, {"$set": {"status": "dead"}})
    await retention.prune(db, settings)
    assert await with_details(db, trained) == [3, 4, 5]


async def test_bytes_of_images_go_with_the_last_task_whose_records_may_name_them(
    db: Database, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SLACK_S", 0.0)
    settings = dataclasses.replace(RULES, details_s=1e-6)
    before, after, of_task, earlier = [await images.put(db, name.encode()) for name in ("a", "b", "c", "d")]
    assert (await images.put(db, b"c", of_task=True)).number == of_task.number
    await db.update_one("Image", {"_id": earlier.id}, {"$unset": {"used_at": 1}})
    # The first three tasks are consumed; a record of the fourth may have used what is not older than its admission.
    at = [(await tasks.get(db, name)).first_admitted_at for name in trained]
    for image, used in ((before, at[0]), (of_task, at[0]), (after, at[3])):
        await db.update_one("Image", {"_id": image.id}, {"$set": {"used_at": used}})
    assert await retention.remove_images(db, settings) == 0, "the first task has its details"
    assert await retention.prune(db, settings) == 3
    assert await retention.remove_images(db, RULES) == 0, "nothing is removed without a limit"
    assert await retention.remove_images(db, settings) == 1
    everything = [before.id, after.id, of_task.id, earlier.id]
    assert set(await images.get(db, everything)) == set(everything[1:])
    assert {one.id: one.length for one in await images.described(db, everything)}[before.id] == 1
    assert await images.of_numbers(db, [before.number]) == {}
    again = await images.put(db, b"a")
    assert (again.number, (await images.get(db, [before.id]))[before.id].data) == (before.number, b"a")


async def test_a_record_that_is_being_written_never_loses_its_image(
    db: Database, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SLACK_S", 0.0)
    long_ago = (await db.now()) - timedelta(days=1)
    removed = 0
    for number in range(40):
        stored = await images.put(db, b"it was used long ago")
        await db.update_one("Image", {"_id": stored.id}, {"$set": {"used_at": long_ago}})
        if number % 2:
            removed += await images.remove_unused(db)
        _, taken, _ = await asyncio.gather(
            images.remove_unused(db), images.put(db, b"it was used long ago"), images.use(db, stored.id)
        )
        assert (taken.number, taken.data) == (stored.number, b"it was used long ago")
        assert (await images.get(db, [stored.id]))[stored.id].data == taken.data
    assert removed == 20


async def test_a_full_disk_stops_admission_with_its_name_and_it_goes_on_by_itself(db: Database, tmp_path: Path) -> None:
    now = [1000.0]
    settings = dataclasses.replace(RULES, disk_reserve_bytes=EXBIBYTE)
    steward = Steward(
        db,
        settings,
        {"shop": Source.of([])},
        incarnation="steward-0.1",
        unit="steward-0",
        run_dir=tmp_path,
        clock=lambda: now[0],
    )
    await steward.start()
    waiting = [Task(id=f"shop/train/0/{number:06d}", environment="shop", row=number) for number in range(2)]
    waiting.append(Task(id="shop/eval/1/000000", environment="shop", purpose="eval", version=1))
    await tasks.insert(db, waiting)
    done = await steward.round()
    assert done.admitted.groups == done.evaluations == 0
    assert "is nearly full" in done.admitted.why_not
    assert done.admitted.why_not in done.sentence()
    assert "is nearly full" in "; ".join(wait.what for wait in await steward.waits())
    # Somebody makes room; here the reserve becomes smaller, which is the same.
    steward.settings = steward.settings.changed(disk_reserve_bytes=1)
    now[0] += 10
    done = await steward.round()
    assert (done.admitted.groups, done.evaluations) == (2, 1)
    await steward.stop()
