"""The steward at work on a real database: it fills, admits, redraws and closes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.images.sources import Limits
from agentrl.policies.admission_capacity import Counts
from agentrl.policies.curriculum import Stage, Until
from agentrl.policies.outcomes import Outcome
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.policies.status_tables import TaskStatus
from agentrl.steward import admission, group_upkeep
from agentrl.steward import steward as steward_rounds
from agentrl.steward.epochs import Source
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.steward.steward import Steward
from agentrl.store import (
    accounting,
    admission_counts,
    claims,
    evaluations,
    lineages,
    publications,
    retraining,
    steps,
    tasks,
)
from agentrl.store.database import Database, Plain
from agentrl.store.datasets import Row
from agentrl.store.documents import Task, load
from agentrl.tokens import image_marks
from tests.store.flow import admit, claim_one, commit, end, queue, ready_tasks, run_group, sampler, step_of
from tests.waiting import PATIENCE_S, aeventually


def rows(count: int, *, prefix: str = "item") -> list[Row]:
    return [Row(query=f"{prefix} {number}", answer=str(number), where=f"line {number}") for number in range(count)]


def settings(**changes: object) -> StewardSettings:
    plain: dict[str, object] = {
        "environments": {"shop": EnvironmentSettings(servers=("shop",))},
        "n": 4,
        "groups": 2,
        "bound": 1,
        "max_in_flight": 64,
    }
    return StewardSettings(**(plain | changes))  # type: ignore[arg-type]


def steward(db: Database, number: int = 1, *, train: int = 100, held_out: int = 0, **changes: object) -> Steward:
    sources = {"shop": Source.of(rows(train), rows(held_out, prefix="held out"))}
    made = Steward(
        db,
        settings(**changes),
        sources,
        incarnation=f"steward-{number}.1",
        unit=f"steward-{number}",
        run_dir=Path.cwd(),
    )
    made._kept_house_at = float("-inf")
    return made


async def full_round(made: Steward) -> None:
    """A round with everything in it, whatever the clock says."""
    made._kept_house_at = float("-inf")
    await made.round()


async def test_a_round_fills_the_queue_and_admits_whole_groups_up_to_the_bound(db: Database) -> None:
    made = steward(db)
    await made.start()
    done = await made.round()
    # (bound + 1) * groups * n = 16 records, 4 groups.
    assert done.admitted.groups == 4
    assert done.queued == 100
    assert await db.count("Record", {"status": "open"}) == 16
    again = await made.round()
    assert (again.admitted.groups, again.admitted.why_not) == (0, "there is no room")
    [task] = await db.find("Task", {"status": "admitted"}, sort=[("admitted_order", 1)], limit=1)
    assert task["servers"] == ["shop"]
    assert task["sampling"] == {"temperature": 1.0, "top_p": 1.0, "max_tokens_per_call": 1024, "context": 8192}
    assert (await accounting.account(db)).problems == ()


async def test_no_round_waits_for_an_image_whose_address_does_not_answer(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steward_rounds, "QUEUED_WITHIN_S", 0.05)
    asked, answers = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answers.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\npng")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        row = Row(query=image_marks.mark(f"{address}/a.png"), where="line 1")
        made = Steward(
            db,
            settings(images=Limits(origins=(address,))),
            {"shop": Source.of([row])},
            incarnation="steward-1.1",
            unit="steward-1",
            run_dir=Path.cwd(),
        )
        await made.start()
        async with asyncio.timeout(PATIENCE_S):
            done = await made.round()
            assert (done.queued, done.queueing) == (0, True)
            assert "stores the images of new tasks" in done.sentence()
            await asked.wait()
            await full_round(made)
        answers.set()

        async def queued() -> int:
            made._kept_house_at = float("-inf")
            return (await made.round()).queued

        assert await aeventually(queued) == 1
        [task] = await db.find("Task", {})
        assert all(map(image_marks.is_stored, image_marks.names_in(task["query"])))
        # What is under way ends with the steward.
        answers.clear()
        await db.delete_many("Task", {})
        await db.delete_many("Epoch", {})
        await full_round(made)
        async with asyncio.timeout(PATIENCE_S):
            await made.stop()
        answers.set()


async def test_groups_without_signal_hold_no_capacity_and_ready_ones_do(db: Database) -> None:
    made = steward(db)
    await made.start()
    await made.round()
    owner = await sampler(db)
    assert await run_group(db, [1.0] * 4, owner=owner) == "ready"
    assert (await made.round()).admitted.groups == 1
    assert await run_group(db, [1.0, 0.0, 0.0, 0.0], owner=owner) == "ready"
    assert (await made.round()).admitted.groups == 0


async def test_what_the_trainer_tells_counts_more_than_the_file(db: Database) -> None:
    made = steward(db)
    await made.start()
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    assert await lineages.report_plan(db, lineage.id, {"bound": 0, "groups": 1, "publish_every": 1})
    assert (await made.round()).admitted.groups == 1
    assert await lineages.report_plan(db, lineage.id, {"bound": 1, "groups": 2, "hold": "the trainer holds"})
    held = (await made.round()).admitted
    assert (held.groups, held.why_not) == (0, "the trainer holds")


async def test_while_most_fail_a_few_are_tried_every_minute(db: Database) -> None:
    made = steward(db, groups=8)
    await made.start()
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    holds = {"bound": 1, "groups": 8, "hold": "most fail", "trial": True}
    assert await lineages.report_plan(db, lineage.id, holds)
    assert (await made.round()).admitted.groups == 0, "as if one had been admitted this moment"
    assert await lineages.report_plan(db, lineage.id, holds | {"groups": 1, "hold": "", "trial": False})
    assert (await made.round()).admitted.groups == 2
    assert await lineages.report_plan(db, lineage.id, holds)
    an_hour_ago = await db.now() - timedelta(hours=1)
    await db.update_many("Task", {"status": "admitted"}, {"$set": {"admitted_at": an_hour_ago}})
    held = (await made.round()).admitted
    assert (held.groups, held.why_not, held.trial) == (0, "most fail", "most fail"), "some are under way"
    owner = await sampler(db)
    for _ in range(2):
        assert await run_group(db, [1.0, 0.0, 0.0, 0.0], owner=owner) == "ready"
    made.paused = True
    assert (await made.round()).admitted.groups == 0
    made.paused = False
    tried = (await made.round()).admitted
    assert (tried.groups, tried.trial) == (4, "most fail"), "16 records"
    for _ in range(4):
        assert await run_group(db, [1.0, 0.0, 0.0, 0.0], owner=owner) == "ready"
    assert (await made.round()).admitted.groups == 0, "it is no minute ago"
    assert (await accounting.account(db)).problems == ()


async def test_two_stewards_at_once_admit_no_more_than_one(db: Database) -> None:
    both = [steward(db, 1), steward(db, 2)]
    for made in both:
        await made.start()
    for _ in range(4):
        await asyncio.gather(*(full_round(made) for made in both))
    assert await db.count("Record", {}) == 16
    assert await db.count("Task", {"status": "admitted"}) == 4
    assert await db.count("Task", {}) == 100
    assert (await accounting.account(db)).problems == ()


@pytest.mark.parametrize("other", ["shop", "bank"])
async def test_what_another_steward_admits_after_the_count_is_not_admitted_over(
    db: Database, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Also where the two of them would take from different environments, so that neither has the other's task."""
    both = settings(
        environments={"shop": EnvironmentSettings(), "bank": EnvironmentSettings()}, max_in_flight=4, groups=1, bound=0
    )
    for environment in both.environments:
        await queue(db, 1, environment=environment)
    count, (theirs,) = admission_counts.of_admission, await db.find("Task", {"environment": other})

    async def overtaken(database: Database) -> Counts:
        counted = await count(database)
        assert await admit(database, load(Task, theirs))
        return counted

    monkeypatch.setattr(admission_counts, "of_admission", overtaken)
    assert (await admission.admit(db, both)).groups == 0
    assert await db.count("Task", {"status": "admitted"}) == 1
    monkeypatch.undo()
    await db.update_one("Task", {"_id": theirs["_id"]}, {"$set": {"status": "dead"}})
    await db.delete_many("Record", {})
    assert (await admission.admit(db, both)).groups == 1, "the next turn has another place"


