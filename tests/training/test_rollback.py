"""What the trainer saves so that a run can go back, and how it goes on from an earlier checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.errors import DiskError
from agentrl.policies.status_tables import StepStatus
from agentrl.store import accounting, checkpoints, evaluations, lineages, publications, rollbacks
from agentrl.store.database import Database
from agentrl.store.steps import LineageClosedError
from agentrl.training import outputs
from agentrl.training import trainer as training
from agentrl.training.curves import undone_by
from agentrl.training.resume import Start, take_over
from tests.store.flow import publication
from tests.training.rollouts import after, closed_groups, configuration, end_of_data, task_statuses, trainer


async def saved(db: Database) -> list[tuple[int, str]]:
    """Step and reason to be kept of each complete checkpoint."""
    found = await db.find("Checkpoint", {"status": "complete"}, sort=[("at", 1)])
    return [(one["step"], one["kept_for"]) for one in found]


async def balanced(db: Database) -> None:
    assert (await accounting.account(db)).problems == ()


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


async def test_steps_without_records_save_no_checkpoint(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 4, scores=(1.0, 1.0))
    await end_of_data(db)
    await trainer(db, configuration(tmp_path, tiny, checkpoint_every=1), tmp_path).run()
    (step,) = await db.find("Step", {"status": StepStatus.COMMITTED})
    assert step["empty"] is True
    assert await db.count("Checkpoint", {}) == 0


async def test_the_weights_before_a_scientific_change_are_kept(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 16)
    config = configuration(tmp_path, tiny, steps=8, checkpoint_every=2, keep_checkpoints=1)
    mine = trainer(db, config, tmp_path)

    def change_after_step_3() -> None:
        if mine.state.step == 3:
            mine._knobs._rate.offer(0.05)

    after(monkeypatch, training.steps, "commit", change_after_step_3)
    await mine.run()
    assert await saved(db) == [(3, "before learning_rate 0.001 -> 0.05"), (8, "")]
    kept = await rollbacks.resolve(db, "4")
    assert (kept.step, kept.settings["learning_rate"]) == (3, 0.001)


async def test_with_a_full_disk_the_newest_checkpoint_before_a_scientific_change_is_kept(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 16)
    mine = trainer(db, configuration(tmp_path, tiny, steps=8, checkpoint_every=2, keep_checkpoints=1), tmp_path)
    write = outputs.checkpoints.write_checkpoint

    def full(target: Path, *arguments: Any) -> Any:
        if target.name.startswith("step-000003."):
            raise DiskError("The disk is full.")
        return write(target, *arguments)

    def change_after_step_3() -> None:
        if mine.state.step == 3:
            mine._knobs._rate.offer(0.05)

    monkeypatch.setattr(outputs.checkpoints, "write_checkpoint", full)
    after(monkeypatch, training.steps, "commit", change_after_step_3)
    await mine.run()
    assert await saved(db) == [(2, "before learning_rate 0.001 -> 0.05"), (8, "")]
    assert (await rollbacks.resolve(db, "3")).settings["learning_rate"] == 0.001


async def test_the_next_trainer_keeps_the_best_evaluation_that_a_dead_one_did_not_keep(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 12)
    await trainer(db, configuration(tmp_path, tiny, steps=4), tmp_path).run()
    # The trainer dies after the evaluation of version 3 is finished.
    await evaluations.finish(db, 3, {"evaluation": 0.9, "evaluation_margin": 0.05})
    assert await saved(db) == [(2, ""), (4, "")]
    await trainer(db, configuration(tmp_path, tiny, steps=6, keep_checkpoints=1), tmp_path, life=2).run()
    assert await saved(db) == [(2, "best evaluation"), (6, "")]


async def test_a_rollback_starts_a_lineage_from_the_chosen_weights_and_can_be_undone(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 12)
    await trainer(db, configuration(tmp_path, tiny, steps=4), tmp_path).run()
    early, late = [await rollbacks.resolve(db, version) for version in ("3", "5")]
    assert (early.step, late.step) == (2, 4)
    await rollbacks.request(db, early, "it collapsed", by="op-1")
    await trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path, life=2).run()
    # Versions go on from the greatest number, and their parent is the version of the checkpoint.
    assert await publications.parents(db) == {1: None, 2: 1, 3: 2, 4: 3, 5: 4, 6: 3, 7: 6}
    again = weights(tmp_path / publications.path_of(6))
    assert all(torch.equal(again[name], value) for name, value in weights(tmp_path / early.path).items())
    rolled_back = await db.find("Step", {"status": StepStatus.ROLLED_BACK}, sort=[("step", 1)])
    assert [step["step"] for step in rolled_back] == [3, 4]
    newest = await lineages.current(db)
    assert newest is not None
    assert await undone_by(db, newest.id) == [3, 4]
    await balanced(db)
    await rollbacks.request(db, late, "it was not the weights", by="op-2")
    await trainer(db, configuration(tmp_path, tiny, steps=4), tmp_path, life=3).run()
    back = weights(tmp_path / publications.path_of(8))
    assert all(torch.equal(back[name], value) for name, value in weights(tmp_path / late.path).items())
    committed = await db.find("Step", {"status": StepStatus.COMMITTED}, sort=[("step", 1)])
    assert [step["step"] for step in committed] == [1, 2, 3, 4]
    await balanced(db)


async def test_rollback_is_evaluated_also_if_the_trainer_takes_over_again(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 8)
    config = configuration(tmp_path, tiny, steps=4)
    await trainer(db, config, tmp_path).run()

    async def start(life: int) -> Start:
        owner = f"trainer-0.{life}"
        return await take_over(db, config, tmp_path, owner, report=lambda line: None, on_progress=lambda: None)

    assert not (await start(2)).rolled_back
    await rollbacks.request(db, await rollbacks.resolve(db, "3"), "it collapsed", by="op-1")
    # The store is away, or the trainer dies, before it requests an evaluation.
    assert [(await start(life)).rolled_back for life in (3, 3, 4)] == [True, True, True]
    newest = await lineages.current(db)
    assert newest is not None
    await db.update_one("Publication", {"_id": 5}, {"$set": {"lineage": newest.id, "evaluation": "wanted"}})
    assert not (await start(5)).rolled_back, "the next trainer follows the evaluation"


async def test_a_damaged_target_of_a_rollback_is_replaced_by_the_one_before_it(
    db: Database, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 14)
    await trainer(db, configuration(tmp_path, tiny, steps=6, keep_checkpoints=5), tmp_path).run()
    target = await rollbacks.resolve(db, "5")
    await rollbacks.request(db, target, "it collapsed", by="op-1")
    (tmp_path / target.path / "model.safetensors").write_bytes(b"x")
    mine = trainer(db, configuration(tmp_path, tiny, steps=3), tmp_path, life=2)
    await mine.run()
    lineage = await lineages.current(db)
    assert lineage is not None
    assert lineage.parent_checkpoint.startswith("step-000002.")
    assert (await checkpoints.get(db, target.id)).damage == "model.safetensors has 1 bytes, not " + str(
        target.files["model.safetensors"].bytes
    )
    await balanced(db)


async def test_without_anything_intact_of_its_target_a_rollback_starts_from_the_newest_checkpoint(
    db: Database, tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await closed_groups(db, 10)
    await trainer(db, configuration(tmp_path, tiny, steps=4, keep_checkpoints=5), tmp_path).run()
    target = await rollbacks.resolve(db, "3")
    await rollbacks.request(db, target, "it collapsed", by="op-1")
    (tmp_path / target.path / "model.safetensors").unlink()
    await trainer(db, configuration(tmp_path, tiny, steps=5), tmp_path, life=2).run()
    lineage = await lineages.current(db)
    assert lineage is not None
    assert lineage.parent_checkpoint.startswith("step-000004.")
    assert f"{target.id}, chosen for a rollback, and all checkpoints before it are gone or damaged" in caplog.text
    assert await db.count("Step", {"status": StepStatus.ROLLED_BACK}) == 0
    await balanced(db)


async def test_checkpoints_that_the_database_does_not_know_stay(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 8)
    await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path).run()
    (there,) = (tmp_path / "checkpoints").iterdir()
    # As with an empty or restored database.
    await db.delete_many("Checkpoint", {})
    await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path, life=2).run()
    assert (there / "model.safetensors").exists()


async def test_directories_of_incomplete_checkpoints_are_removed_by_the_next_trainer(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 8)

    def die() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        after(patched, outputs.checkpoints, "write_checkpoint", die)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - a group around the interrupt
            await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path).run()
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left.name.startswith("step-000002.trainer-0.1"), "renamed, and its document is not complete"
    await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path, life=2).run()
    (there,) = (tmp_path / "checkpoints").iterdir()
    assert there.name.startswith("step-000002.trainer-0.2")


async def test_a_trainer_that_was_replaced_while_it_was_stopped_requeues_nothing(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Version 0 does not exist in the tree, so all groups are too old.
    await closed_groups(db, 4, version=1)
    mine = trainer(db, configuration(tmp_path, tiny, steps=4, bound=0), tmp_path)

    async def replaced(*arguments: object, **named: object) -> object:
        look = await looked(*arguments, **named)  # type: ignore[arg-type]
        if look.decision.stale_groups:
            await lineages.begin(db, "trainer-0.9", parent_checkpoint="", after_step=0)
        return look

    looked = training.batch_selection.look
    monkeypatch.setattr(training.batch_selection, "look", replaced)
    with pytest.raises(LineageClosedError):
        await mine.run()
    assert "queued" not in await task_statuses(db)
    assert (await publication(db, 1)).id == 1
