"""What the trainer reports about a collapse, from what the store holds."""

from __future__ import annotations

from datetime import UTC, datetime

from agentrl.policies.status_tables import StepStatus
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