@pytest.mark.parametrize("chance", [1, 2, 3])
async def test_stewards_that_are_killed_between_any_two_writes_leave_nothing_half_done(
    db: Database, chance: int
) -> None:
    """Two at once; each round of one of them is cut off after a random time, while samplers work and fail."""
    dice = random.Random(chance)
    owner = await sampler(db)
    for life in range(12):
        both = [steward(db, life * 2 + number, train=12, rounds_max=2) for number in (1, 2)]
        for made in both:
            await made.start()
        rounds = [asyncio.create_task(full_round(made)) for made in both]
        if life % 3 != 2:
            await asyncio.wait(rounds, timeout=dice.random() * 0.08)
            dice.choice(rounds).cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
        await play(db, owner, dice)
    calm = steward(db, 99, train=12, rounds_max=2)
    await calm.start()
    for _ in range(200):
        await full_round(calm)
        await play(db, owner, dice)
        await drain_ready(db)
        if await tasks.exhausted(db, {"shop": 1}):
            break
    assert await tasks.exhausted(db, {"shop": 1})
    account = await accounting.account(db)
    assert account.problems == ()
    assert sum(account.tasks["train"].values()) == 12
    assert set(account.tasks["train"]) <= {"trained", "filtered", "dead"}
    for task in await db.find("Task", {}):
        attempts_of_seats = Counter(
            record["seat"] for record in await db.find("Record", {"task": task["_id"], "round": task["round"]})
        )
        assert max(attempts_of_seats.values()) <= 3


