"""The reference: the distance of the policy from the initial weights, and the loss that limits it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError, DiskError
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.store import lineages
from agentrl.store.database import Database
from agentrl.store.steps import LineageClosedError
from agentrl.training import offline, reference_model, waiting
from agentrl.training import trainer as training
from agentrl.training.batch import Batch
from agentrl.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE
from agentrl.training.learner import Learner
from agentrl.training.reference_model import REFERENCE
from tests.training.conftest import make_exact, make_learner
from tests.training.rollouts import after, closed_groups, configuration, trainer
from tests.training.test_packing import agree, packed
from tests.training.trees import batch_of, group


def some_batch() -> Batch:
    chance = random.Random(6)
    return batch_of([one for name in ("a", "b") for one in group(chance, 4, name=name)])


def held(tiny: Path, **settings: Any) -> Learner:
    learner = make_learner(tiny, exact=False, optimizer="muon", learning_rate=5e-3, **settings)
    learner.compare_with(tiny)
    return learner


def test_the_kl_to_the_reference_starts_at_zero_and_grows(tiny: Path) -> None:
    learner, batch = held(tiny), some_batch()
    measured = [learner.train(batch, PolicyLoss()).metrics["kl_reference"] for _ in range(4)]
    assert measured[0] == pytest.approx(0.0, abs=1e-9)
    assert measured[-1] > measured[1] > 1e-4
    assert "kl_reference" not in make_learner(tiny, exact=False).train(batch, PolicyLoss()).metrics


def test_the_reference_weight_keeps_the_policy_near_the_reference(tiny: Path) -> None:
    batch, measured = some_batch(), {}
    for weight in (0.0, 30.0):
        learner = held(tiny)
        for _ in range(8):
            measured[weight] = learner.train(batch, PolicyLoss(reference_weight=weight)).metrics["kl_reference"]
    assert measured[30.0] < measured[0.0] / 3


def test_the_reference_itself_is_neither_trained_nor_saved(tiny: Path, tmp_path: Path) -> None:
    learner, batch = held(tiny), some_batch()
    names = set(learner.model.state_dict())
    reference = learner._reference
    assert reference is not None
    before = {name: value.clone() for name, value in reference.state_dict().items()}
    learner.train(batch, PolicyLoss(reference_weight=1.0))
    assert all(torch.equal(value, before[name]) for name, value in reference.state_dict().items())
    assert set(learner.model.state_dict()) == names
    assert learner.save(tmp_path / "saved") == make_learner(tiny, exact=False).save(tmp_path / "alone")


def test_packing_changes_nothing_in_what_the_reference_adds(tiny: Path) -> None:
    loss, batch = PolicyLoss(reference_weight=2.0), some_batch()
    found, measured = [], []
    for tokens in (16_384, 40):
        learner = make_learner(tiny, tokens_per_batch=tokens)
        learner.compare_with(tiny)
        assert learner._reference is not None
        make_exact(learner._reference)
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.mul_(1.1)
        found.append(packed(learner, batch, loss))
        measured.append(learner.train(batch, loss).metrics)
    assert measured[0]["packed_tokens"] != measured[1]["packed_tokens"]
    assert measured[0]["kl_reference"] == pytest.approx(measured[1]["kl_reference"], abs=1e-10)
    assert measured[0]["kl_reference"] > 1e-4
    agree(*found)


def test_a_loss_that_needs_a_reference_is_refused_without_one(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="there is no reference"):
        make_learner(tiny, exact=False).train(some_batch(), PolicyLoss(reference_weight=0.1))


async def test_a_trainer_that_was_replaced_keeps_no_reference(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over = training.take_over

    async def replaced(*arguments: Any, **options: Any) -> Any:
        start = await take_over(*arguments, **options)
        await lineages.begin(db, "trainer-1.1", parent_checkpoint="", after_step=0)
        return start

    monkeypatch.setattr(training, "take_over", replaced)
    with pytest.raises(LineageClosedError):
        await trainer(db, configuration(tmp_path, tiny, steps=1, reference="initial"), tmp_path).run()
    assert not (tmp_path / REFERENCE).exists()


async def test_a_full_disk_delays_the_reference_and_repeats_nothing_else(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, tried = reference_model.keep_reference, 0

    def is_full_at_first(*arguments: Any, **options: Any) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise DiskError("It is full.")
        keep(*arguments, **options)

    began: list[str] = []
    after(monkeypatch, lineages, "begin", lambda: began.append("a lineage"))
    monkeypatch.setattr(reference_model, "keep_reference", is_full_at_first)
    monkeypatch.setattr(waiting, "DISK_AGAIN_S", 0.0)
    await closed_groups(db, 2)
    await trainer(db, configuration(tmp_path, tiny, steps=1, reference="initial"), tmp_path).run()
    assert (tmp_path / REFERENCE / WEIGHTS_FILE).is_file()
    assert (tried, began) == (2, ["a lineage"])


async def test_all_lineages_and_offline_training_share_one_reference(db: Database, tiny: Path, tmp_path: Path) -> None:
    def config(steps: int) -> Any:
        options = {"dumps": 9, "checkpoint_every": 2, "reference": "initial", "reference_weight": 0.5}
        made = configuration(tmp_path, tiny, steps=steps, **options)
        return made.model_copy(update={"dir": str(tmp_path)})

    await closed_groups(db, 8)
    await trainer(db, config(2), tmp_path).run()
    kept = (tmp_path / REFERENCE / WEIGHTS_FILE).read_bytes()
    await trainer(db, config(4), tmp_path, life=2).run()
    assert (tmp_path / REFERENCE / WEIGHTS_FILE).read_bytes() == kept, "the second life began elsewhere"
    found = await db.find("Step", {"status": "committed"}, sort=[("step", 1)])
    measured = [step["metrics"]["kl_reference"] for step in found]
    assert len(measured) == 4
    assert measured[0] < 1e-9 < measured[1] < measured[3]
    (half,) = (tmp_path / "checkpoints").glob("step-000002.*")
    again = {"start": half, "out": tmp_path / "again", "as_configured": False, "on_step": lambda step: True}
    offline.train_recorded(config(4), tmp_path / "dumps", **again)
    (last,) = (tmp_path / "checkpoints").glob("step-000004.*")
    for name in (WEIGHTS_FILE, OPTIMIZER_FILE):
        assert (tmp_path / "again" / name).read_bytes() == (last / name).read_bytes()
