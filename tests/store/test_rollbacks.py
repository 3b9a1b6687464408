"""Rollbacks: which steps stop counting, which count again, and what happens to their tasks."""

from __future__ import annotations

import pytest

from agentrl.errors import RefusedError, UnknownNameError
from agentrl.store import accounting, checkpoints, lineages, pruning, rollbacks, steps, tasks
from agentrl.store.database import Database
from agentrl.store.documents import Task, to_bson
from agentrl.store.weight_documents import Checkpoint, Lineage, Publication
from tests.store.flow import commit, ready_tasks


async def saved(
    db: Database, lineage: Lineage, step: int, *, evaluation: float | None = None, version: int | None = None
) -> Checkpoint:
    """A checkpoint, of a version whose number is by default that of the step."""
    path = f"checkpoints/{step}"
    made = await checkpoints.begin(db, step=step, lineage=lineage.id, version=version or step, path=path)
    assert await checkpoints.complete(db, made.id, {})
    if evaluation is not None:
        results = {"evaluation": evaluation, "evaluation_margin": 0.05}
        published = Publication(id=step, lineage=lineage.id, evaluation="done", evaluated=results)
        await db.insert_many("Publication", [to_bson(published)])
    return await checkpoints.get(db, made.id)


async def taken_over(db: Database, life: int) -> Lineage:
    """Start the next trainer from the checkpoint that it chooses."""
    start = await rollbacks.to_start_from(db)
    request = await rollbacks.requested(db)
    if request is not None:
        await rollbacks.keep_newest(db, request)
    parent, step = (start[0].id, start[0].step) if start else ("", 0)
    return await lineages.begin(db, f"trainer-0.{life}", parent_checkpoint=parent, after_step=step)


async def statuses(db: Database) -> list[tuple[str, int]]:
    found = await db.find("Task", {}, sort=[("_id", 1)])
    return [(task["status"], task["trained_count"]) for task in found]


async def balanced(db: Database) -> None:
    assert (await accounting.account(db)).problems == ()


async def trained(db: Database, groups: int = 4) -> tuple[list[Task], Lineage]:
    """Each group in a step of its own, and a checkpoint after each second step."""
    ready = await ready_tasks(db, groups)
    lineage = await taken_over(db, 1)
    for number, task in enumerate(ready, 1):
        await commit(db, lineage.id, number, [task])
        if number % 2 == 0:
            await saved(db, lineage, number, evaluation=1.0 / number)
    return ready, lineage


async def test_steps_after_the_checkpoint_are_undone_and_their_tasks_become_free(db: Database) -> None:
    _, first = await trained(db)
    target = await rollbacks.resolve(db, "best")
    assert target.step == 2, "it has the best evaluation"
    found = await rollbacks.consequences(db, target)
    assert ([step.step for step in found.undone], found.freed_records, found.reinstated) == ([3, 4], 4, [])
    await rollbacks.request(db, target, "collapsed", by="op-1")
    assert await statuses(db) == [("trained", 1)] * 4, "a request changes nothing by itself"
    second = await taken_over(db, 2)
    assert (second.parent_checkpoint, second.first_step) == (target.id, 3)
    assert await statuses(db) == [("trained", 1)] * 2 + [("ready", 0)] * 2
    newest = await db.find_one("Checkpoint", {"step": 4})
    assert newest is not None
    assert newest["kept_for"] == f"before the rollback to {target.id}"
    assert await rollbacks.requested(db) is None, "the lineage after it starts from the newest checkpoint again"
    assert await lineages.is_open(db, first.id) is False
    await balanced(db)


async def test_a_rollback_is_undone_by_another_one(db: Database) -> None:
    ready, _ = await trained(db)
    later = await rollbacks.resolve(db, "4")
    await rollbacks.request(db, await rollbacks.resolve(db, "v2"), "collapsed", by="op-1")
    second = await taken_over(db, 2)
    # One of the freed tasks trains in the new lineage, the other one is sampled again.
    await commit(db, second.id, 3, [ready[2]])
    await saved(db, second, 3)
    await tasks.requeue(db, ready[3].id, "by hand")
    found = await rollbacks.consequences(db, later)
    assert ([step.id for step in found.undone], [step.step for step in found.reinstated]) == (
        [f"{second.id}/000003"],
        [3, 4],
    )
    await rollbacks.request(db, later, "it was not the weights", by="op-2")
    third = await taken_over(db, 3)
    assert (third.parent_checkpoint, third.first_step) == (later.id, 5)
    assert await statuses(db) == [("trained", 1)] * 3 + [("queued", 0)]
    (fourth,) = await db.find("Step", {"step": 4})
    assert (fourth["status"], fourth["records"], fourth["empty"]) == ("committed", [], True)
    await balanced(db)
    assert await steps.follow(db) == 0
    assert [one.step for one in await rollbacks.to_start_from(db)] == [4, 2]


async def test_tasks_whose_details_were_removed_are_sampled_again(db: Database) -> None:
    ready, _lineage = await trained(db)
    target = await rollbacks.resolve(db, "2")
    await checkpoints.keep(db, target.id, "best evaluation")
    names = await pruning.consumed(db, older_than_s=0, max_trained_count=1, limit=10)
    assert sorted(names) == [task.id for task in ready], (
        "a checkpoint that is kept for an operator does not keep details"
    )
    await pruning.remove_details(db, names)
    await rollbacks.request(db, target, "collapsed", by="op-1")
    await taken_over(db, 2)
    assert await statuses(db) == [("trained", 1)] * 2 + [("queued", 0)] * 2
    assert await db.count("Task", {"pruned": True}) == 2
    await balanced(db)