async def play(db: Database, owner: str, dice: random.Random) -> None:
    """Claim some records and end them in one way or another."""
    for _ in range(dice.randrange(12)):
        claim = await claim_one(db, owner)
        if claim is None:
            return
        if dice.random() < 0.2:
            await claims.fail(db, claim.record.id, owner, Outcome.ENGINE_FAILED)
        else:
            await end(db, claim, dice.choice([0.0, 1.0]))


async def drain_ready(db: Database) -> None:
    """A trainer that takes whatever is ready."""
    ready = await steps.ready(db)
    if not ready:
        return
    lineage = await lineages.current(db) or await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    number = await db.count("Step", {"status": "committed"}) + 1
    training = [group.task for group in ready if group.task.signal]
    flat = [group.task for group in ready if not group.task.signal]
    leased = await steps.lease(db, step_of(lineage.id, number, training, filtered=flat))
    assert leased is not None
    assert await steps.commit(db, leased.id, {})


async def test_failed_attempts_are_drawn_again_twice_and_then_the_seat_stays_empty(db: Database) -> None:
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    owner = await sampler(db)
    for attempt in (1, 2, 3):
        claimed = [await claim_one(db, owner) for _ in range(4 if attempt == 1 else 1)]
        for claim in claimed:
            assert claim is not None
            if claim.record.seat == 0:
                assert claim.record.attempt == attempt
                assert await claims.fail(db, claim.record.id, owner, Outcome.TOOL_SERVER_FAILED)
            else:
                await end(db, claim, float(claim.record.seat % 2))
        await asyncio.gather(group_upkeep.open_next_attempts(db), group_upkeep.open_next_attempts(db))
        assert await db.count("Record", {"status": "open"}) == (attempt < 3)
    assert await claim_one(db, owner) is None
    assert (await group_upkeep.close(db, made.settings)) == {"ready": 1}
    [task] = await db.find("Task", {"status": "ready"})
    assert task["baseline"]["valid"] == 3


async def test_attempts_on_an_open_breaker_cost_nothing(db: Database) -> None:
    made = steward(db, groups=1, bound=0)
    await made.start()
    await made.round()
    owner = await sampler(db)
    for attempt in range(1, 7):
        claim = await claim_one(db, owner)
        assert claim is not None
        others = [await claim_one(db, owner) for _ in range(3)] if attempt == 1 else []
        assert claim.record.attempt == attempt
        await claims.fail(db, claim.record.id, owner, Outcome.TOOL_SERVER_FAILED, free=True)
        assert await group_upkeep.open_next_attempts(db) == 1
        assert all(others)


async def test_an_evaluation_pins_its_version_and_needs_no_capacity(db: Database) -> None:
    rule = SamplingRule(temperature=0.6, top_p=0.95, top_k=20, presence_penalty=1.5)
    made = steward(db, held_out=3, evaluation_samples=2, max_in_flight=16, evaluation_rule=rule)
    await made.start()
    await full_round(made)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    version = (await publications.take_number(db, parent=None, lineage=lineage.id, step=0)).id
    assert await evaluations.want(db, version)
    assert not await evaluations.complete(db, version)
    await full_round(made)
    assert await db.count("Record", {"purpose": "eval", "status": "open"}) == 6
    assert (await admission_counts.of_admission(db)).in_flight == 16
    for _ in range(3):
        for score in (1.0, 0.0):
            claim = await claim_one(db, "sampler-0.1")
            assert claim is not None
            assert claim.task.version == version
            limits = {"max_tokens_per_call": 1024, "context": 8192}
            assert claim.task.sampling == limits | rule.kept(), "what is neutral is not stored"
            await end(db, claim, score)
    await full_round(made)
    assert await evaluations.complete(db, version)
    [result] = await evaluations.results(db, version)
    assert (result.tasks, result.ended, result.mean, result.passed) == (3, 3, 0.5, 1.0)
    assert await evaluations.finish(db, version, {"mean": result.mean}) == 3
    assert [each["evaluated"] for each in await db.find("Publication", {"_id": version})] == [{"mean": 0.5}]
    assert await steps.ready(db) == [], "evaluations are never leased"
    await evaluations.want(db, version)
    assert await evaluations.wanted(db) == []


