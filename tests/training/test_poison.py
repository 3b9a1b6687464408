"""A record that no trainer survives is found by bisection and set aside, and the run continues."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from agentrl.policies.batch_cut import ReadyGroup, ReadyRecord
from agentrl.policies.freshness import Freshness
from agentrl.policies.status_tables import Actor
from agentrl.store import accounting, lineages, steps, tasks
from agentrl.store.database import Database
from agentrl.training import poison_trials
from tests.store.flow import ready_tasks, step_of
from tests.store.server import NAME
from tests.training.rollouts import closed_groups, configuration, end_of_data

LIMIT_BYTES = 3 << 28
TOO_LONG = 150_000
"""Tokens whose activations need more than the limit."""


async def test_a_record_too_long_for_the_memory_is_dead_and_all_others_train(
    db: Database, mongo_url: str, tiny: Path, tmp_path: Path
) -> None:
    config = configuration(tmp_path, tiny, groups=4, checkpoint_every=1)
    (tmp_path / "config.json").write_text(config.model_copy(update={"name": NAME}).model_dump_json())
    await closed_groups(db, 8, long={5: TOO_LONG})
    await end_of_data(db)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.training.lives", str(tmp_path), mongo_url, str(LIMIT_BYTES)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, why = await process.communicate()
    # Two trainers die with the batch and one with the group alone; halves without it pass, because they are lighter.
    # Fragmented memory may end one more trainer, which makes no group a suspect.
    *deaths, end = output.decode().split()
    assert (set(deaths), end) == ({"1"}, "0"), why.decode()[-4000:]
    assert len(deaths) in (3, 4), why.decode()[-4000:]
    assert "memory" in why.decode().lower()
    found = await db.find("Task", {}, sort=[("_id", 1)])
    assert [task["status"] for task in found] == ["trained"] * 5 + ["dead"] + ["trained"] * 2
    assert found[5]["reason"] == "poison: trainers died with it, the last one with it alone"
    assert await db.count("Step", {"died": True}) == len(deaths)
    assert (await accounting.account(db)).problems == ()


@pytest.fixture
async def died_twice(db: Database) -> list[str]:
    """Four ready groups with which two trainers have died."""
    ready = await ready_tasks(db, 4)
    for life in (1, 2):
        lineage = await lineages.begin(db, f"trainer-0.{life}", parent_checkpoint="", after_step=0)
        assert await steps.lease(db, step_of(lineage.id, 1, ready))
    await lineages.begin(db, "trainer-0.3", parent_checkpoint="", after_step=0)
    return [task.id for task in ready]


async def accused(db: Database) -> tuple[str, ...]:
    """The groups that the next step would try alone."""
    known = {one.task.id: one for one in await steps.ready(db)}
    groups = [
        ReadyGroup(name, one.task.admitted_order, True, tuple(ReadyRecord(data.id, 0) for data in one.records))
        for name, one in known.items()
    ]
    decision = (await poison_trials.recall(db)).decide(known, groups, Freshness())
    return tuple(group.task for group in decision.groups) if decision else ()


async def test_a_release_by_the_trainer_itself_makes_no_suspects(db: Database) -> None:
    ready = await ready_tasks(db, 2)
    for number in (1, 2):
        lineage = await lineages.begin(db, f"trainer-0.{number}", parent_checkpoint="", after_step=0)
        leased = await steps.lease(db, step_of(lineage.id, number, ready))
        assert leased is not None
        assert await steps.release(db, leased.id, "a hold")
    assert await accused(db) == ()


async def test_a_cleared_group_stays_cleared_after_a_rollback(db: Database, died_twice: list[str]) -> None:
    assert await accused(db) == tuple(died_twice[:2])
    lineage = await lineages.current(db)
    assert lineage is not None
    ready = [await tasks.get(db, name) for name in died_twice[:2]]
    leased = await steps.lease(db, step_of(lineage.id, 1, ready))
    assert leased is not None
    assert await steps.commit(db, leased.id, {})
    await lineages.begin(db, "trainer-0.4", parent_checkpoint="", after_step=0)
    assert (await tasks.get(db, died_twice[0])).status == "ready", "rolled back"
    assert await accused(db) == (died_twice[2],)


async def test_another_round_of_a_suspected_task_is_not_suspected(db: Database, died_twice: list[str]) -> None:
    for name in died_twice[:3]:
        await tasks.next_round(db, await tasks.get(db, name), Actor.TRAINER, tasks.STALE, final_reason=tasks.STALE)
    assert await accused(db) == (died_twice[3],)


async def test_deaths_that_a_dead_task_explains_make_no_suspects(db: Database, died_twice: list[str]) -> None:
    assert await tasks.kill(db, await tasks.get(db, died_twice[3]), Actor.TRAINER, f"{poison_trials.POISON}: it is")
    assert await accused(db) == ()
