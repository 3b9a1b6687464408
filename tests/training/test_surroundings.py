"""The trainer waits for evaluations, and holds while most episodes fail."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from agentrl.policies.status_tables import Actor
from agentrl.store import attempt_statistics, evaluations, groups, lineages, publications, tasks
from agentrl.store.database import Database
from agentrl.store.documents import DispatchedSamplingTask, Record, ToolCall, to_bson
from agentrl.training import batch_selection, disk_retention
from tests.store.flow import RULE, admit, claim_one, end, row
from tests.training.rollouts import OWNER, closed_groups, configuration, trainer
from tests.waiting import aeventually


async def evaluate_what_is_wanted(db: Database) -> bool:
    """Acts as steward and sampler; returns False if no evaluation is requested."""
    wanted = await evaluations.wanted(db)
    for version in wanted:
        wanted = row(version, purpose="eval", version=version)
        task = msgspec.structs.replace(wanted, id=f"shop/eval/{version}/000000")
        await tasks.insert(db, [task])
        await admit(db, task, n=1)
        claim = await claim_one(db, OWNER)
        assert claim is not None
        assert await end(db, claim, float(version > 1), version=version)
        assert await groups.close(db, task.id, RULE, Actor.SAMPLER) == "ready"
        await evaluations.mark_queued(db, version)
    return bool(wanted)


async def test_the_first_and_the_last_version_are_evaluated_before_the_run_is_complete(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({"query": "what costs a pear?", "answer": "4"}))
    await closed_groups(db, 4)
    mine = trainer(db, configuration(tmp_path, tiny, steps=2, evaluation=str(held_out)), tmp_path)
    async with asyncio.timeout(100), asyncio.TaskGroup() as together:
        together.create_task(mine.run())
        for _ in ("the first", "the last"):
            await aeventually(lambda: evaluate_what_is_wanted(db))
    done = await db.find("Publication", {"evaluation": "done"}, sort=[("_id", 1)])
    assert [publication["_id"] for publication in done] == [1, 3]
    assert [(await evaluations.results(db, version))[0].mean for version in (1, 3)] == [0.0, 1.0]
    assert [publication["evaluated"] for publication in done] == [{"evaluation": 0.0}, {"evaluation": 1.0}]
    assert await db.count("Task", {"purpose": "eval", "status": "done"}) == 2


async def test_frozen_weights_are_published_and_evaluated_once_and_not_trained(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({"query": "what costs a pear?", "answer": "4"}))
    await closed_groups(db, 4)
    mine = trainer(db, configuration(tmp_path, tiny, frozen=True, evaluation=str(held_out)), tmp_path)
    async with asyncio.timeout(100), asyncio.TaskGroup() as together:
        together.create_task(mine.run())
        await aeventually(lambda: evaluate_what_is_wanted(db))
    (publication,) = await db.find("Publication", {})
    assert (publication["_id"], publication["status"], publication["evaluation"]) == (1, "announced", "done")
    assert await db.count("Step", {}) == 0
    assert await db.count("Task", {"status": "ready", "purpose": "train"}) == 4
    lineage = await lineages.current(db)
    assert lineage is not None
    assert lineage.plan["hold"] == "", "samplers work on"


async def ended(db: Database, classes: list[str], purpose: str = "train") -> None:
    now = datetime.now(UTC)
    records = [
        Record(
            id=f"{purpose}{at}",
            task=purpose,
            seat=at,
            purpose=purpose,
            status="failed",
            outcome_class=kind,
            finished_at=now + timedelta(seconds=at),
        )
        for at, kind in enumerate(classes)
    ]
    await db.insert_many("Record", to_bson(records))


async def test_no_step_is_taken_while_most_episodes_fail(db: Database) -> None:
    await ended(db, ["infrastructure"] * 30 + ["policy"] * 10)
    assert await batch_selection.validity(db) == (None, ""), "too few to judge by"
    await db.delete_many("Record", {})
    await ended(db, ["policy"] * 40 + ["infrastructure"] * 60)
    found = await batch_selection.validity(db)
    tried = "a few are tried every minute, and training continues once they succeed"
    silent = f"60 of the last 100 records failed for infrastructure; {tried}"
    assert (found.share, found.hold) == (0.4, silent)
    failed = await db.find("Record", {"outcome_class": "infrastructure"})
    for at, one in enumerate(failed):
        error = f"Lost: line {at}" if at % 3 == 0 else "AttributeError: no\nattribute"
        await db.update_many("Record", {"_id": one["_id"]}, {"$set": {"error": error}})
    hold = (await batch_selection.validity(db)).hold
    assert "failed for infrastructure, most often: AttributeError: no attribute; a few" in hold, (
        "the report names the repair"
    )
    await db.update_many("Record", {}, {"$set": {"finished_at": datetime.now(UTC) - timedelta(seconds=700)}})
    assert await batch_selection.validity(db) == (None, ""), "old attempts do not count"
    await db.delete_many("Record", {})
    await ended(db, ["policy"] * 40 + ["infrastructure"] * 60)
    await db.update_many("Record", {"outcome_class": "infrastructure"}, {"$set": {"free": True}})
    assert await batch_selection.validity(db) == (None, ""), "failures on an open breaker do not count"
    await db.delete_many("Record", {})
    await ended(db, ["infrastructure"] * 100 + ["policy"] * 150)
    assert await batch_selection.validity(db) == (0.75, ""), "only recent ones count"


async def test_a_hold_ends_once_the_newest_attempts_succeed(db: Database) -> None:
    await ended(db, ["infrastructure"] * 100 + ["policy"] * 11 + ["infrastructure"] * 5)
    assert (await batch_selection.validity(db)).hold
    await db.delete_many("Record", {})
    await ended(db, ["infrastructure"] * 100 + ["policy"] * 12 + ["infrastructure"] * 4)
    found = await batch_selection.validity(db)
    assert found.share is not None
    assert found.share < 0.2, "the share itself is not changed"
    assert found.hold == ""
    await db.delete_many("Record", {})
    await ended(db, ["policy"] * 16 + ["infrastructure"] * 34)
    assert (await batch_selection.validity(db)).hold, "it is the newest that count"


async def test_evaluations_that_fail_hold_back_no_step(db: Database) -> None:
    await ended(db, ["policy"] * 60)
    await ended(db, ["infrastructure"] * 150, purpose="eval")
    assert await batch_selection.validity(db) == (1.0, "")
    counted = await attempt_statistics.since(db, None)
    assert (counted["attempts"], counted["infrastructure_share"]) == (60, 0)


async def test_attempts_that_were_cut_off_are_counted_whether_a_step_trains_them_or_not(db: Database) -> None:
    await ended(db, ["policy"] * 30 + ["limit"] * 30)
    await db.update_many("Record", {"outcome_class": "limit"}, {"$set": {"outcome": "token_limit"}})
    assert (await attempt_statistics.since(db, None))["cut_off_share"] == 0.5


async def test_unknown_tools_are_counted_under_one_name(db: Database) -> None:
    names = [("shop", "lookup"), ("", "lookuplookup"), ("", "no\0name"), ("", "a.b")]
    made = [ToolCall(id=f"r/000.{at}", server=server, tool=tool) for at, (server, tool) in enumerate(names)]
    call = DispatchedSamplingTask(id="r/000", record="r", task="t", tool_calls=made)
    await db.insert_many("DispatchedSamplingTask", [to_bson(call)])
    counted = await attempt_statistics.of_tools(db, ["r"])
    assert {name: share.calls for name, share in counted.items()} == {"shop/lookup": 1, "unknown": 3}


async def test_skipped_weights_stay_for_their_evaluation(db: Database, tmp_path: Path) -> None:
    for version in range(1, 5):
        taken = await publications.take_number(db, parent=version - 1 or None, lineage="a", step=version)
        (tmp_path / taken.path).mkdir(parents=True)
        await publications.announce(db, version, "a", {})
        if version == 2:
            await evaluations.want(db, version)

    async def left() -> list[int]:
        await disk_retention.tidy_weights(db, tmp_path, 4, keep=2)
        return [version for version in range(1, 5) if (tmp_path / publications.path_of(version)).exists()]

    assert await left() == [2, 3, 4]
    await evaluations.finish(db, 2, {})
    assert await left() == [3, 4]
