"""The trainer on a real store: what it trains, publishes and saves, and its recovery from a death at any point."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.engines.embedded.model_loading import load_verified
from agentrl.engines.manifest import read
from agentrl.policies.status_tables import StepStatus
from agentrl.steward import group_upkeep
from agentrl.steward.settings import from_config
from agentrl.store import accounting, lineages, publications
from agentrl.store import checkpoints as stored_checkpoints
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.steps import LineageClosedError
from agentrl.store.weight_documents import Lineage
from agentrl.tracing import spans
from agentrl.tracing.spans import Span
from agentrl.training import checkpoints, waiting, weight_files
from agentrl.training import trainer as training
from agentrl.training.learner import Learner
from agentrl.training.precision import FIRST_SCALE
from agentrl.training.trainer import DivergedError
from tests.store import flow
from tests.training.rollouts import after, closed_groups, configuration, end_of_data, task_statuses, trainer
from tests.waiting import aeventually

PLACES: dict[str, tuple[object, str]] = {
    "weights written": (weight_files, "write_weights"),
    "leased": (training.steps, "lease"),
    "optimized": (Learner, "train"),
    "committed": (training.steps, "commit"),
    "checkpoint renamed": (checkpoints, "write_checkpoint"),
}
"""The last act before the death."""
DEATHS = (
    ("weights written", 1, 1),
    ("leased", 1, 1),
    ("optimized", 2, 1),
    # These deaths are after the checkpoint of step 2, except the one that interrupts its write.
    ("leased", 3, 1),
    ("optimized", 3, 1),
    ("optimized", 3, 2),
    ("committed", 3, 1),
    ("committed", 3, 2),
    ("weights written", 4, 1),
    ("checkpoint renamed", 1, 1),
    ("checkpoint renamed", 2, 1),
)
"""The point of the death, the occurrence of that point at which the trainer dies, and the optimizer steps per step."""


class Died(BaseException):
    """Like kill -9: this trainer does nothing after it."""


def weights(run_dir: Path, version: int) -> dict[str, torch.Tensor]:
    return load_file(run_dir / publications.path_of(version) / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


async def committed(db: Database) -> list[dict[str, object]]:
    return await db.find("Step", {"status": StepStatus.COMMITTED}, sort=[("step", 1)])


async def newest(db: Database) -> int:
    found = await publications.newest(db)
    assert found is not None
    return found.id


async def balanced(db: Database) -> None:
    assert (await accounting.account(db)).problems == ()


async def test_it_trains_whole_groups_oldest_first_and_publishes_after_each_step(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 6)
    seen: list[Span] = []
    spans.set_exporter(seen.append)
    try:
        await trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path).run()
    finally:
        spans.set_exporter(None)
    whole = {span.context.span_id: span.attributes["agentrl.step"] for span in seen if span.name == "step"}
    assert list(whole.values()) == [1, 2, 3]
    assert [whole[span.parent] for span in seen if span.name == "compute step"] == [1, 2, 3]
    assert [span.parent for span in seen if span.name == "compute publication"] == [""] * 4
    steps = await committed(db)
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [name for step in steps for name in step["tasks"]] == [  # type: ignore[attr-defined]
        task["_id"] for task in await db.find("Task", {}, sort=[("admitted_order", 1)])
    ]
    assert await task_statuses(db) == ["trained"] * 6
    assert [step["base_version"] for step in steps] == [1, 2, 3]
    assert await publications.parents(db) == {1: None, 2: 1, 3: 2, 4: 3}
    metrics = steps[2]["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["reward_mean"] == 0.5
    assert metrics["records"] == 4
    assert metrics["age_mean"] == 2
    assert metrics["packed_tokens"] < metrics["unpacked_tokens"]
    await balanced(db)


async def test_engines_take_what_it_publishes(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 2)
    await trainer(db, configuration(tmp_path, tiny, steps=1), tmp_path).run()
    for version in (1, 2):
        document = await flow.publication(db, version)
        manifest = read(tmp_path / document.path)
        _, agreement = load_verified(tmp_path / document.path, version, manifest)
        assert agreement.tokens > 200
        assert agreement.largest < 1e-4
        assert set(document.manifest["files"]) >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert not same(weights(tmp_path, 1), weights(tmp_path, 2))


async def test_training_in_float16_is_published_in_it_and_shows_its_scale(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 2)
    config = configuration(tmp_path, tiny, steps=1, precision="float16", publication={})
    mine = trainer(db, config, tmp_path)
    await mine.run()
    directory = tmp_path / (await flow.publication(db, 2)).path
    assert json.loads((directory / "config.json").read_text())["dtype"] == "float16"
    _, agreement = load_verified(directory, 2, read(directory))
    assert agreement.largest < 1e-2
    (step,) = await committed(db)
    shown = mine._unit._state.take_metrics()
    for metrics in (step["metrics"], shown):
        assert isinstance(metrics, dict)
        assert (metrics["loss_scale"], metrics["loss_scale_overflows"]) == (FIRST_SCALE, 0)


@pytest.mark.parametrize(("place", "time", "cut"), DEATHS)
async def test_after_a_death_anywhere_the_next_trainer_reaches_the_same_weights(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, time: int, cut: int
) -> None:
    config = configuration(tmp_path, tiny, steps=3, optimizer_steps=cut)
    await closed_groups(db, 6)
    passed = 0

    def die() -> None:
        nonlocal passed
        passed += 1
        if passed == time:
            raise Died

    after(monkeypatch, *PLACES[place], die)
    with pytest.raises(BaseExceptionGroup):
        await trainer(db, config, tmp_path).run()
    monkeypatch.undo()
    before = max(await publications.parents(db))
    await trainer(db, config, tmp_path, life=2).run()
    assert await task_statuses(db) == ["trained"] * 6
    assert [task["trained_count"] for task in await db.find("Task", {})] == [1] * 6
    steps = await committed(db)
    assert len(steps) == 3
    assert len({name for step in steps for name in step["tasks"]}) == 6  # type: ignore[attr-defined]
    await balanced(db)
    last = await newest(db)
    assert last > before
    assert same(weights(tmp_path, last), await undisturbed(db, tiny, tmp_path, cut))


_undisturbed: dict[int, dict[str, torch.Tensor]] = {}


async def undisturbed(db: Database, tiny: Path, tmp_path: Path, cut: int = 1) -> dict[str, torch.Tensor]:
    """The weights after the same data without a death; computed once for all tests."""
    if cut not in _undisturbed:
        for collection in await db.collections():
            await db.delete_many(collection, {})
        await closed_groups(db, 6)
        alone = tmp_path / "undisturbed"
        alone.mkdir()
        await trainer(db, configuration(alone, tiny, steps=3, optimizer_steps=cut), alone).run()
        _undisturbed[cut] = weights(alone, 4)
    return _undisturbed[cut]


def tied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if name != "lm_head.weight"}


async def test_a_damaged_checkpoint_is_skipped_for_good(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 8)
    await trainer(db, configuration(tmp_path, tiny, steps=4), tmp_path).run()
    older, newer = await db.find("Checkpoint", {}, sort=[("step", 1)])
    assert (older["step"], newer["step"]) == (2, 4)
    file = tmp_path / newer["path"] / "optimizer.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    await trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path, life=2).run()
    rolled_back = await db.find("Step", {"status": StepStatus.ROLLED_BACK}, sort=[("step", 1)])
    assert [step["step"] for step in rolled_back] == [3, 4]
    lineage = await lineages.current(db)
    assert lineage is not None
    assert lineage.parent_checkpoint == older["_id"]
    # The checkpoint is readable again, but training has continued from an older one.
    file.write_bytes(whole)
    await trainer(db, configuration(tmp_path, tiny, steps=4), tmp_path, life=3).run()
    lineage = await lineages.current(db)
    assert lineage is not None
    assert "trainer-0.2" in lineage.parent_checkpoint
    assert await task_statuses(db) == ["trained"] * 8
    await balanced(db)


async def test_a_run_without_checkpoint_begins_with_the_same_weights_under_a_new_version(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(tmp_path, tiny, steps=1, checkpoint_every=100)
    await closed_groups(db, 2)

    def die() -> None:
        raise Died

    after(monkeypatch, training.steps, "commit", die)
    with pytest.raises(BaseExceptionGroup):
        await trainer(db, config, tmp_path).run()
    monkeypatch.undo()
    await trainer(db, config, tmp_path, life=2).run()
    assert await publications.parents(db) == {1: None, 2: 1, 3: 2}
    assert same(weights(tmp_path, 1), weights(tmp_path, 2))
    assert await task_statuses(db) == ["trained"] * 2
    await balanced(db)


LOST: dict[str, tuple[tuple[object, str], int]] = {
    "the first announcement": ((publications, "announce"), 1),
    "an announcement": ((publications, "announce"), 2),
    "the number of a version": ((publications, "take_number"), 2),
    "a checkpoint": ((stored_checkpoints, "complete"), 1),
    "the first version": ((lineages, "set_first_version"), 1),
    "the last checkpoint": ((stored_checkpoints, "complete"), 2),
}


@pytest.mark.parametrize("lost", LOST)
async def test_a_lost_confirmation_is_retried(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(waiting, "STORE_AGAIN_S", 0.0)
    await closed_groups(db, 6)
    place, time = LOST[lost]
    passed = 0

    def away() -> None:
        nonlocal passed
        passed += 1
        if passed == time:
            raise StoreUnavailableError("MongoDB did not answer.")

    after(monkeypatch, *place, away)
    await trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path).run()
    assert passed > time
    assert await task_statuses(db) == ["trained"] * 6
    assert [one["step"] for one in await db.find("Checkpoint", {"status": "complete"}, sort=[("step", 1)])] == [2, 3]
    announced = await db.find("Publication", {"announced_at": {"$type": "date"}}, sort=[("_id", 1)])
    assert [one["parent"] for one in announced] == [None, *(one["_id"] for one in announced[:-1])]
    assert len(announced) == 4, "an announced version does not change"
    await balanced(db)


async def test_a_drain_while_the_store_is_away_still_ends_with_a_checkpoint(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STORE_AGAIN_S", 0.0)
    await closed_groups(db, 6)
    mine = trainer(db, configuration(tmp_path, tiny, checkpoint_every=100), tmp_path)
    begun = 0

    def away() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise StoreUnavailableError("MongoDB did not answer.")

    after(monkeypatch, stored_checkpoints, "begin", away)
    after(monkeypatch, training.steps, "commit", lambda: mine._unit._flags.drain())
    await mine.run()
    assert len(await committed(db)) == 1
    (checkpoint,) = await db.find("Checkpoint", {"status": "complete"})
    assert (checkpoint["step"], checkpoint["version"]) == (1, 2)


async def test_groups_past_the_bound_are_sampled_again(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 4)
    await end_of_data(db)
    running = asyncio.create_task(trainer(db, configuration(tmp_path, tiny, bound=0, steps=5), tmp_path).run())
    try:

        async def sampled_again() -> bool:
            return await task_statuses(db) == ["trained", "trained", "queued", "queued"]

        await aeventually(sampled_again)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert [task["reason"] for task in await db.find("Task", {"status": "queued"})] == ["stale"] * 2
    await balanced(db)


async def test_a_paused_trainer_takes_no_step_and_still_publishes_what_it_trained(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 6)
    mine = trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path)
    after(monkeypatch, training.steps, "commit", lambda: mine._unit._flags.pause(True))

    async def published() -> bool:
        return set(await publications.parents(db)) == {1, 2}

    async with asyncio.timeout(60), asyncio.TaskGroup() as together:
        running = together.create_task(mine.run())
        await aeventually(published)
        assert len(await committed(db)) == 1
        assert sorted(await task_statuses(db)) == ["ready"] * 4 + ["trained"] * 2
        # An evaluation that ends meanwhile, here by its deadline, is reported.
        mine._evaluator._requested[2] = float("-inf")
        await aeventually(lambda: not mine._evaluator.waits_for)
        monkeypatch.undo()
        mine._unit._flags.pause(False)
        await running
    assert len(await committed(db)) == 3
    await balanced(db)


async def test_a_batch_that_is_not_finite_changes_no_weights_and_is_never_trained_again(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 6, log_prob=float("nan"))
    mine = trainer(db, configuration(tmp_path, tiny), tmp_path)
    with pytest.raises(DivergedError, match="3 batches"):
        await mine.run()
    assert await task_statuses(db) == ["dead"] * 6
    assert await committed(db) == []
    assert same(tied(mine.learner.model.state_dict()), weights(tmp_path, 1))
    await balanced(db)


async def test_groups_without_signal_are_consumed_by_an_empty_step(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 4, scores=(1.0, 1.0))
    await end_of_data(db)
    mine = trainer(db, configuration(tmp_path, tiny), tmp_path)
    await mine.run()
    (step,) = await committed(db)
    assert step["empty"] is True
    account = mine._unit._state
    assert "complete: no step trained anything (" in account.status
    assert account.take_metrics()["steps_without_training"] == 1
    assert await task_statuses(db) == ["filtered"] * 4
    assert await publications.parents(db) == {1: None}, "nothing was trained, so nothing is published"
    await balanced(db)


async def test_a_complete_run_that_restarts_samples_nothing(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 6)
    await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path).run()
    holds = []
    begun, report_plan = lineages.begin, lineages.report_plan

    async def begin(*arguments: Any, **named: Any) -> Lineage:
        lineage = await begun(*arguments, **named)
        holds.append(lineage.plan["hold"])
        return lineage

    async def report(database: Database, lineage: str, plan: Mapping[str, Any]) -> bool:
        holds.append(plan["hold"])
        return await report_plan(database, lineage, plan)

    monkeypatch.setattr(lineages, "begin", begin)
    monkeypatch.setattr(lineages, "report_plan", report)
    await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path, life=2).run()
    assert set(holds) == {"complete: all 2 steps are done"}
    holds.clear()
    await trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path, life=3).run()
    assert holds[:2] == ["complete: all 2 steps are done", ""], "with more steps to take it goes on"
    await balanced(db)


async def test_at_the_end_of_the_data_the_rest_is_trained_and_saved(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 3)
    await end_of_data(db)
    mine = trainer(db, configuration(tmp_path, tiny, checkpoint_every=100), tmp_path)
    await mine.run()
    assert "trained anything" not in mine._unit._state.status
    assert mine._unit._state.take_metrics()["steps_without_training"] == 0
    assert [len(step["tasks"]) for step in await committed(db)] == [2, 1]  # type: ignore[arg-type]
    (checkpoint,) = await db.find("Checkpoint", {"status": "complete"})
    assert (checkpoint["step"], checkpoint["version"]) == (2, 3)
    await balanced(db)


async def test_a_waiting_trainer_reads_groups_only_when_their_number_changes(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[None] = []
    looks: list[None] = []
    after(monkeypatch, training.steps, "count_ready", lambda: counts.append(None))
    after(monkeypatch, training.batch_selection, "look", lambda: looks.append(None))
    monkeypatch.setattr(training, "WHOLE_LOOK_EVERY_S", 3600.0)
    await closed_groups(db, 1)
    running = asyncio.create_task(trainer(db, configuration(tmp_path, tiny, steps=1), tmp_path).run())
    await aeventually(lambda: len(counts) >= 5)
    assert len(looks) == 1
    await end_of_data(db)
    monkeypatch.setattr(training, "WHOLE_LOOK_EVERY_S", 0.0)
    await running
    assert [len(step["tasks"]) for step in await committed(db)] == [1]  # type: ignore[arg-type]


async def test_at_the_end_of_the_data_the_trainer_waits_for_groups_that_train_again(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 2)
    await end_of_data(db)
    config = configuration(tmp_path, tiny, max_trained_count=2)

    async def give_back() -> None:
        while True:
            await asyncio.sleep(0.5)
            await group_upkeep.retrain(db, from_config(config))

    steward = asyncio.create_task(give_back())
    try:
        await trainer(db, config, tmp_path).run()
    finally:
        steward.cancel()
    assert [task["trained_count"] for task in await db.find("Task", {})] == [2, 2]
    assert (await accounting.account(db, max_trained_count=2)).problems == ()


async def test_a_trainer_that_was_replaced_ends_without_a_commit(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 4)
    config = configuration(tmp_path, tiny, steps=2)
    original = training.steps.commit

    async def overtaken(database: Database, step: str, *arguments: object, **options: object) -> bool:
        await lineages.begin(database, "trainer-0.2", parent_checkpoint="", after_step=0)
        return await original(database, step, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(training.steps, "commit", overtaken)
    with pytest.raises(LineageClosedError):
        await trainer(db, config, tmp_path).run()
    assert await committed(db) == []
    assert await task_statuses(db) == ["ready"] * 4
    await balanced(db)


async def test_unneeded_files_of_versions_and_checkpoints_are_removed(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 16)
    config = configuration(tmp_path, tiny, steps=8, checkpoint_every=1, keep_checkpoints=2)
    (tmp_path / "weights").mkdir()
    shutil.copytree(tiny, tmp_path / "weights" / ".unfinished-v000001")
    await trainer(db, config, tmp_path).run()
    versions = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert versions[-1] == "v000009"
    assert len(versions) <= 5
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert await db.count("Checkpoint", {"status": "deleted"}) == 6
