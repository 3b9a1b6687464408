"""What the trainer reports about a collapse, from what the store holds."""

from __future__ import annotations

from datetime import UTC, datetime

from agentrl.policies.status_tables import StepStatus
from agentrl.store import checkpoints, evaluations
from agentrl.store.database import Database, Plain
from agentrl.training.learning_watch import LearningWatch

AT = datetime(2026, 1, 1, tzinfo=UTC)


def step(number: int, mean: float, margin: float) -> Plain:
    metrics = {"reward_mean": mean, "reward_lately": mean, "reward_lately_margin": margin}
    return {
        "_id": f"step-{number}",
        "step": number,
        "status": StepStatus.COMMITTED,
        "committed_at": AT,
        "metrics": metrics,
    }


async def test_trainer_that_takes_over_has_the_same_best_reward_and_the_same_collapse(db: Database) -> None:
    lucky, best = step(1, 0.9, 0.5), step(2, 0.8, 0.1)
    documents = [lucky, best, *(step(number, 0.05, 0.0) for number in range(3, 20))]
    before = LearningWatch(db)
    for document in documents:
        before.stepped(document["step"], document["metrics"])
    await db.insert_many("Step", documents)
    after = LearningWatch(db)
    await after.recall()
    numbers = await after.metrics()
    assert numbers["reward_best"] == (await before.metrics())["reward_best"] == 0.8
    assert numbers["collapse"] == (await before.metrics())["collapse"] > 1
    assert numbers["reward_collapse"] == numbers["collapse"]


async def test_reward_that_fell_in_the_newest_steps_only_is_not_reported_as_a_collapse(db: Database) -> None:
    watch = LearningWatch(db)
    for number in range(1, 12):
        watch.stepped(number, step(number, 0.8, 0.1)["metrics"])
    watch.stepped(12, step(12, 0.0, 0.0)["metrics"])
    assert (await watch.metrics())["collapse"] == 0.0


async def evaluated(db: Database, version: int, mean: float, *queries: str) -> None:
    """An evaluation of a version, which has a checkpoint, on these held-out tasks."""
    tasks = [
        {"_id": f"{version}/{query}", "purpose": "eval", "version": version, "status": "ready", "query": query}
        for query in queries
    ]
    await db.insert_many("Task", tasks)
    await db.insert_many("Publication", [{"_id": version, "evaluation": "queued"}])
    made = await checkpoints.begin(db, step=version, lineage="a", version=version, path=f"checkpoints/{version}")
    assert await checkpoints.complete(db, made.id, {})
    await evaluations.finish(db, version, {"evaluation": mean, "evaluation_margin": 0.05})
    await checkpoints.keep_best(db)


async def collapse(db: Database) -> dict[str, float]:
    watch = LearningWatch(db)
    await watch.recall()
    return await watch.metrics()


async def test_evaluation_on_harder_held_out_tasks_is_no_collapse(db: Database) -> None:
    await evaluated(db, 1, 0.9, "easy", "also easy")
    await evaluated(db, 2, 0.3, "hard", "also hard")
    now = await collapse(db)
    assert (now["collapse"], now["evaluation_best"], now["evaluation_best_version"]) == (0.0, 0.3, 2.0)
    await evaluated(db, 3, 0.05, "also hard", "hard")
    now = await collapse(db)
    assert now["collapse"] > 1, "a fall on the same tasks"
    assert now["rollback_version"] == 2.0
    await evaluated(db, 4, 0.9, "easy")
    assert (await collapse(db))["collapse"] == 0.0, "fewer tasks are other tasks"
    await evaluated(db, 5, 0.1, "easy", "also easy")
    assert (await collapse(db))["collapse"] > 1, "the first tasks again"
    kept = await db.find("Checkpoint", {"kept_for": "best evaluation"}, sort=[("step", 1)])
    assert [one["version"] for one in kept] == [1, 2, 4], "the best for each set of tasks"


async def test_evaluations_of_a_release_that_stored_no_digest_are_compared_by_their_tasks(db: Database) -> None:
    await evaluated(db, 1, 0.9, "a", "b")
    await evaluated(db, 2, 0.1, "c", "d")
    await db.update_many("Publication", {}, {"$unset": {"evaluated_tasks": 1}})
    assert (await collapse(db))["collapse"] == 0.0
    await evaluated(db, 3, 0.1, "a", "b")
    assert (await collapse(db))["collapse"] > 1