async def test_a_trainer_that_dies_while_steps_are_reinstated_is_followed(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained(db)
    later = await rollbacks.resolve(db, "4")
    await rollbacks.request(db, await rollbacks.resolve(db, "2"), "collapsed", by="op-1")
    await taken_over(db, 2)
    await rollbacks.request(db, later, "back", by="op-2")

    async def die(*arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(steps, "_follow_reinstatement", die)
        with pytest.raises(KeyboardInterrupt):
            await taken_over(db, 3)
    await taken_over(db, 4)
    assert await statuses(db) == [("trained", 1)] * 4
    await balanced(db)


async def test_an_unknown_or_damaged_target_is_refused(db: Database) -> None:
    await trained(db)
    with pytest.raises(UnknownNameError, match="no complete checkpoint '3'"):
        await rollbacks.resolve(db, "3")
    target = await rollbacks.resolve(db, "2")
    await checkpoints.note_damage(db, target.id, "model.safetensors has 3 bytes")
    with pytest.raises(RefusedError, match="is damaged"):
        await rollbacks.resolve(db, "2")
    assert (await rollbacks.resolve(db, "best")).step == 4, "a damaged one is never the best"


async def test_retention_keeps_the_best_evaluation_and_what_is_being_evaluated(db: Database) -> None:
    _, lineage = await trained(db, 6)
    await checkpoints.keep_best(db)
    assert [one.step for one in await checkpoints.superfluous(db, keep=0)] == [6, 4]
    await db.update_one("Publication", {"_id": 4}, {"$set": {"evaluation": "queued"}})
    assert [one.step for one in await checkpoints.superfluous(db, keep=0)] == [6]
    better = await saved(db, lineage, 8, evaluation=0.9)
    await checkpoints.keep_best(db)
    assert [one.step for one in await checkpoints.superfluous(db, keep=0)] == [6, 2]
    assert not await checkpoints.delete(db, better.id)


async def test_after_a_rollback_the_newest_checkpoints_are_those_that_were_written_last(db: Database) -> None:
    await trained(db, 6)
    await rollbacks.request(db, await rollbacks.resolve(db, "2"), "collapsed", by="op-1")
    second = await taken_over(db, 2)
    newest = await saved(db, second, 3)
    assert newest.id not in [one.id for one in await checkpoints.superfluous(db, keep=1)]


async def test_retention_keeps_the_target_of_a_rollback(db: Database) -> None:
    await trained(db)
    target = await rollbacks.resolve(db, "2")
    await rollbacks.request(db, target, "collapsed", by="op-1")
    assert target.id not in [one.id for one in await checkpoints.superfluous(db, keep=0)]
    assert not await checkpoints.delete(db, target.id)


async def test_a_rollback_to_a_checkpoint_that_retention_removes_is_refused(db: Database) -> None:
    await trained(db)
    target = await rollbacks.resolve(db, "2")
    assert await checkpoints.delete(db, target.id)
    with pytest.raises(RefusedError, match="Retention has removed"):
        await rollbacks.request(db, target, "collapsed", by="op-1")
    assert await rollbacks.requested(db) is None


async def test_of_several_checkpoints_of_a_version_the_one_without_further_steps_is_chosen(db: Database) -> None:
    _, lineage = await trained(db)
    await saved(db, lineage, 3, version=2)
    assert (await rollbacks.resolve(db, "best")).step == 2
    assert (await rollbacks.resolve(db, "v2")).step == 2
    await checkpoints.note_damage(db, (await rollbacks.resolve(db, "2")).id, "model.safetensors has 3 bytes")
    assert (await rollbacks.resolve(db, "best")).step == 4, "what holds further steps was not evaluated"


async def test_checkpoints_of_the_present_history_outlast_those_that_were_rolled_back(db: Database) -> None:
    await trained(db, 6)
    target = await rollbacks.resolve(db, "2")
    await rollbacks.request(db, target, "collapsed", by="op-1")
    second = await taken_over(db, 2)
    # The target and the newest checkpoint are no longer kept for a reason.
    await db.update_many("Checkpoint", {}, {"$set": {"kept_for": ""}})
    newest = await saved(db, second, 3)
    assert [one.step for one in await checkpoints.superfluous(db, keep=2)] == [6, 4]
    assert [one.id for one in await rollbacks.to_start_from(db)] == [newest.id, target.id]


async def test_a_task_that_is_sampled_again_is_not_pruned_if_its_trainer_dies_at_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained(db)
    target = await rollbacks.resolve(db, "2")
    await checkpoints.keep(db, target.id, "best evaluation")
    await pruning.remove_details(db, await pruning.consumed(db, older_than_s=0, max_trained_count=1, limit=10))
    await rollbacks.request(db, target, "collapsed", by="op-1")

    async def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "sweep", die)
        with pytest.raises(KeyboardInterrupt):
            await taken_over(db, 2)
    queued = await db.find("Task", {"status": "queued"})
    assert [task["pruned"] for task in queued] == [False]