async def test_a_frozen_run_is_bounded_by_its_concurrency_alone(db: Database) -> None:
    made = steward(db, frozen=True, groups=1, bound=0, max_in_flight=12)
    await made.start()
    assert (await made.round()).admitted.groups == 3


def test_environments_are_mixed_by_weight_without_memory() -> None:
    weights = {"shop": 3.0, "math": 1.0}
    order = [admission.chosen(weights, place) for place in range(400)]
    assert Counter(order) == pytest.approx({"shop": 300, "math": 100}, abs=4)
    longest = max(len(run) for run in "".join(name[0] for name in order).split("m"))
    assert longest <= 5


async def test_a_stage_ends_by_what_was_measured_in_it_and_never_comes_back(db: Database) -> None:
    both = {"shop": EnvironmentSettings(), "math": EnvironmentSettings()}
    stages = (Stage({"shop": 1.0}, Until("shop", score=0.5, groups=2)), Stage({"math": 3.0, "shop": 1.0}))

    async def started(number: int) -> Steward:
        made = steward(db, number, environments=both, stages=stages)
        made._sources = {name: Source.of(rows(20, prefix=name)) for name in both}
        await made.start()
        await full_round(made)
        return made

    async def measured(mean: float) -> None:
        admitted: Plain = {"status": TaskStatus.ADMITTED}
        await db.update_many("Task", admitted, {"$set": {"baseline": {"mean": mean, "std": 0.1, "valid": 4}}})

    async def next_environments(made: Steward) -> set[str]:
        now = made.settings.changed(stage=made.stage)
        return {task.environment for task in await admission._queue(db, now, {}, 1)}

    made = await started(1)
    assert await db.distinct("Task", "environment", {"status": TaskStatus.ADMITTED}) == ["shop"]
    await measured(0.4)
    await full_round(made)
    assert (made.stage, await next_environments(made)) == (0, {"shop"})
    await measured(0.6)
    await full_round(made)
    assert (made.stage, await next_environments(made)) == (1, {"shop", "math"})
    await measured(0.1)
    assert (await started(2)).stage == 1
    (kept,) = await db.find("Curriculum", {})
    assert [each["why"] for each in kept["passed"]] == ["shop has 0.6 in its last 2 groups, and 0.5 was wanted"]
    # What a stage leaves out comes when nothing else is left.
    await db.update_many("Task", {"environment": "shop", "status": TaskStatus.QUEUED}, {"$set": {"status": "dead"}})
    made.stage = 0
    assert await next_environments(made) == {"math"}


def test_rules_that_could_not_be_followed_are_refused() -> None:
    with pytest.raises(ConfigError):
        settings(max_in_flight=3)
    with pytest.raises(ConfigError):
        settings().changed(n=1)
    with pytest.raises(ConfigError):
        settings(n=8, groups=1, bound=0, max_in_flight=4)


async def test_a_trained_task_trains_again_while_it_is_fresh_and_no_sooner_than_it_may(db: Database) -> None:
    [task] = await ready_tasks(db, 1)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    for parent in (None, 1):
        taken = await publications.take_number(db, parent=parent, lineage=lineage.id, step=0)
        assert await publications.announce(db, taken.id, lineage.id, {})
    await commit(db, lineage.id, 1, [task])
    assert await group_upkeep.retrain(db, settings()) == 0, "once is enough"
    assert await group_upkeep.retrain(db, settings(max_trained_count=2, bound=0)) == 0, "it is too old"
    assert await group_upkeep.retrain(db, settings(max_trained_count=2), {"bound": 0}) == 0, "so says the trainer"
    assert await group_upkeep.retrain(db, settings(max_trained_count=2, retrain_after_s=3600)) == 0, "not yet"
    # A trainer waits for one that is only not due yet, and not for one that never comes.
    assert await retraining.candidates(db, most=2, bound=lambda _: 1) == [task.id]
    assert await retraining.candidates(db, most=2, bound=lambda _: 0) == []
    assert await group_upkeep.retrain(db, settings(max_trained_count=2)) == 1
    await commit(db, lineage.id, 2, [task])
    assert await group_upkeep.retrain(db, settings(max_trained_count=2)) == 0
    assert await retraining.candidates(db, most=2, bound=lambda _: 1) == []
